// The mpi engine's plain parts: hosts, the plan, the shim's variables.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "launcher/mpirun/mpi_plan.hpp"
#include "launcher/mpirun/mpi_rank_guard.hpp"
#include "launcher/mpirun/mpi_shim.hpp"
#include "launcher/options/hosts.hpp"
#include "launcher/process/exit_code.hpp"
#include "support/launcher/refusal.hpp"
#include "support/launcher/shell.hpp"

namespace ddp::launcher {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::Key;
using ::testing::Not;
using ::testing::Pair;
using ::testing::StartsWith;
using Words = std::vector<std::string>;

Options options_of(Words const& words) {
  Words all = words;
  all.insert(all.end(), {"--", "./train", ":", "a b"});
  return parse_options(all);
}

MpiSurroundings surroundings() {
  return {.launcher = "/opt/ddp-launch",
          .mpirun = "/usr/bin/mpirun",
          .environment = {"MASTER_PORT=12345"},
          .is_root = false,
          .allocation_knows_hosts = false};
}

Plan plan_of(Words const& words, MpiSurroundings const& around = surroundings()) {
  Options const options = options_of(words);
  return make_mpi_plan(options, Machine{}, "job", "/opt/train", chosen_hosts(options, around), around);
}

/// The words from `first` on, as many as are expected.
Words words_from(Plan const& plan, std::string const& first, std::size_t count) {
  auto const begin = std::find(plan.command.begin(), plan.command.end(), first);
  auto const left = static_cast<std::size_t>(plan.command.end() - begin);
  return {begin, begin + static_cast<std::ptrdiff_t>(std::min(count, left))};
}

TEST(MpiPlan, L3ComposesMpirunWithItselfAsTheShimOfEachRank) {
  Plan const plan = plan_of({"--host", "node7:4,node8:2"});
  EXPECT_EQ(plan.mpi_ranks, 6);
  EXPECT_EQ(plan.program, "/usr/bin/mpirun");
  EXPECT_THAT(words_from(plan, "/usr/bin/mpirun", 3), ElementsAre("/usr/bin/mpirun", "--bind-to", "none"));
  EXPECT_THAT(words_from(plan, "-np", 2), ElementsAre("-np", "6"));
  EXPECT_THAT(words_from(plan, "--host", 2), ElementsAre("--host", "node7:4,node8:2"));
  EXPECT_THAT(plan.command, Not(Contains("--allow-run-as-root")));
  // L14: words stay words; mpirun would take a lone colon for its own.
  EXPECT_THAT(words_from(plan, "/opt/ddp-launch", 99),
              ElementsAre("/opt/ddp-launch", kShim, "node7", "12345", "4,2", "/opt/train", "--", "=./train",
                          "=:", "=a b"));
}

// B6
TEST(MpirunSettings, DependOnWhetherAllHostsAreThisOne) {
  for (char const* hosts : {"localhost:2", "127.0.0.1:2", "here:2"}) {
    EXPECT_TRUE(are_all_here(parse_host_list(hosts), "here")) << hosts;
  }
  for (char const* hosts : {"node7:2", "here:1,node7:1"}) {
    EXPECT_FALSE(are_all_here(parse_host_list(hosts), "here")) << hosts;
  }
  EXPECT_FALSE(are_all_here({}, "here")) << "an allocation has them";
  EXPECT_TRUE(plan_of({"--host", "localhost:2"}).all_here);
  EXPECT_FALSE(plan_of({"--host", "node7:2"}).all_here);
}

// B6
TEST(MpirunSettings, LeaveTheUsersOwnAlone) {
  EXPECT_THAT(mpirun_settings({}, "/tmp/x"),
              ElementsAre(Pair("OMPI_MCA_orte_local_tmpdir_base", "/tmp/x"),
                          Pair("PRTE_MCA_prte_local_tmpdir_base", "/tmp/x"), Pair("PMIX_MCA_gds", "hash")));
  EXPECT_THAT(loopback_settings({}, "/lib/ddp_loopback.so"),
              ElementsAre(Pair("OMPI_MCA_btl", "^tcp,ofi"), Pair("LD_PRELOAD", "/lib/ddp_loopback.so")));
  Words const own{"OMPI_MCA_btl=tcp,self", "OMPI_MCA_orte_tmpdir_base=/var/tmp", "PMIX_MCA_gds=shmem",
                  "LD_PRELOAD=a.so:b.so"};
  EXPECT_THAT(mpirun_settings(own, "/tmp/x"), ElementsAre());
  for (char const* files : {"PRTE_MCA_prte_tmpdir_base=/x", "PRTE_MCA_prte_local_tmpdir_base=/x"}) {
    EXPECT_THAT(mpirun_settings(Words{files}, "/tmp/x"), ElementsAre(Pair("PMIX_MCA_gds", "hash"))) << files;
  }
  EXPECT_THAT(loopback_settings(own, "/lib/ddp_loopback.so"),
              ElementsAre(Pair("LD_PRELOAD", "/lib/ddp_loopback.so:a.so:b.so")));
  EXPECT_EQ(users_preload("/lib/ddp_loopback.so:a.so:b.so"), "a.so:b.so");
  EXPECT_EQ(users_preload("/lib/ddp_loopback.so"), "");
  EXPECT_EQ(users_preload("a.so"), "a.so");
}

// As Open MPI 4.1.4 and 5.0.11 name files of jobs that they call so.
TEST(OpenMpiJobNumber, IsThatInTheNamesOfFiles) {
  EXPECT_EQ(open_mpi_job_number("1973420033"), 0x75a00001U);
  EXPECT_EQ(open_mpi_job_number("prterun-vm-1425@1"), 0xf6b00001U);
  EXPECT_EQ(open_mpi_job_number(""), 0U);
}

TEST(MpiPlan, L3WhatIsOfAHostGoesToItsShims) {
  Plan const plan = plan_of(
      {"--host", "node7:8,node8", "--gpus", "0,3", "--virtual", "2", "--no-affinity", "--max-restarts", "3"});
  EXPECT_EQ(plan.mpi_ranks, 8) << "two GPUs on each host, two ranks on each GPU";
  EXPECT_EQ(plan.max_restarts, 3);
  EXPECT_THAT(words_from(plan, "--host", 2), ElementsAre("--host", "node7:4,node8:4"));
  EXPECT_THAT(words_from(plan, "--map-by", 2), ElementsAre("--map-by", "ppr:4:node"));
  EXPECT_THAT(words_from(plan, "/opt/train", 9), ElementsAre("/opt/train", "--gpus", "0,3", "--virtual", "2",
                                                             "--no-affinity", "--max-restarts", "3", "--"));
  // All GPUs: how many those are, only the slots tell here.
  EXPECT_EQ(plan_of({"--host", "node7:8,node8:2", "--gpus", "all"}).mpi_ranks, 10);
}

TEST(MpiPlan, CpusAreThoseOfEachHost) {
  Plan const plan = plan_of({"--host", "node7:4,node8,node9", "--nnodes", "2", "--cpus", "3"});
  EXPECT_EQ(plan.mpi_ranks, 6);
  EXPECT_THAT(words_from(plan, "--map-by", 2), ElementsAre("--map-by", "ppr:3:node"));
  EXPECT_THAT(words_from(plan, "/opt/train", 3), ElementsAre("/opt/train", "--cpus", "3"));
}

TEST(MpiPlan, L1WithoutHostsThisHostHasAsManyRanksAsWithTheLocalEngine) {
  MpiSurroundings around = surroundings();
  around.ranks_here = 5;
  EXPECT_EQ(plan_of({"--engine", "mpi"}, around).mpi_ranks, 5);
  EXPECT_EQ(plan_of({"--engine", "mpi", "--cpus", "3"}, around).mpi_ranks, 3);
}

TEST(MpiPlan, L4JobsOfOneHostHaveDifferentPorts) {
  Options const options = options_of({"--engine", "mpi"});
  MpiSurroundings around = surroundings();
  around.environment.clear();
  std::set<std::string> ports;
  for (std::string const job : {"train-1", "train-2", "train-3"}) {
    Plan const plan = make_mpi_plan(options, Machine{}, job, "/opt/train", {{"localhost", 1}}, around);
    ports.insert(words_from(plan, kShim, 3).at(2));
  }
  EXPECT_EQ(ports.size(), 3U);
}

TEST(MpiPlan, L15RootInContainersIsAllowed) {
  MpiSurroundings around = surroundings();
  around.is_root = true;
  EXPECT_THAT(plan_of({"--engine", "mpi"}, around).command, Contains("--allow-run-as-root"));
}

TEST(MpiPlan, AnAllocationTellsItsHostsToMpirun) {
  MpiSurroundings around = surroundings();
  around.allocation_knows_hosts = true;
  Plan const plan = plan_of({"--nnodes", "2", "--cpus", "4"}, around);
  EXPECT_EQ(plan.mpi_ranks, 8);
  EXPECT_THAT(plan.command, Not(Contains("--host")));
  around.environment.push_back("SLURM_JOB_NODELIST=gpu[7-8]");
  EXPECT_THAT(words_from(plan_of({"--nnodes", "2", "--cpus", "4"}, around), kShim, 4),
              ElementsAre(kShim, "gpu7", "12345", "4,4"));
  EXPECT_THAT(refusal([&] { static_cast<void>(plan_of({"--nnodes", "2"}, around)); }), HasSubstr("--cpus N"));
}

TEST(MpiPlan, WhatDoesNotFitIsRefused) {
  EXPECT_THAT(refusal([] { static_cast<void>(plan_of({"--nnodes", "2"})); }), HasSubstr("--hostfile FILE"));
  EXPECT_THAT(refusal([] {
                static_cast<void>(plan_of({"--host", "a", "--nnodes", "2"}));
              }),
              HasSubstr("only 1 host is named"));
  EXPECT_THAT(refusal([] {
                static_cast<void>(plan_of({"--host", "a", "--only-rank", "1"}));
              }),
              HasSubstr("from 0 to 0"));
  EXPECT_THAT(refusal([] { static_cast<void>(options_of({"--engine", "ssh"})); }), HasSubstr("local or mpi"));
  EXPECT_THAT(refusal([] {
                static_cast<void>(options_of({"--engine", "local", "--host", "a"}));
              }),
              HasSubstr("--engine local and --host"));
  EXPECT_THAT(refusal([] {
                static_cast<void>(options_of({"--hostfile", "f", "--host", "a"}));
              }),
              HasSubstr("--hostfile and --host"));
}

TEST(MpiPlan, L15VariablesThatMustPassGoToOtherHosts) {
  Words const environment{"NCCL_DEBUG=INFO",          "HOME=/root",        "CUDA_MODULE_LOADING=LAZY",
                          "LD_LIBRARY_PATH=/opt/lib", "OMP_NUM_THREADS=2", "DDP_LOG=info",
                          "DDP_CONTROL=/tmp/x",       "PATH=/bin",         "DDP_ERROR_FILE=/tmp/y",
                          "DDP_FLIGHT=/tmp/z",        "DDP_STDOUT=1:2"};
  EXPECT_THAT(exported_names(environment),
              ElementsAre("CUDA_MODULE_LOADING", kErrorDirectory, "DDP_GENERATION", "DDP_INVITATION",
                          "DDP_JOB_ID", "DDP_LOG", "LD_LIBRARY_PATH", "NCCL_DEBUG", "OMP_NUM_THREADS"));
}

TEST(MpiPlan, L15VariablesThatAreNamedGoToOtherHostsToo) {
  Words const given{"-x", "WANDB_MODE=offline", "--host", "a,b", "-x", "HOME"};
  Options const options = options_of(given);
  ASSERT_EQ(options.exports.size(), 2U);
  EXPECT_EQ(options.exports[0].name, "WANDB_MODE");
  EXPECT_EQ(options.exports[0].value, "offline");
  EXPECT_EQ(options.exports[1].value, std::nullopt);
  Plan const plan = plan_of(given);
  EXPECT_THAT(words_from(plan, "WANDB_MODE", 1), ElementsAre("WANDB_MODE"))
      << "mpirun gets the value otherwise";
  EXPECT_THAT(words_from(plan, "HOME", 1), ElementsAre("HOME"));
  for (char const* const wrong : {"=1", "A-B=1", "9A", "A B"}) {
    EXPECT_THAT(refusal([&] {
                  static_cast<void>(options_of({"-x", wrong}));
                }),
                HasSubstr("-x expects NAME or NAME=VALUE"));
  }
}

// hosts.md, row 5: GPUs have other numbers and UUIDs on other hosts.
TEST(MpiPlan, L15GpusThatAreVisibleHereDoNotCountElsewhere) {
  auto around = surroundings();
  around.environment = {"CUDA_VISIBLE_DEVICES=1,0"};
  Plan const plan = plan_of({"--host", "a,b"}, around);
  EXPECT_THAT(plan.command, Not(Contains("CUDA_VISIBLE_DEVICES")));
  EXPECT_THAT(plan.warnings, ElementsAre(HasSubstr("CUDA_VISIBLE_DEVICES=1,0 holds on this host only")));
  Plan const asked = plan_of({"--host", "a,b", "-x", "CUDA_VISIBLE_DEVICES"}, around);
  EXPECT_THAT(asked.command, Contains("CUDA_VISIBLE_DEVICES"));
  EXPECT_THAT(asked.warnings, ElementsAre());
  around.environment = {"CUDA_VISIBLE_DEVICES="};
  Plan const none = plan_of({"--host", "a,b"}, around);
  EXPECT_THAT(none.command, Contains("CUDA_VISIBLE_DEVICES")) << "no GPU is no GPU everywhere";
  EXPECT_THAT(none.warnings, ElementsAre());
  EXPECT_THAT(refusal([] {
                static_cast<void>(plan_of({"--host", "a,b", "--gpus", "GPU-1"}));
              }),
              HasSubstr("a UUID names a GPU of one host"));
  EXPECT_THAT(plan_of({"--host", "b", "--gpus", "GPU-1"}).command, Contains("GPU-1")) << "it is that host's";
}

/// On hosts with so many ranks each.
RankInfo place_of(int rank, int size, int local_size) {
  RankInfo place;
  place.rank = Rank{rank};
  place.size = size;
  place.local_rank = LocalRank{rank % local_size};
  place.local_size = local_size;
  return place;
}

class MpiShim : public ::testing::Test {
 protected:
  testing::TemporaryFolder folder_;  // mode 0700
  std::map<std::string, std::string> variables_{{"OMPI_COMM_WORLD_RANK", "5"},
                                                {"OMPI_COMM_WORLD_SIZE", "8"},
                                                {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                                {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                                                {"DDP_JOB_ID", "job-1"},
                                                {"DDP_GENERATION", "2"},
                                                {kErrorDirectory, folder_.path().string()}};
  Lookup lookup_ = [this](std::string const& name) -> std::optional<std::string> {
    auto const found = variables_.find(name);
    return found == variables_.end() ? std::nullopt : std::optional(found->second);
  };
  Machine machine_;

  MpiShim() {
    machine_.host = "node8";
    machine_.allowed_cores = 8;
    for (int i = 0; i < 4; ++i) {
      std::string const uuid = "GPU-" + std::to_string(i);
      machine_.gpus.push_back({.uuid = {uuid}, .name = "NVIDIA H200", .index = PhysicalIndex{i}});
      machine_.gpu_nodes[PhysicalIndex{i}] = i / 2;
      for (int cpu = 2 * i; cpu < 2 * i + 2; ++cpu) machine_.cpus.push_back({cpu, cpu, i / 2});
    }
  }
  [[nodiscard]] Plan plan(Words const& words, RankInfo const& place) const {
    return plan_of_host(options_of(words), machine_, place, [](std::string const&) { return std::nullopt; });
  }
  [[nodiscard]] Variables environment(Words const& words) const {
    RankInfo const place = read_place(lookup_);
    return shim_environment(lookup_, place, plan(words, place), {"node7", "12345", {4, 4}});
  }
};

// mpirun believes that a host has as many cores as slots, so ranks would spin on cores that others need.
TEST_F(MpiShim, RanksThatShareCoresYieldWhileTheyWait) {
  constexpr char const* kYield = "OMPI_MCA_mpi_yield_when_idle";
  machine_.allowed_cores = 4;
  EXPECT_THAT(environment({"--cpus", "4"}), Not(Contains(Key(kYield))));
  machine_.allowed_cores = 3;
  EXPECT_THAT(environment({"--cpus", "4"}), Contains(Pair(kYield, "1")));
  variables_[kYield] = "0";
  EXPECT_THAT(environment({"--cpus", "4"}), Not(Contains(Key(kYield)))) << "the user has set it";
}

TEST_F(MpiShim, MapsMpirunsVariables) {
  Variables const mapped = environment({"--cpus", "4", "--max-restarts", "3"});
  EXPECT_THAT(mapped, IsSupersetOf({Pair("RANK", "5"), Pair("WORLD_SIZE", "8"), Pair("LOCAL_RANK", "1"),
                                    Pair("LOCAL_WORLD_SIZE", "4"), Pair("GROUP_RANK", "1"),
                                    Pair("GROUP_WORLD_SIZE", "2"), Pair("MASTER_ADDR", "node7"),
                                    Pair("MASTER_PORT", "12345"), Pair("CUDA_VISIBLE_DEVICES", ""),
                                    Pair("OMP_NUM_THREADS", "2"), Pair("TORCHELASTIC_RUN_ID", "job-1"),
                                    Pair("DDP_GENERATION", "2"), Pair("TORCHELASTIC_RESTART_COUNT", "2"),
                                    Pair("TORCHELASTIC_MAX_RESTARTS", "3")}));
  EXPECT_THAT(mapped, Contains(Pair("DDP_ERROR_FILE", HasSubstr("rank5"))));
  EXPECT_THAT(mapped, Contains(Pair("TORCHELASTIC_ERROR_FILE", HasSubstr("rank5"))));
  variables_[kErrorDirectory] = "/not/on/this/host";
  for (auto const& [name, value] : environment({"--cpus", "4"})) {
    EXPECT_NE(name, "DDP_ERROR_FILE");
    EXPECT_NE(name, "TORCHELASTIC_ERROR_FILE");
  }
  for (char const* rank : {"-5", "8"}) {
    variables_["OMPI_COMM_WORLD_RANK"] = rank;
    EXPECT_THAT(refusal([&] { static_cast<void>(read_place(lookup_)); }), HasSubstr("expected"));
  }
  variables_.erase("OMPI_COMM_WORLD_LOCAL_SIZE");
  EXPECT_THAT(refusal([&] { static_cast<void>(read_place(lookup_)); }), HasSubstr("OMPI_COMM_WORLD_*"));
}

// B5
TEST_F(MpiShim, AnErrorDirectoryThatAnotherUserMayHaveMadeIsRefused) {
  auto const refused = [&](std::filesystem::path const& directory) -> std::string {
    variables_[kErrorDirectory] = directory.string();
    try {
      static_cast<void>(environment({"--cpus", "4"}));
    } catch (ExitError const& error) {
      EXPECT_EQ(error.exit_code(), exit_code::kCannotCreate);
      EXPECT_THAT(error.what(),
                  StartsWith("DDP_ERROR_DIRECTORY " + directory.string() +
                             " on node8: expected a folder of this user, with mode 0700, found "));
      return error.what();
    }
    return "accepted";
  };
  auto const inner = folder_.path() / "inner";
  std::filesystem::create_directory(inner);
  ASSERT_EQ(chmod(inner.c_str(), 0700), 0);
  EXPECT_EQ(refused(inner), "accepted");
  std::filesystem::create_directory_symlink(inner, folder_.path() / "link");
  EXPECT_THAT(refused(folder_.path() / "link"), HasSubstr("found a link"));
  for (mode_t const mode : {0777U, 0750U, 0701U}) {
    ASSERT_EQ(chmod(inner.c_str(), mode), 0);
    EXPECT_THAT(refused(inner), HasSubstr("found one of user ")) << std::oct << mode;
  }
  ASSERT_EQ(chmod(inner.c_str(), 0700), 0);
  std::ofstream(folder_.path() / "file") << "x";
  EXPECT_THAT(refused(folder_.path() / "file"), HasSubstr("found no folder"));
  if (geteuid() != 0) GTEST_SKIP() << "only root can make a folder of another user";
  ASSERT_EQ(chown(inner.c_str(), 65534, 65534), 0);
  EXPECT_THAT(refused(inner), HasSubstr("found one of user 65534, with mode 0700"));
}

TEST_F(MpiShim, L4TheHostsNumberFollowsFromTheirSlots) {
  auto const group_of = [&](int rank, std::vector<int> const& slots) {
    RankInfo const place = place_of(rank, 4, 1);
    Variables const mapped =
        shim_environment(lookup_, place, plan({"--cpus", "1"}, place), {"a", "1", slots});
    std::map<std::string, std::string> const by_name(mapped.begin(), mapped.end());
    return by_name.at("GROUP_RANK") + "/" + by_name.at("GROUP_WORLD_SIZE");
  };
  EXPECT_EQ(group_of(0, {1, 3}), "0/2");
  for (int rank = 1; rank < 4; ++rank) EXPECT_EQ(group_of(rank, {1, 3}), "1/2");
  EXPECT_EQ(group_of(3, {2, 1, 1}), "2/3");
}

TEST_F(MpiShim, L2L11RanksGetTheirHostsDevicesAndCores) {
  Variables const chosen = environment({"--gpus", "3,1", "--virtual", "2"});
  EXPECT_THAT(chosen, Contains(Pair("CUDA_VISIBLE_DEVICES", "GPU-3,GPU-1")));
  EXPECT_THAT(chosen, Contains(Pair("DDP_VIRTUAL_DEVICES", "2")));
  EXPECT_THAT(chosen, Not(Contains(Key("NCCL_SOCKET_IFNAME")))) << "ranks of other hosts are not on lo";
  RankInfo const one_host = place_of(1, 4, 4);
  Plan const all = plan({}, one_host);
  EXPECT_THAT(all.defaults.nccl, Contains(Pair("NCCL_SOCKET_IFNAME", "lo")));
  EXPECT_THAT(all.ranks[1].cpus, ElementsAre(2, 3)) << "half of the node of its GPU";
  EXPECT_TRUE(plan({"--no-affinity"}, one_host).ranks[1].cpus.empty());
  // Fewer ranks than GPUs: the first ones, with all of the cores.
  Plan const two = plan({}, place_of(0, 2, 2));
  EXPECT_THAT(device_variables(two, two.ranks[0]), Contains(Pair("CUDA_VISIBLE_DEVICES", "GPU-0,GPU-1")));
  EXPECT_EQ(two.defaults.omp_threads, 4);
}

TEST_F(MpiShim, MoreRanksThanGpusAreRefusedWithTheHost) {
  RankInfo const place = place_of(9, 16, 8);
  try {
    static_cast<void>(plan({}, place));
    ADD_FAILURE() << "accepted";
  } catch (ExitError const& error) {
    EXPECT_EQ(error.exit_code(), exit_code::kNoDevice);
    EXPECT_THAT(error.what(), StartsWith("node8: 8 ranks are to run here, for 4 GPUs; "));
  }
  EXPECT_EQ(plan({"--virtual", "2"}, place).ranks.size(), 8U);
  // A host without GPUs runs as many CPU ranks as mpirun starts there, unless GPUs were asked for.
  machine_.gpus.clear();
  EXPECT_EQ(plan({}, place).ranks.size(), 8U);
  EXPECT_THROW(static_cast<void>(plan({"--gpus", "0"}, place)), ExitError);
}

}  // namespace
}  // namespace ddp::launcher
