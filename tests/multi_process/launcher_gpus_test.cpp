// GPU ranks, seen from outside, on a machine whose driver lists the GPUs of the test.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "launcher/plan/cores.hpp"
#include "support/fakes/fake_nvml.hpp"
#include "support/launcher/launched_job.hpp"

namespace ddp::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Words = std::vector<std::string>;

std::string const kA = "GPU-aaaaaaaa-0000-0000-0000-000000000000";
std::string const kB = "GPU-bbbbbbbb-0000-0000-0000-000000000000";
std::string const kC = "GPU-cccccccc-0000-0000-0000-000000000000";

/// ddp-launch options… -- /bin/sh -c script
Words command(Words options, std::string const& script) {
  options.insert(options.end(), {"--no-log-files", "--", "/bin/sh", "-c", script});
  return options;
}

std::string const kShowBinding =
    "echo $LOCAL_RANK/$WORLD_SIZE: $CUDA_VISIBLE_DEVICES ${DDP_VIRTUAL_DEVICES-unset}";

/// The ranks' lines, sorted; all must end well.
Words bindings(std::string const& gpus, Words const& options, Words const& environment = {}) {
  LaunchedJob job(command(options, kShowBinding), {.environment = with_gpus(gpus, environment)});
  EXPECT_EQ(job.exit_code(), 0) << job.err();
  EXPECT_EQ(job.err(), "");
  return job.sorted_lines();
}

// L1, L2
TEST(LauncherGpus, WithoutOptionsEveryVisibleGpuGetsARank) {
  EXPECT_THAT(bindings("H200 H200", {}),
              ElementsAre("[0] 0/2: " + kA + "," + kB + " unset", "[1] 1/2: " + kA + "," + kB + " unset"));
  EXPECT_THAT(bindings("H200 H200 H200", {}, {"CUDA_VISIBLE_DEVICES=2,0"}),
              ElementsAre("[0] 0/2: " + kC + "," + kA + " unset", "[1] 1/2: " + kC + "," + kA + " unset"));
}

// L1
TEST(LauncherGpus, WithoutAVisibleGpuOneOrTwoCpuRanksAreStarted) {
  for (auto const& environment :
       {with_gpus("none"), with_gpus("H200 H200", {"CUDA_VISIBLE_DEVICES="}),
        with_gpus("H200 H200", {"CUDA_VISIBLE_DEVICES=-1"}), with_gpus("denied denied")}) {
    LaunchedJob job(command({}, "echo $WORLD_SIZE: \"$CUDA_VISIBLE_DEVICES\""), {.environment = environment});
    EXPECT_EQ(job.exit_code(), 0) << job.err();
    EXPECT_EQ(job.err(), "");
    auto const lines = job.sorted_lines();
    ASSERT_THAT(lines.size(), ::testing::AnyOf(1U, 2U));
    for (std::string const& line : lines)
      EXPECT_THAT(line, HasSubstr("] " + std::to_string(lines.size()) + ": "));
  }
}

// The driver lists GPUs that CUDA cannot use: too old, not the whole of it in a container, or a build without
// CUDA.
TEST(LauncherGpus, GpuRanksThatCudaGivesNoGpuEndAndDoNotTrainOnTheCpu) {
  LaunchedJob job(launched_rank_with({"--gpus", "0,1"}, {"*=world"}),
                  {.environment = with_gpus("H200 H200")});
  EXPECT_NE(job.exit_code(), 0);
  EXPECT_EQ(job.out(), "");
  EXPECT_THAT(job.err(), HasSubstr("CUDA finds none of the GPUs that this rank was given, "
                                   "CUDA_VISIBLE_DEVICES=" +
                                   kA + "," + kB + ": "));
  EXPECT_THAT(job.err(), HasSubstr("ranks on the CPU: ddp-launch --cpus N"));
  LaunchedJob on_cpus(launched_rank_with({"--cpus", "2"}, {"*=world"}),
                      {.environment = with_gpus("H200 H200")});
  EXPECT_EQ(on_cpus.exit_code(), 0) << on_cpus.err();
  EXPECT_THAT(on_cpus.sorted_lines(),
              ElementsAre("[0] rank 0 of 2 on cpu:0, shm", "[1] rank 1 of 2 on cpu:0, shm"));
}

