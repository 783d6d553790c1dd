// L12: ddp-launch --check as a whole, over machines that are made up.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/check/machine_check.hpp"
#include "launcher/process/exit_code.hpp"
#include "support/fakes/made_up_machine.hpp"

namespace ddp::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(MachineCheck, AFitMachineWithGpusIsOkInEveryPoint) {
  auto const checks = checks_of({}, machine_with({gpu(0), gpu(1)}));
  EXPECT_THAT(names_of(checks),
              ElementsAre("driver", "CUDA", "GPU 0", "GPU 1", "peer access", "Linux", "cores", "/dev/shm",
                          "locked memory", "open files", "NCCL", "MPI"));
  for (Check const& check : checks) EXPECT_EQ(check.verdict, kOk) << check.name << ": " << check.found;
  EXPECT_EQ(exit_code_of(checks), 0);
  expect_whole(checks);
}

TEST(MachineCheck, AMachineWithoutGpusIsFitForCpuRanks) {
  Machine machine = machine_with({});
  machine.driver_version = "";
  auto const checks = checks_of({}, machine);
  EXPECT_EQ(names_of(checks).front(), "GPUs");
  EXPECT_THAT(checks.front().found, HasSubstr("no NVIDIA driver: ranks run on the CPU"));
  for (Check const& check : checks) EXPECT_EQ(check.verdict, kOk) << check.name << ": " << check.found;
  expect_whole(checks);
  EXPECT_THAT(named(checks, "cores").found, HasSubstr("for 2 CPU ranks"));
  Machine hidden = machine_with({gpu(0)});
  hidden.cuda_visible_devices = "";
  EXPECT_THAT(checks_of({}, hidden).front().found, HasSubstr("CUDA_VISIBLE_DEVICES= hides all 1"));
}

TEST(MachineCheck, OnlyTheGpusOfTheJobAreLookedAt) {
  Machine machine = machine_with({gpu(0, 0), gpu(1), gpu(2)});
  EXPECT_EQ(exit_code_of(checks_of({}, machine)), exit_code::kRetry) << "somebody fills GPU 0";
  auto const two = checks_of({"--gpus", "2,1"}, machine);
  EXPECT_EQ(exit_code_of(two), 0);
  EXPECT_THAT(names_of(two), ::testing::Contains("GPU 2"));
  EXPECT_THAT(names_of(two), Not(::testing::Contains("GPU 0")));
  auto const cpus = checks_of({"--cpus", "3"}, machine);
  EXPECT_EQ(exit_code_of(cpus), 0);
  EXPECT_THAT(named(cpus, "cores").found, HasSubstr("for 3 CPU ranks"));
  machine.cuda_visible_devices = "1";
  EXPECT_EQ(exit_code_of(checks_of({}, machine)), 0);
}

TEST(MachineCheck, AnUnknownGpuFailsAndABadListIsRefused) {
  auto const checks = checks_of({"--gpus", "7"}, machine_with({gpu(0)}));
  EXPECT_EQ(checks.front().verdict, kFailed);
  EXPECT_THAT(checks.front().found, HasSubstr("--gpus 7: there is no device 7"));
  EXPECT_EQ(exit_code_of(checks), exit_code::kNoDevice);
  EXPECT_THAT(names_of(checks), ::testing::Contains("MPI")) << "the rest is looked at all the same";
  expect_whole(checks);
  EXPECT_THROW(checks_of({"--gpus", "0,0"}, machine_with({gpu(0)})), ExitError);
}

TEST(MachineCheck, ADriverThatCannotListItsGpusFails) {
  Machine machine = machine_with({});
  machine.gpu_problem = "NVML does not start: version mismatch (18)";
  auto const checks = checks_of({}, machine);
  EXPECT_EQ(checks.front().verdict, kFailed);
  EXPECT_EQ(checks.front().found, machine.gpu_problem);
  EXPECT_EQ(exit_code_of(checks), exit_code::kNoDevice);
  EXPECT_EQ(exit_code_of(checks_of({"--cpus", "2"}, machine)), 0);
}

TEST(MachineCheck, ALostGpuFailsUnlessOthersWereNamed) {
  Machine machine = machine_with({gpu(0), gpu(1)});
  machine.gpu_problem = "GPU 2 of the driver cannot be asked: GPU is lost (15)";
  EXPECT_EQ(named(checks_of({}, machine), "driver").verdict, kFailed);
  EXPECT_EQ(named(checks_of({"--gpus", "0,1"}, machine), "driver").verdict, kWarning);
  EXPECT_THAT(names_of(checks_of({}, machine)), Not(::testing::Contains("CUDA_VISIBLE_DEVICES")));
  expect_whole(checks_of({}, machine));
}

TEST(MachineCheck, AVariableThatMeansLessThanItSaysIsAWarning) {
  Machine machine = machine_with({gpu(0), gpu(1)});
  machine.cuda_visible_devices = "0,5";
  Check const check = named(checks_of({}, machine), "CUDA_VISIBLE_DEVICES");
  EXPECT_EQ(check.verdict, kWarning);
  EXPECT_THAT(check.found, HasSubstr("leaves 1 GPU of its 2 entries"));
}

TEST(MachineCheck, TheExitCodeIsThatOfTheJobThatWouldFail) {
  Check const good{.name = "a"};
  Check const warning{.name = "b", .verdict = kWarning};
  Check const failed{.name = "c", .verdict = kFailed};
  Check const passing{.name = "d", .verdict = kFailed, .worth_retry = true};
  auto const code_of = [](std::vector<Check> const& checks) { return exit_code_of(checks); };
  EXPECT_EQ(code_of({}), 0);
  EXPECT_EQ(code_of({good, warning}), 0);
  EXPECT_EQ(code_of({good, passing, warning}), 75);
  EXPECT_EQ(code_of({passing, failed}), 69);
}

}  // namespace
}  // namespace ddp::launcher
