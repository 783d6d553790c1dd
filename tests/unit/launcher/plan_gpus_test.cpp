// Which GPUs the ranks of a plan get, and which they are refused.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "support/launcher/local_plans.hpp"

namespace ddp::launcher {
namespace {

using local_plans::environment;
using local_plans::exit_code_of;
using local_plans::kGpuA;
using local_plans::kGpuB;
using local_plans::kUuidA;
using local_plans::kUuidB;
using local_plans::machine_with;
using local_plans::plan_of;
using local_plans::refusal_of;
using local_plans::warnings_of;
using Words = std::vector<std::string>;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

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
  PhysicalGpu const split{
      .uuid = {kUuidA}, .name = "NVIDIA H200", .mig = {{{one}}, {{two}}}, .mig_mode = true};
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
  PhysicalGpu split{.uuid = {kUuidA}, .name = "NVIDIA H200", .mig = {{{"MIG-1"}, MemoryInfo{1_MiB, 16_GiB}}}};
  split.mig_mode = true;
  EXPECT_EQ(exit_code_of({}, machine_with(2, {split})), 75);
}

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

}  // namespace
}  // namespace ddp::launcher