// Ctrl-C and a scheduler's SIGTERM are for the ranks, which may have to save.
TEST(LauncherGpus, ASignalIsPassedOnWhereTheDriverHasAThreadOfItsOwn) {
  for (Words const& restarts : {Words{}, Words{"--max-restarts", "1"}}) {
    Words options{"--gpus", "0"};
    options.insert(options.end(), restarts.begin(), restarts.end());
    std::string const fails_first = restarts.empty() ? "" : "[ $DDP_GENERATION = 0 ] && exit 3; ";
    LaunchedJob job(command(options, fails_first + "trap 'echo told; exit 0' TERM; echo up; "
                                                   "while :; do sleep 0.05; done"),
                    {.environment = with_gpus("H200", {"FAKE_NVML_THREAD=1"})});
    ASSERT_TRUE(job.shows("[0] up")) << job.err();
    job.send(SIGTERM);
    EXPECT_EQ(job.exit_code(), 0) << job.err();
    EXPECT_THAT(job.out(), HasSubstr("[0] told"));
  }
}

// L1, L2
TEST(LauncherGpus, AListChoosesGpusAndTheirOrder) {
  EXPECT_THAT(bindings("H200 H200 H200", {"--gpus", "2,0"}, {"CUDA_VISIBLE_DEVICES=0,1,2"}),
              ElementsAre("[0] 0/2: " + kC + "," + kA + " unset", "[1] 1/2: " + kC + "," + kA + " unset"));
  EXPECT_THAT(bindings("H200 H200", {"--gpus", "all"}, {"CUDA_VISIBLE_DEVICES=1"}),
              ElementsAre("[0] 0/1: " + kB + " unset"));
  EXPECT_THAT(bindings("H200 H200", {"--gpus", "GPU-bbbb"}), ElementsAre("[0] 0/1: " + kB + " unset"));
}

// L1
TEST(LauncherGpus, VirtualPutsSeveralRanksOnEachGpuAndSaysSoToThem) {
  EXPECT_THAT(bindings("H200", {"--virtual", "2"}, {"DDP_VIRTUAL_DEVICES=7"}),
              ElementsAre("[0] 0/2: " + kA + " 2", "[1] 1/2: " + kA + " 2"));
  EXPECT_THAT(bindings("H200", {}, {"DDP_VIRTUAL_DEVICES=7"}), ElementsAre("[0] 0/1: " + kA + " unset"));
  EXPECT_THAT(bindings("H200", {"--cpus", "1"}, {"DDP_VIRTUAL_DEVICES=7"}), ElementsAre("[0] 0/1: unset"));
  EXPECT_EQ(bindings("H200", {"--virtual", "100"}).size(), 100U);
  EXPECT_THAT(bindings("none", {"--virtual", "2"}), ElementsAre("[0] 0/2: 2", "[1] 1/2: 2"))
      << "without a GPU the CPU is cut (D9)";
}

// L2
TEST(LauncherGpus, AMigInstanceIsTheOnlyDeviceOfItsRank) {
  EXPECT_THAT(bindings("H200-mig2", {"--gpus", "1,0"}),
              ElementsAre("[0] 0/2: MIG-aaaaaaaa-0000-0000-0000-000000000002 unset",
                          "[1] 1/2: MIG-aaaaaaaa-0000-0000-0000-000000000001 unset"));
}

