#include "launcher/plan/plan.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "launcher/options/help.hpp"
#include "launcher/plan/program.hpp"
#include "launcher/process/exit_code.hpp"
#include "launcher/process/line_buffering.hpp"
#include "support/launcher/refusal.hpp"

namespace ddp::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using Words = std::vector<std::string>;

std::string const kUuidA = "GPU-aaaaaaaa-0000-0000-0000-000000000000";
std::string const kUuidB = "GPU-bbbbbbbb-0000-0000-0000-000000000000";

Machine machine_with(int cores, std::vector<PhysicalGpu> gpus = {}) {
  Machine machine;
  machine.host = "host";
  machine.allowed_cores = cores;
  machine.physical_cores = cores;
  machine.gpus = std::move(gpus);
  return machine;
}

PhysicalGpu const kGpuA{.uuid = {kUuidA}, .name = "NVIDIA H200", .index = PhysicalIndex{0}};
PhysicalGpu const kGpuB{.uuid = {kUuidB}, .name = "NVIDIA H200", .index = PhysicalIndex{1}};

Plan plan_of(Words words, Machine const& machine, std::set<std::string> const& set = {}) {
  words.insert(words.end(), {"./train", "--epochs", "3"});
  Options const options = parse_options(words);
  return make_plan(options, machine, choose_gpus(options, machine), "train-1", [&](std::string const& name) {
    return set.contains(name) ? std::optional<std::string>("") : std::nullopt;
  });
}

std::map<std::string, std::string> environment(Plan const& plan, std::size_t rank) {
  std::map<std::string, std::string> result;
  for (auto const& [name, value] : rank_environment(plan, plan.ranks[rank], {"/c/control", "/c", "4711"})) {
    EXPECT_TRUE(result.emplace(name, value).second) << name << " twice";
  }
  return result;
}

struct Refusal {
  int exit_code = 0;
  std::string words;
};

Refusal refusal_of(Words const& words, Machine const& machine) {
  try {
    static_cast<void>(plan_of(words, machine));
  } catch (ExitError const& error) {
    return {error.exit_code(), error.what()};
  }
  return {};
}

int exit_code_of(Words const& words, Machine const& machine) { return refusal_of(words, machine).exit_code; }

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
  Machine machine = machine_with(8, {kGpuA, kGpuB});
  EXPECT_EQ(plan_of({}, machine).ranks.size(), 2U);
  machine.cuda_visible_devices = "1";
  Plan const one = plan_of({}, machine);
  ASSERT_EQ(one.ranks.size(), 1U);
  EXPECT_EQ(one.ranks[0].gpu, kUuidB);
  machine.cuda_visible_devices = "-1";
  EXPECT_EQ(plan_of({}, machine).ranks[0].device.kind, DeviceKind::cpu) << "-1 leaves no GPU";
  EXPECT_EQ(plan_of({"--cpus", "3"}, machine_with(8, {kGpuA})).ranks.size(), 3U);
}

// L2
TEST(Plan, EveryRankSeesTheWholeListAndBindsItsLogicalDevice) {
  Machine const machine = machine_with(8, {kGpuA, kGpuB});
  Plan const plan = plan_of({"--gpus", "1,0"}, machine);
  ASSERT_EQ(plan.ranks.size(), 2U);
  for (std::size_t r : {0U, 1U})
    EXPECT_EQ(environment(plan, r)["CUDA_VISIBLE_DEVICES"], kUuidB + "," + kUuidA);
  EXPECT_EQ(to_string(plan.ranks[1].device), "cuda:1");
  EXPECT_EQ(plan.ranks[1].gpu, kUuidA);
  EXPECT_EQ(environment(plan, 1)["LOCAL_RANK"], "1");
}

// L2
TEST(Plan, AMigRankSeesItsOwnInstanceOnly) {
  std::string const one = "MIG-11111111-0000-0000-0000-000000000000";
  std::string const two = "MIG-22222222-0000-0000-0000-000000000000";
  PhysicalGpu const split{.uuid = {kUuidA}, .name = "NVIDIA H200", .mig = {{one}, {two}}, .mig_mode = true};
  Machine machine = machine_with(8, {split});
  for (std::string const& inherited : {one + "," + two, std::string("0")}) {
    machine.cuda_visible_devices = inherited;
    Plan const plan = plan_of({"--gpus", "all", "--virtual", "2"}, machine);
    ASSERT_EQ(plan.ranks.size(), 4U);
    EXPECT_EQ(environment(plan, 1)["CUDA_VISIBLE_DEVICES"], one);
    EXPECT_EQ(environment(plan, 2)["CUDA_VISIBLE_DEVICES"], two);
    EXPECT_EQ(to_string(plan.ranks[2].device), "cuda:0") << "the only one that it sees";
    EXPECT_FALSE(environment(plan, 2).contains("DDP_VIRTUAL_DEVICES"));
  }
  EXPECT_EQ(plan_of({}, machine_with(8, {split, kGpuB})).ranks.size(), 3U) << "two instances and a GPU";
  PhysicalGpu const uncut{.uuid = {kUuidA}, .name = "NVIDIA H200", .mig_mode = true};
  EXPECT_EQ(plan_of({}, machine_with(8, {uncut, kGpuB})).ranks.size(), 1U) << "CUDA sees nothing of it";
}

