// L12: what --check says of GPUs, over machines that are made up.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/check/machine_check.hpp"
#include "support/fakes/made_up_machine.hpp"

namespace ddp::launcher {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(GpuChecks, AGpuTellsModelNumberMemoryAndWhoUsesIt) {
  PhysicalGpu const idle = gpu(1);
  Check const good = check_gpu({&idle, nullptr});
  EXPECT_EQ(good.verdict, kOk);
  EXPECT_EQ(good.name, "GPU 1");
  EXPECT_EQ(
      good.found,
      "NVIDIA H100, GPU-bbbbbbbb-0000-0000-0000-000000000000, 0000:1a:00.0, sm_90, 80 GiB of 80 GiB free");
  PhysicalGpu const used = gpu(1, 79, {4711, 4712});
  EXPECT_EQ(check_gpu({&used, nullptr}).verdict, kWarning);
  EXPECT_THAT(check_gpu({&used, nullptr}).found,
              HasSubstr("79 GiB of 80 GiB free, in use by pid 4711, 4712"));
  PhysicalGpu const by_nobody = gpu(1, 71);
  EXPECT_EQ(check_gpu({&by_nobody, nullptr}).verdict, kWarning)
      << "processes of other containers are not seen";
  PhysicalGpu const by_the_driver = gpu(1, 79);
  EXPECT_EQ(check_gpu({&by_the_driver, nullptr}).verdict, kOk);
  PhysicalGpu const full = gpu(1, 0, {4711});
  EXPECT_EQ(check_gpu({&full, nullptr}).verdict, kFailed);
  EXPECT_TRUE(check_gpu({&full, nullptr}).worth_retry);
  PhysicalGpu unknown = gpu(1);
  unknown.memory.reset();
  EXPECT_EQ(check_gpu({&unknown, nullptr}).verdict, kOk);
  EXPECT_THAT(check_gpu({&unknown, nullptr}).found, HasSubstr("memory unknown"));
}

TEST(GpuChecks, AnInstanceIsJudgedByItsOwnMemory) {
  PhysicalGpu cut = gpu(0, 40, {4711});
  cut.mig_mode = true;
  cut.mig = {{{"MIG-1"}, MemoryInfo{10_GiB, 10_GiB}}, {{"MIG-2"}, MemoryInfo{{}, 10_GiB}}};
  EXPECT_EQ(check_gpu({&cut, &cut.mig[0]}).verdict, kOk) << "the process may be a neighbour's";
  EXPECT_THAT(check_gpu({&cut, &cut.mig[0]}).found,
              AllOf(HasSubstr("MIG-1"), HasSubstr("10 GiB of 10 GiB free")));
  EXPECT_EQ(check_gpu({&cut, &cut.mig[1]}).verdict, kFailed);
  Machine const machine = machine_with({cut});
  auto const checks = checks_of({}, machine);
  EXPECT_THAT(named(checks, "peer access").found, HasSubstr("MIG instances have none"));
  EXPECT_THAT(named(checks, "cores").found, HasSubstr("for 2 GPU ranks"));
  EXPECT_EQ(named(checks, "/dev/shm").verdict, kOk);
  EXPECT_THAT(named(checks, "/dev/shm").found, HasSubstr("2 GPU ranks do without")) << "they share a card";
}

TEST(GpuChecks, TheDriverMustRunTheBuildsCuda) {
  Machine machine = machine_with({gpu(0)});
  EXPECT_EQ(check_cuda(machine, {"13.0.88", "", ""}).found, "driver 13.0; built with 13.0.88");
  EXPECT_EQ(check_cuda(machine, {"13.1.2", "", ""}).verdict, kOk) << "the same major version";
  EXPECT_EQ(check_cuda(machine, {"12.4", "", ""}).verdict, kOk);
  EXPECT_EQ(check_cuda(machine, {}).verdict, kWarning) << "a build without CUDA";
  machine.cuda_version = "12.8";
  Check const old = check_cuda(machine, {"13.0.88", "", ""});
  EXPECT_EQ(old.verdict, kFailed);
  EXPECT_EQ(old.expected, "a driver for CUDA 13 at least");
  machine.cuda_version = "";
  EXPECT_EQ(check_cuda(machine, {"13.0.88", "", ""}).verdict, kWarning);
}

TEST(GpuChecks, PeerAccessIsAMatrixOfTheJobsGpus) {
  Machine machine = machine_with({gpu(0), gpu(1), gpu(2)});
  Check const all = named(checks_of({}, machine), "peer access");
  EXPECT_EQ(all.found, "all pairs, over NVLink");
  EXPECT_THAT(all.details, ElementsAre("        GPU 0   GPU 1   GPU 2", "GPU 0   -       NVLink  NVLink",
                                       "GPU 1   NVLink  -       NVLink", "GPU 2   NVLink  NVLink  -"));
  machine.peers[0][1] = PeerAccess::none;
  machine.peers[2][0] = PeerAccess::direct;
  machine.peers[1][2] = PeerAccess::unknown;
  Check const some = named(checks_of({}, machine), "peer access");
  EXPECT_EQ(some.verdict, kWarning);
  EXPECT_EQ(some.found, "none from GPU 0 to 1; the driver does not tell of GPU 1 to 2");
  EXPECT_THAT(some.details[1], StartsWith("GPU 0   -       no      NVLink"));
  Check const chosen = named(checks_of({"--gpus", "2,0"}, machine), "peer access");
  EXPECT_EQ(chosen.verdict, kOk);
  EXPECT_EQ(chosen.found, "all pairs, some over PCIe");
  EXPECT_THAT(chosen.details,
              ElementsAre("        GPU 2   GPU 0", "GPU 2   -       PCIe", "GPU 0   NVLink  -"));
  machine.peers[0][2] = PeerAccess::direct;
  EXPECT_EQ(named(checks_of({"--gpus", "2,0"}, machine), "peer access").found, "all pairs, over PCIe");
  EXPECT_EQ(named(checks_of({"--gpus", "1"}, machine), "peer access").found, "one GPU");
  machine.peers.clear();
  EXPECT_EQ(named(checks_of({}, machine), "peer access").verdict, kWarning) << "an old driver does not tell";
}

}  // namespace
}  // namespace ddp::launcher
