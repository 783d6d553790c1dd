#include "launcher/plan.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "launcher/exit_code.hpp"

namespace ddp::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using Words = std::vector<std::string>;

std::string const kA = "GPU-aaaaaaaa-0000-0000-0000-000000000000";
std::string const kB = "GPU-bbbbbbbb-0000-0000-0000-000000000000";

Machine machine_with(int cores, std::vector<Gpu> gpus = {}) {
  Machine machine;
  machine.host = "host";
  machine.allowed_cores = cores;
  machine.physical_cores = cores;
  machine.gpus = std::move(gpus);
  return machine;
}

Plan plan_of(Words words, Machine const& machine, bool omp_threads_is_set = false) {
  words.insert(words.end(), {"./train", "--epochs", "3"});
  return make_plan(parse_options(words), machine, "train-1", "./train", omp_threads_is_set);
}

std::map<std::string, std::string> environment(Plan const& plan, std::size_t rank) {
  std::map<std::string, std::string> result;
  for (auto const& [name, value] : rank_environment(plan, plan.ranks[rank], {"/c/control", "/c", "4711"})) {
    EXPECT_TRUE(result.emplace(name, value).second) << name << " twice";
  }
  return result;
}

int exit_code_of(Words const& words, Machine const& machine) {
  try {
    static_cast<void>(plan_of(words, machine));
  } catch (ExitError const& error) {
    return error.exit_code();
  }
  return 0;
}

// L1
TEST(Plan, WithoutGpusOneCpuRankPerPhysicalCoreUpToTwo) {
  EXPECT_EQ(plan_of({}, machine_with(1)).ranks.size(), 1U);
  EXPECT_EQ(plan_of({}, machine_with(2)).ranks.size(), 2U);
  EXPECT_EQ(plan_of({}, machine_with(64)).ranks.size(), 2U);
  Plan const told = plan_of({"--cpus", "5"}, machine_with(2));
  ASSERT_EQ(told.ranks.size(), 5U);
  EXPECT_EQ(told.ranks[4].rank, Rank{4});
  EXPECT_EQ(told.ranks[4].device, Device{});
}

// L1
TEST(Plan, WithGpusOneRankPerVisibleGpu) {
  Machine machine = machine_with(8, {{kA, "", {}}, {kB, "", {}}});
  EXPECT_EQ(plan_of({}, machine).ranks.size(), 2U);
  machine.cuda_visible_devices = "1";
  Plan const one = plan_of({}, machine);
  ASSERT_EQ(one.ranks.size(), 1U);
  EXPECT_EQ(one.ranks[0].gpu, kB);
  machine.cuda_visible_devices = "-1";
  EXPECT_EQ(plan_of({}, machine).ranks[0].device.kind, DeviceKind::cpu) << "-1 leaves no GPU";
  EXPECT_EQ(plan_of({"--cpus", "3"}, machine_with(8, {{kA, "", {}}})).ranks.size(), 3U);
}

// L2
TEST(Plan, EveryRankSeesTheWholeListAndBindsItsLogicalDevice) {
  Machine const machine = machine_with(8, {{kA, "", {}}, {kB, "", {}}});
  Plan const plan = plan_of({"--gpus", "1,0"}, machine);
  ASSERT_EQ(plan.ranks.size(), 2U);
  for (std::size_t r : {0U, 1U}) EXPECT_EQ(environment(plan, r)["CUDA_VISIBLE_DEVICES"], kB + "," + kA);
  EXPECT_EQ(to_string(plan.ranks[1].device), "cuda:1");
  EXPECT_EQ(plan.ranks[1].gpu, kA);
  EXPECT_EQ(environment(plan, 1)["LOCAL_RANK"], "1");
}

// L2
TEST(Plan, AMigRankSeesItsOwnInstanceOnly) {
  std::string const one = "MIG-11111111-0000-0000-0000-000000000000";
  std::string const two = "MIG-22222222-0000-0000-0000-000000000000";
  Machine machine = machine_with(8, {{kA, "", {one, two}}});
  machine.cuda_visible_devices = one + "," + two;
  Plan const plan = plan_of({"--gpus", "all"}, machine);
  EXPECT_EQ(environment(plan, 0)["CUDA_VISIBLE_DEVICES"], one);
  EXPECT_EQ(environment(plan, 1)["CUDA_VISIBLE_DEVICES"], two);
}

// L1
TEST(Plan, VirtualPutsSeveralRanksOnEachGpu) {
  Plan const plan =
      plan_of({"--gpus", "0,1", "--virtual", "2"}, machine_with(8, {{kA, "", {}}, {kB, "", {}}}));
  ASSERT_EQ(plan.ranks.size(), 4U);
  EXPECT_EQ(plan.ranks[1].gpu, kA);
  EXPECT_EQ(plan.ranks[2].gpu, kB);
  EXPECT_EQ(environment(plan, 3)["CUDA_VISIBLE_DEVICES"], kA + "," + kB);
}

TEST(Plan, VirtualWithoutGpusIsRefused) { EXPECT_EQ(exit_code_of({"--virtual", "2"}, machine_with(2)), 64); }

// F14: on a machine without GPUs
TEST(Plan, GpuListsEndIn64Or69BeforeAnythingStarts) {
  for (char const* list : {"-1", "0,0", "GPU-zz", ""}) {
    EXPECT_EQ(exit_code_of({"--gpus", list}, machine_with(2)), 64) << list;
  }
  for (char const* list : {"99", "0", "all", "GPU-ffff"}) {
    EXPECT_EQ(exit_code_of({"--gpus", list}, machine_with(2)), 69) << list;
  }
}