// L1
TEST(Plan, VirtualPutsSeveralRanksOnEachGpu) {
  Plan const plan = plan_of({"--gpus", "0,1", "--virtual", "2"}, machine_with(8, {kGpuA, kGpuB}));
  ASSERT_EQ(plan.ranks.size(), 4U);
  EXPECT_EQ(plan.ranks[1].gpu, kUuidA);
  EXPECT_EQ(plan.ranks[2].gpu, kUuidB);
  EXPECT_EQ(environment(plan, 3)["CUDA_VISIBLE_DEVICES"], kUuidA + "," + kUuidB);
  EXPECT_EQ(environment(plan, 3)["DDP_VIRTUAL_DEVICES"], "2");
  EXPECT_EQ(to_string(plan.ranks[3].device), "cuda:3");
  EXPECT_FALSE(environment(plan_of({}, machine_with(8, {kGpuA})), 0).contains("DDP_VIRTUAL_DEVICES"));
  EXPECT_EQ(plan_of({"--gpus", "0", "--virtual", "100"}, machine_with(2, {kGpuA})).ranks.size(), 100U);
  EXPECT_EQ(exit_code_of({"--gpus", "0,1", "--virtual", "1000"}, machine_with(2, {kGpuA, kGpuB})), 64);
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

PhysicalGpu with_free(PhysicalGpu gpu, Bytes free, std::vector<pid_t> processes) {
  gpu.memory = MemoryInfo{free, 141_GiB};
  gpu.compute_processes = std::move(processes);
  return gpu;
}

TEST(Plan, AFullGpuEndsIn75NamingItAndWhoUsesIt) {
  Machine machine = machine_with(8, {kGpuA, with_free(kGpuB, 100_MiB, {4711, 4712})});
  for (Words const& words : {Words{}, Words{"--gpus", "0,1"}}) {
    auto const [code, message] = refusal_of(words, machine);
    EXPECT_EQ(code, 75);
    EXPECT_THAT(message, HasSubstr("GPU 1 (NVIDIA H200 " + kUuidB +
                                   ") has 100 MiB of 141 GiB free, in use by pid "
                                   "4711, 4712"));
    EXPECT_THAT(message, Not(HasSubstr(kUuidA)));
  }
  EXPECT_EQ(exit_code_of({"--gpus", "0"}, machine), 0) << "the other one is free";
  machine.gpus[1] = with_free(kGpuB, 512_MiB, {4711});
  EXPECT_EQ(exit_code_of({}, machine), 0);
  PhysicalGpu split{.uuid = {kUuidA}, .name = "NVIDIA H200", .mig = {{"MIG-1", MemoryInfo{1_MiB, 16_GiB}}}};
  split.mig_mode = true;
  EXPECT_EQ(exit_code_of({}, machine_with(2, {split})), 75);
}

Words warnings_of(Words const& words, Machine const& machine) { return plan_of(words, machine).warnings; }

// D2
TEST(Plan, IndicesOfDifferentModelsAreWarnedOf) {
  PhysicalGpu other = kGpuB;
  other.name = "NVIDIA L4";
  Machine machine = machine_with(8, {kGpuA, other});
  EXPECT_THAT(warnings_of({"--gpus", "1"}, machine), ElementsAre(HasSubstr("1 = NVIDIA L4")));
  EXPECT_THAT(warnings_of({"--gpus", kUuidB}, machine), ElementsAre());
  EXPECT_THAT(warnings_of({}, machine), ElementsAre());
  EXPECT_THAT(warnings_of({"--gpus", "1"}, machine_with(8, {kGpuA, kGpuB})), ElementsAre());
  machine.cuda_visible_devices = "1";
  EXPECT_THAT(warnings_of({}, machine), ElementsAre(HasSubstr("CUDA_DEVICE_ORDER=PCI_BUS_ID")));
  machine.cuda_device_order = "PCI_BUS_ID";
  EXPECT_THAT(warnings_of({}, machine), ElementsAre());
}

// D2
TEST(Plan, IndicesCountAsTheDriverSaysThatCudaDoes) {
  PhysicalGpu other = kGpuB;
  other.name = "NVIDIA L4";
  Machine machine = machine_with(8, {kGpuA, other});
  machine.cuda_order = {{kUuidB}, {kUuidA}};
  machine.cuda_visible_devices = "0";
  EXPECT_EQ(plan_of({}, machine).ranks.at(0).gpu, kUuidB);
  EXPECT_THAT(warnings_of({}, machine), ElementsAre()) << "nothing is unsure";
  machine.cuda_visible_devices.reset();
  EXPECT_EQ(plan_of({"--gpus", "1"}, machine).ranks.at(0).gpu, kUuidA);
}

TEST(Plan, AnOddCudaVisibleDevicesIsWarnedOfAndReadAsCudaDoes) {
  Machine machine = machine_with(1, {kGpuA, kGpuB});
  machine.cuda_visible_devices = "1,9";
  EXPECT_EQ(plan_of({}, machine).ranks.size(), 1U);
  EXPECT_THAT(warnings_of({}, machine),
              ElementsAre(HasSubstr("CUDA_VISIBLE_DEVICES=1,9 leaves 1 GPU of its 2")));
  machine.cuda_visible_devices = "";
  EXPECT_EQ(plan_of({}, machine).ranks[0].device.kind, DeviceKind::cpu);
  EXPECT_THAT(warnings_of({}, machine), ElementsAre());
}

// D9: the CPU stands for as many devices as a GPU would.
TEST(Plan, VirtualWithoutGpusIsOfTheCpu) {
  Plan const plan = plan_of({"--virtual", "3"}, machine_with(2));
  ASSERT_EQ(plan.ranks.size(), 3U);
  EXPECT_EQ(plan.ranks[2].device, Device{});
  EXPECT_EQ(environment(plan, 2)["DDP_VIRTUAL_DEVICES"], "3");
  EXPECT_EQ(environment(plan, 2)["CUDA_VISIBLE_DEVICES"], "");
  EXPECT_FALSE(environment(plan_of({"--cpus", "3"}, machine_with(2)), 0).contains("DDP_VIRTUAL_DEVICES"));
}

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
  Machine machine = machine_with(2, {kGpuA, kGpuB});
  machine.cuda_visible_devices = "1";
  EXPECT_EQ(exit_code_of({"--gpus", "0"}, machine), 0);
  EXPECT_EQ(exit_code_of({"--gpus", "0,1"}, machine), 69);
}