// launcher.md, NCCL
TEST(LauncherGpus, NcclStaysOnTheHostUnlessTheUserChose) {
  std::string const show = "echo $NCCL_SOCKET_IFNAME $NCCL_RAS_ENABLE $NCCL_NVLS_ENABLE";
  LaunchedJob defaults(command({}, show), {.environment = with_gpus("H200", {"NCCL_NVLS_ENABLE=0"})});
  EXPECT_EQ(defaults.exit_code(), 0);
  EXPECT_EQ(defaults.out(), "[0] lo 0 0\n");
  LaunchedJob chosen(command({}, show),
                     {.environment = with_gpus("H200", {"NCCL_SOCKET_IFNAME=eth7", "NCCL_RAS_ENABLE=1"})});
  EXPECT_EQ(chosen.exit_code(), 0);
  EXPECT_EQ(chosen.out(), "[0] eth7 1\n");
  LaunchedJob cpus(command({"--cpus", "1"}, "echo ${NCCL_SOCKET_IFNAME-unset}"),
                   {.environment = with_gpus("H200")});
  EXPECT_EQ(cpus.exit_code(), 0);
  EXPECT_EQ(cpus.out(), "[0] unset\n");
}

struct Refusal {
  char const* gpus;     ///< of the machine
  char const* visible;  ///< CUDA_VISIBLE_DEVICES
  char const* list;     ///< of --gpus
  int exit_code;
  char const* named;
};

// L1, L9, F14
TEST(LauncherGpus, F14BadListsAreRefusedBeforeAnythingStarts) {
  for (Refusal const& each :
       {Refusal{"H200 H200", "0,1", "-1", 64, "\"-1\""},
        {"H200 H200", "0,1", "0,0", 64, "a second time"},
        {"H200 H200", "0,1", "GPU-xyz", 64, "no UUID"},
        {"H200 H200", "0,1", "1,zwei", 64, "\"zwei\""},
        {"H200 H200", "0,1", "99", 69, "no device 99"},
        {"H200 H200", "0,1", "GPU-ffffffff", 69, "no device GPU-ffffffff"},
        {"H200 H200", "1", "0,1", 69, "CUDA_VISIBLE_DEVICES=1 leaves 1 GPU (0 = GPU-bbbb"},
        {"H200 H200", "", "0", 69, "CUDA_VISIBLE_DEVICES= leaves no GPU"},
        {"H200 H200", "-1", "all", 69, "CUDA_VISIBLE_DEVICES=-1 leaves no GPU"},
        {"none", "0", "0,0", 64, "a second time"},
        {"none", "0", "0", 69, "leaves no GPU"},
        {"none", "0", "all", 69, "leaves no GPU"},
        {"none", "0", "GPU-ffffffff", 69, "leaves no GPU"}}) {
    LaunchedJob job(
        Words{"--gpus", each.list, "/bin/sh", "-c", "touch started"},
        {.environment = with_gpus(each.gpus, {std::string("CUDA_VISIBLE_DEVICES=") + each.visible})});
    EXPECT_EQ(job.exit_code(), each.exit_code) << each.list;
    EXPECT_THAT(job.err(), HasSubstr(std::string("--gpus ") + each.list));
    EXPECT_THAT(job.err(), HasSubstr(each.named));
    EXPECT_EQ(std::count(job.err().begin(), job.err().end(), '\n'), 1) << job.err();
    EXPECT_TRUE(std::filesystem::is_empty(job.directory())) << each.list;
  }
}

// L9
TEST(LauncherGpus, AFullGpuEndsIn75BeforeAnythingStarts) {
  Words const environment = with_gpus("H200 H200/100/4711");
  LaunchedJob job(Words{"/bin/sh", "-c", "touch started"}, {.environment = environment});
  EXPECT_EQ(job.exit_code(), 75);
  EXPECT_THAT(job.err(), HasSubstr("GPU 1 (NVIDIA H200 " + kB +
                                   ") has 100 MiB of 140.401 GiB free, in use by pid 4711"));
  EXPECT_TRUE(std::filesystem::is_empty(job.directory()));
  LaunchedJob other(Words{"--gpus", "0", "--no-log-files", "/bin/true"}, {.environment = environment});
  EXPECT_EQ(other.exit_code(), 0) << other.err();
  LaunchedJob cpus(Words{"--cpus", "1", "--no-log-files", "/bin/true"}, {.environment = environment});
  EXPECT_EQ(cpus.exit_code(), 0) << cpus.err();
}