// F14
TEST(Plan, MoreGpusThanTheInheritedVariableLeavesAreRefused) {
  Machine machine = machine_with(2, {{kA, "", {}}, {kB, "", {}}});
  machine.cuda_visible_devices = "1";
  EXPECT_EQ(exit_code_of({"--gpus", "0"}, machine), 0);
  EXPECT_EQ(exit_code_of({"--gpus", "0,1"}, machine), 69);
}

TEST(Plan, ALauncherThatCannotListGpusSaysSo) {
  Machine machine = machine_with(2);
  machine.has_gpu_driver = true;
  try {
    static_cast<void>(plan_of({"--gpus", "0"}, machine));
    FAIL();
  } catch (ExitError const& error) {
    EXPECT_EQ(error.exit_code(), 69);
    EXPECT_THAT(error.what(), HasSubstr("CPU ranks only"));
  }
}

// L4
TEST(Plan, TheEnvironmentIsTheDocumentedContract) {
  auto const variables = environment(plan_of({"--cpus", "3"}, machine_with(6)), 2);
  std::map<std::string, std::string> const expected{{"RANK", "2"},
                                                    {"WORLD_SIZE", "3"},
                                                    {"LOCAL_RANK", "2"},
                                                    {"LOCAL_WORLD_SIZE", "3"},
                                                    {"GROUP_RANK", "0"},
                                                    {"GROUP_WORLD_SIZE", "1"},
                                                    {"MASTER_ADDR", "127.0.0.1"},
                                                    {"MASTER_PORT", "4711"},
                                                    {"TORCHELASTIC_RUN_ID", "train-1"},
                                                    {"TORCHELASTIC_RESTART_COUNT", "0"},
                                                    {"TORCHELASTIC_MAX_RESTARTS", "0"},
                                                    {"DDP_JOB_ID", "train-1"},
                                                    {"DDP_GENERATION", "0"},
                                                    {"DDP_CONTROL", "/c/control"},
                                                    {"DDP_ERROR_FILE", "/c/rank2.error.json"},
                                                    {"CUDA_VISIBLE_DEVICES", ""},
                                                    {"OMP_NUM_THREADS", "2"}};
  EXPECT_EQ(variables, expected);
}

// D14
TEST(Plan, HostThreadsAreSharedOutUnlessTheUserChose) {
  EXPECT_EQ(plan_of({"--cpus", "3"}, machine_with(2)).omp_threads, 1);
  EXPECT_EQ(plan_of({"--cpus", "3"}, machine_with(8)).omp_threads, 2);
  EXPECT_EQ(plan_of({"--cpus", "3"}, machine_with(8), true).omp_threads, std::nullopt);
}

TEST(Plan, InheritedVariablesGiveWayToOurs) {
  Words const inherited{"HOME=/root", "RANK=9", "WITHOUT_EQUALS", "TORCHELASTIC_USE_AGENT_STORE=True",
                        "A=b=c",      "RANKS=1"};
  EXPECT_THAT(merge_environment(inherited, {{"RANK", "0"}, {"NEW", ""}}),
              ElementsAre("HOME=/root", "WITHOUT_EQUALS", "A=b=c", "RANKS=1", "RANK=0", "NEW="));
}

TEST(Plan, OnlyRankMustBeOneOfThem) {
  EXPECT_EQ(exit_code_of({"--cpus", "2", "--only-rank", "1"}, machine_with(2)), 0);
  EXPECT_EQ(exit_code_of({"--cpus", "2", "--only-rank", "2"}, machine_with(2)), 64);
}

TEST(Plan, JobIdsAreSafeAsNamesOfDirectories) {
  EXPECT_EQ(make_job_id("/opt/my prog/träin;x", "20260101-101010", 7), "tr__in_x-20260101-101010-7");
}

// L12
TEST(Plan, TheDescriptionShowsRanksDevicesCoresEnvironmentAndCommand) {
  std::string const text = describe(plan_of({"--cpus", "2", "--log-dir", "logs"}, machine_with(4)));
  for (char const* part : {"job       train-1", "local, on host", "./train --epochs 3", "logs", "4 allowed",
                           "OMP_NUM_THREADS=2", "rank 0: cpu:0, stdin as inherited",
                           "rank 1: cpu:0, stdin /dev/null", "  WORLD_SIZE=2", "  CUDA_VISIBLE_DEVICES=\n"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  EXPECT_THAT(describe(plan_of({"--no-log-files"}, machine_with(2))), HasSubstr("log files none"));
}

TEST(Machine, ReadsAQuotaOfCpus) {
  EXPECT_EQ(cpu_quota("200000 100000"), 2);
  EXPECT_EQ(cpu_quota("150000 100000"), 2);
  EXPECT_EQ(cpu_quota("1000 100000"), 1);
  EXPECT_EQ(cpu_quota("max 100000"), std::nullopt);
  EXPECT_EQ(cpu_quota(""), std::nullopt);
}

TEST(Machine, ThisOneHasACore) {
  Machine const machine = detect_machine();
  EXPECT_GE(machine.allowed_cores, 1);
  EXPECT_GE(machine.physical_cores, 1);
  EXPECT_LE(machine.physical_cores, 2) << "counted no further than the default needs";
  EXPECT_FALSE(machine.host.empty());
}

}  // namespace
}  // namespace ddp::launcher