TEST(Plan, ADriverThatDoesNotListItsGpusMeansCpuRanksWithAWarningOr69) {
  Machine machine = machine_with(2);
  machine.gpu_problem = "NVML does not start";
  EXPECT_EQ(plan_of({}, machine).ranks[0].device.kind, DeviceKind::cpu);
  EXPECT_THAT(warnings_of({}, machine), ElementsAre("NVML does not start; starting CPU ranks"));
  EXPECT_THAT(warnings_of({"--cpus", "2"}, machine), ElementsAre());
  auto const [code, message] = refusal_of({"--gpus", "0"}, machine);
  EXPECT_EQ(code, 69);
  EXPECT_THAT(message, HasSubstr("NVML does not start"));
  EXPECT_EQ(exit_code_of({"--gpus", "0,0"}, machine), 64) << "a bad list is a bad list";
}

TEST(Plan, CpuRanksWhereGpusAreNamedAndNoneIsThereAreAWarning) {
  Machine machine = machine_with(2);
  for (char const* names : {"0", "1,0", " 3", "GPU-1234"}) {
    machine.cuda_visible_devices = names;
    EXPECT_THAT(warnings_of({}, machine), ElementsAre(HasSubstr(std::string("CUDA_VISIBLE_DEVICES=") + names +
                                                                " names GPUs, and no NVIDIA driver")));
    EXPECT_THAT(warnings_of({"--cpus", "2"}, machine), ElementsAre()) << "they were asked for";
  }
  for (char const* none : {"", "-1", "none"}) {
    machine.cuda_visible_devices = none;
    EXPECT_THAT(warnings_of({}, machine), ElementsAre()) << none;
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

// L11
TEST(LauncherPlan, GpuRanksKeepToTheCoresNearTheirGpu) {
  Machine machine = machine_with(4, {kGpuA, kGpuB});
  machine.cpus = {{0, 0, 0}, {1, 1, 0}, {2, 2, 1}, {3, 3, 1}};
  machine.gpu_nodes = {{kGpuA.index, 1}, {kGpuB.index, 0}};
  Plan const plan = plan_of({}, machine);
  EXPECT_THAT(plan.ranks[0].cpus, ElementsAre(2, 3));
  EXPECT_THAT(plan.ranks[1].cpus, ElementsAre(0, 1));
  EXPECT_THAT(describe(plan), HasSubstr(", cores 2-3, "));
  Plan const free = plan_of({"--no-affinity"}, machine);
  EXPECT_THAT(free.ranks[0].cpus, ElementsAre());
  EXPECT_THAT(describe(free), Not(HasSubstr(", cores ")));
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
