// What users of torchrun write, as options.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "ddp/core/text.hpp"
#include "launcher/mpirun/mpi_plan.hpp"
#include "launcher/options/options.hpp"
#include "launcher/plan/gpu_choice.hpp"
#include "launcher/plan/program.hpp"
#include "launcher/process/exit_code.hpp"
#include "support/launcher/refusal.hpp"
#include "support/launcher/shell.hpp"

namespace ddp::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Words = std::vector<std::string>;

Machine machine_of(int gpus, int cores) {
  Machine machine;
  machine.allowed_cores = cores;
  for (int i = 0; i < gpus; ++i) {
    machine.gpus.push_back({.uuid = {"GPU-" + std::string(8, static_cast<char>('a' + i))},
                            .name = "NVIDIA H200",
                            .index = PhysicalIndex{i}});
  }
  return machine;
}

GpuChoice named(std::string const& per_node, Machine const& machine) {
  return named_gpus(parse_options(Words{"--nproc-per-node", per_node, "ls"}), machine);
}

// B12
TEST(PerNode, NamesGpusWhereAnyIsVisibleAndCpusOtherwise) {
  EXPECT_THAT(named("2", machine_of(3, 8)).gpus, ElementsAre("GPU-aaaaaaaa", "GPU-bbbbbbbb"));
  EXPECT_THAT(named("gpu", machine_of(3, 8)).gpus, SizeIs(3));
  EXPECT_THAT(named("auto", machine_of(3, 8)).gpus, SizeIs(3));
  for (auto const& [per_node, gpus, cores, ranks] :
       {std::tuple("5", 0, 2, 5), {"cpu", 3, 8, 8}, {"auto", 0, 8, 8}}) {
    GpuChoice const choice = named(per_node, machine_of(gpus, cores));
    EXPECT_THAT(choice.gpus, IsEmpty()) << per_node;
    EXPECT_EQ(choice.cpu_ranks, ranks) << per_node;
  }
  Machine hidden = machine_of(3, 8);
  hidden.cuda_visible_devices = "2";
  EXPECT_THAT(named("1", hidden).gpus, ElementsAre("GPU-cccccccc"));
}

// B12
TEST(PerNode, MoreRanksThanGpusAndADriverThatFailsAreRefused) {
  auto const refused = [](Machine const& machine) {
    try {
      static_cast<void>(named("3", machine));
    } catch (ExitError const& error) {
      EXPECT_EQ(error.exit_code(), exit_code::kNoDevice);
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_THAT(refused(machine_of(1, 8)), HasSubstr("--nproc-per-node 3: 1 GPU is visible; --virtual N"));
  Machine broken = machine_of(0, 8);
  broken.gpu_problem = "NVML does not start";
  EXPECT_THAT(refused(broken), HasSubstr("NVML does not start; --cpus N starts"));
}

// B12
TEST(TorchrunOptions, AreTakenWithDashesAndUnderscores) {
  EXPECT_EQ(parse_options(Words{"--nproc_per_node=4", "ls"}).ranks_per_node, 4);
  EXPECT_EQ(parse_options(Words{"--log_dir", "a_b", "--max_restarts=3", "ls"}).log_dir, "a_b");
  EXPECT_THAT(parse_options(Words{"--cpus", "1", "ls", "--a_b"}).command, ElementsAre("ls", "--a_b"));
  EXPECT_THAT(refusal_of_options({"--nproc-per-node", "many", "ls"}),
              HasSubstr("a number, gpu, cpu or auto, found \"many\""));
  EXPECT_THAT(refusal_of_options({"--nproc-per-node", "0", "ls"}), HasSubstr("from 1 to 1024"));
  for (char const* other : {"--gpus", "--cpus", "--virtual"}) {
    EXPECT_THAT(refusal_of_options({"--nproc-per-node", "2", other, "1", "ls"}), HasSubstr("contradict"));
  }
  EXPECT_THAT(refusal_of_options({"--rdzv-endpoint=a:1", "ls"}), HasSubstr("--hostfile or --host"));
}

// B12
TEST(TorchrunOptions, OneHostIsThisOne) {
  EXPECT_EQ(parse_options(Words{"--standalone", "ls"}).engine, Engine::local);
  EXPECT_EQ(parse_options(Words{"--nnodes=1", "--nproc-per-node=2", "ls"}).engine, Engine::local);
  EXPECT_EQ(parse_options(Words{"--nnodes", "1", "--cpus", "2", "ls"}).engine, Engine::mpi) << "as ever";
  EXPECT_EQ(parse_options(Words{"--nnodes", "2", "--nproc-per-node", "2", "ls"}).engine, Engine::mpi);
  for (Words const& words :
       {Words{"--standalone", "--hostfile", "f", "ls"}, Words{"--standalone", "--nnodes", "2", "ls"},
        Words{"--standalone", "--engine", "mpi", "ls"}}) {
    EXPECT_THAT(refusal_of_options(words), HasSubstr("contradict"));
  }
}

// B12
TEST(TorchrunOptions, SeveralHostsHaveSoManyRanksEach) {
  Options const options = parse_options(Words{"--nproc-per-node", "2", "--host", "a:8,b:8", "ls"});
  auto const hosts = chosen_hosts(options, {});
  ASSERT_EQ(hosts.size(), 2U);
  EXPECT_EQ(hosts[0].slots, 2);
  Options const without = parse_options(Words{"--nproc-per-node", "2", "--nnodes", "2", "ls"});
  EXPECT_THROW(
      {
        try {
          static_cast<void>(chosen_hosts(without, {}));
        } catch (ExitError const& error) {
          EXPECT_THAT(error.what(), HasSubstr("--nnodes 2 needs hosts: --hostfile FILE, --host LIST"));
          throw;
        }
      },
      ExitError);
  EXPECT_THROW(static_cast<void>(
                   chosen_hosts(parse_options(Words{"--nproc-per-node", "cpu", "--host", "a,b", "ls"}), {})),
               ExitError);
}

// B12
TEST(PythonCommand, IsForScriptsThatAreThereAndForModules) {
  ddp::testing::TemporaryFolder const folder;
  std::string const script = (folder.path() / "train.py").string();
  std::ofstream{script};
  // Where there is no Python too.
  std::ofstream{folder.path() / "python3"};
  std::filesystem::permissions(folder.path() / "python3", std::filesystem::perms::owner_all);
  std::string const path = ddp::text(std::getenv("PATH"));
  ::setenv("PATH", folder.path().c_str(), 1);
  EXPECT_THAT(started_command(parse_options(Words{script, "-x"})),
              ElementsAre("python3", "-u", script, "-x"));
  EXPECT_THAT(started_command(parse_options(Words{"-m", "a.b", "-m"})),
              ElementsAre("python3", "-u", "-m", "a.b", "-m"));
  EXPECT_THAT(started_command(parse_options(Words{"--module", "--", "a"})),
              ElementsAre("python3", "-u", "-m", "a"));
  EXPECT_THAT(started_command(parse_options(Words{"no-such.py"})), ElementsAre("no-such.py"));
  EXPECT_THAT(started_command(parse_options(Words{"python", "train.py"})), ElementsAre("python", "train.py"));
  EXPECT_THAT(refusal_of_options({"-m"}), HasSubstr("-m expects a module's name"));
  ::setenv("PATH", path.c_str(), 1);
}

}  // namespace
}  // namespace ddp::launcher