TEST(LauncherGpus, OddVariablesAndMixedModelsAreWarnedOf) {
  LaunchedJob odd(command({}, "echo $WORLD_SIZE"),
                  {.environment = with_gpus("H200 H200", {"CUDA_VISIBLE_DEVICES=0,2,1"})});
  EXPECT_EQ(odd.exit_code(), 0);
  EXPECT_EQ(odd.out(), "[0] 1\n");
  EXPECT_THAT(odd.err(), HasSubstr("[ddp-launch] warning: CUDA_VISIBLE_DEVICES=0,2,1 leaves 1 GPU of its 3"));
  LaunchedJob mixed(command({"--gpus", "1"}, "echo up"),
                    {.environment = with_gpus("L4 H200", {"CUDA_DEVICE_ORDER=FASTEST_FIRST"})});
  EXPECT_EQ(mixed.exit_code(), 0);
  EXPECT_THAT(mixed.err(), HasSubstr("warning: the GPUs are of several models"));
}

// L8
TEST(LauncherGpus, TheReportNamesDeviceAndUuid) {
  LaunchedJob job(command({"--gpus", "0,1"}, "exit $((RANK * 3))"), {.environment = with_gpus("H200 H200")});
  EXPECT_EQ(job.exit_code(), 3);
  EXPECT_THAT(job.err(), HasSubstr("first cause: rank 1 (pid "));
  EXPECT_THAT(job.err(), HasSubstr(", cuda:1 = " + kB + ") on "));
}

// L12
TEST(LauncherGpus, DryRunShowsModelAndUuidOfEveryRank) {
  LaunchedJob job(Words{"--dry-run", "/bin/true"}, {.environment = with_gpus("H200 L4")});
  EXPECT_EQ(job.exit_code(), 0) << job.err();
  EXPECT_THAT(job.out(), HasSubstr("rank 0: cuda:0 = NVIDIA H200 " + kA));
  EXPECT_THAT(job.out(), HasSubstr("rank 1: cuda:1 = NVIDIA L4 " + kB));
  EXPECT_THAT(job.out(), HasSubstr("  NCCL_SOCKET_IFNAME=lo\n"));
}

// L11
TEST(LauncherGpus, RanksOfOneNodeShareItsCores) {
  auto const show = "grep Cpus_allowed_list /proc/self/status";
  LaunchedJob alone(command({"--gpus", "0"}, show), {.environment = with_gpus("H200 H200")});
  EXPECT_EQ(alone.exit_code(), 0) << alone.err();
  LaunchedJob free(command({"--gpus", "0", "--no-affinity"}, show), {.environment = with_gpus("H200 H200")});
  EXPECT_EQ(free.exit_code(), 0) << free.err();
  auto const cpus_of = [](std::string const& line) {
    auto const list = launcher::parse_cpu_list(line.substr(line.find_last_of('\t') + 1));
    return list.value_or(std::vector<int>{});
  };
  ASSERT_EQ(free.sorted_lines().size(), 1U);
  auto const all = cpus_of(free.sorted_lines()[0]);
  auto const cpus = launcher::read_cpus(all);
  std::set<int> nodes;
  std::set<int> cores;
  for (auto const& cpu : cpus) {
    nodes.insert(cpu.node);
    cores.insert(cpu.core);
  }
  if (nodes.size() != 1 || cores.size() < 2) {
    GTEST_SKIP() << "needs one NUMA node and two cores, as the nodes of the test's GPUs are not known";
  }
  EXPECT_EQ(alone.sorted_lines(), free.sorted_lines());  // all cores of the only node

  LaunchedJob two(command({"--gpus", "0,1"}, show), {.environment = with_gpus("H200 H200")});
  EXPECT_EQ(two.exit_code(), 0) << two.err();
  auto const lines = two.sorted_lines();
  ASSERT_EQ(lines.size(), 2U);
  auto both = cpus_of(lines[0]);
  auto const second = cpus_of(lines[1]);
  EXPECT_FALSE(both.empty());
  EXPECT_FALSE(second.empty());
  both.insert(both.end(), second.begin(), second.end());
  EXPECT_THAT(both, ::testing::UnorderedElementsAreArray(all));  // each core once
}

}  // namespace
}  // namespace ddp::testing
