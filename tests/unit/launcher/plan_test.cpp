#include "launcher/plan/plan.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "launcher/options/help.hpp"
#include "launcher/plan/program.hpp"
#include "launcher/process/exit_code.hpp"
#include "launcher/process/line_buffering.hpp"
#include "support/launcher/local_plans.hpp"
#include "support/launcher/refusal.hpp"

namespace ddp::launcher {
namespace {

using local_plans::environment;
using local_plans::exit_code_of;
using local_plans::kGpuA;
using local_plans::kGpuB;
using local_plans::kUuidB;
using local_plans::machine_with;
using local_plans::plan_of;
using Words = std::vector<std::string>;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

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

// launcher.md, NCCL
TEST(Plan, RanksOfOneHostOpenNoPortToTheOutsideUnlessTheUserChose) {
  Machine const machine = machine_with(8, {kGpuA, kGpuB});
  auto const variables = environment(plan_of({}, machine), 1);
  EXPECT_EQ(variables.at("NCCL_SOCKET_IFNAME"), "lo");
  EXPECT_EQ(variables.at("NCCL_RAS_ENABLE"), "0");
  auto const chosen = environment(plan_of({}, machine, {"NCCL_SOCKET_IFNAME"}), 1);
  EXPECT_FALSE(chosen.contains("NCCL_SOCKET_IFNAME")) << "inherited as it is";
  EXPECT_EQ(chosen.at("NCCL_RAS_ENABLE"), "0");
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
                                                    {"TORCHELASTIC_ERROR_FILE", "/c/rank2.torchelastic.json"},
                                                    {"DDP_JOB_ID", "train-1"},
                                                    {"DDP_GENERATION", "0"},
                                                    {"DDP_CONTROL", "/c/control"},
                                                    {"DDP_ERROR_FILE", "/c/rank2.error.json"},
                                                    {"CUDA_VISIBLE_DEVICES", ""},
                                                    {"OMP_NUM_THREADS", "2"}};
  EXPECT_EQ(variables, expected);
  auto survives = expected;
  survives.emplace("DDP_SURVIVE", "1");
  EXPECT_EQ(environment(plan_of({"--cpus", "3", "--survive"}, machine_with(6)), 2), survives);
}

// L4
TEST(Plan, HelpNamesEveryVariableOfARank) {
  std::set<std::string> said;
  HelpSection const of_ranks = environment_help().back();
  for (HelpEntry const& entry : of_ranks.entries) {
    said.insert(entry.names.begin(), entry.names.end());
  }
  for (Words const& words : {Words{"--survive"}, {"--virtual", "2"}}) {
    Plan plan = plan_of(words, machine_with(4, {kGpuA, kGpuB}));
    plan.shows_live_lines = true;
    plan.window = {{"COLUMNS", "80"}, {"LINES", "24"}};
    plan.line_buffering = line_buffering("/lib/ddp_line_buffer.so", [](auto const&) { return std::nullopt; });
    JobFacts facts{"/c/control", "/c", "4711", "/flight", "1:2"};
    facts.replacement = 1;
    for (auto const& [name, value] : rank_environment(plan, plan.ranks[0], facts)) {
      EXPECT_TRUE(said.contains(name)) << name;
    }
  }
}

// D14
TEST(Plan, HostThreadsAreSharedOutUnlessTheUserChose) {
  EXPECT_EQ(plan_of({"--cpus", "3"}, machine_with(2)).defaults.omp_threads, 1);
  EXPECT_EQ(plan_of({"--cpus", "3"}, machine_with(8)).defaults.omp_threads, 2);
  EXPECT_EQ(plan_of({"--cpus", "3"}, machine_with(8), {"OMP_NUM_THREADS"}).defaults.omp_threads,
            std::nullopt);
}

TEST(Plan, InheritedVariablesGiveWayToOurs) {
  Words const inherited{
      "HOME=/root",    "RANK=9",  "WITHOUT_EQUALS",        "TORCHELASTIC_USE_AGENT_STORE=True",
      "A=b=c",         "RANKS=1", "DDP_VIRTUAL_DEVICES=2", "TORCHELASTIC_ERROR_FILE=/stale",
      "DDP_STDOUT=1:2"};
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
  EXPECT_THAT(describe(plan_of({"--gpus", "1"}, machine_with(2, {kGpuA, kGpuB}))),
              HasSubstr("rank 0: cuda:0 = NVIDIA H200 " + kUuidB + ", stdin"));
}

TEST(Machine, ThisOneHasACore) {
  Machine const machine = detect_machine(false);
  EXPECT_GE(machine.allowed_cores, 1);
  EXPECT_GE(machine.physical_cores, 1);
  EXPECT_LE(machine.physical_cores, 2) << "counted no further than the default needs";
  EXPECT_FALSE(machine.host.empty());
}

TEST(Plan, R26NoMoreRanksMustSurviveThanThereAre) {
  EXPECT_EQ(plan_of({"--cpus", "3", "--survive", "--min-ranks", "3"}, machine_with(4)).min_ranks, 3);
  EXPECT_FALSE(plan_of({"--cpus", "3"}, machine_with(4)).min_ranks);
  auto const refused = [](Words const& words, Machine const& machine) {
    return refusal([&] { static_cast<void>(plan_of(words, machine)); });
  };
  EXPECT_THAT(refused({"--cpus", "3", "--survive", "--min-ranks", "4"}, machine_with(4)),
              HasSubstr("--min-ranks 4: the job has 3 ranks"));
  EXPECT_THAT(refused({"--survive", "--min-ranks", "3"}, machine_with(4, {kGpuA, kGpuB})),
              HasSubstr("--min-ranks 3: the job has 2 ranks"));
}

int exit_code_for(std::string const& name, std::string const& path) {
  try {
    static_cast<void>(resolve_program(name, path));
  } catch (ExitError const& error) {
    return error.exit_code();
  }
  return 0;
}

// F20
TEST(Program, IsLookedForAsAShellWould) {
  EXPECT_EQ(resolve_program("sh", "/nowhere:/bin"), "/bin/sh");
  EXPECT_EQ(resolve_program("/bin/sh", ""), "/bin/sh");
  EXPECT_EQ(exit_code_for("no-such-program", "/bin:/usr/bin"), 127);
  EXPECT_EQ(exit_code_for("/no/such/program", "/bin"), 127);
  EXPECT_EQ(exit_code_for("/etc/passwd/x", "/bin"), 127);
  EXPECT_EQ(exit_code_for("/etc/passwd", "/bin"), 126);
  EXPECT_EQ(exit_code_for("/bin", "/bin"), 126) << "a directory";
  EXPECT_EQ(exit_code_for("passwd", "/etc"), 126) << "there, but not executable";
}

}  // namespace
}  // namespace ddp::launcher
