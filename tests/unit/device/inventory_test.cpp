#include "ddp/device/inventory.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/fakes/fake_nvml.hpp"

namespace ddp {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Inventory inventory_of(char const* gpus) {
  setenv("FAKE_NVML", gpus, 1);
  return read_inventory(testing::kFakeNvml);
}

Inventory all_of(char const* gpus, char const* peers, char const* cuda = "13000") {
  setenv("FAKE_NVML", gpus, 1);
  setenv("FAKE_NVML_PEERS", peers, 1);
  setenv("FAKE_NVML_CUDA", cuda, 1);
  return read_inventory(testing::kFakeNvml, InventoryDetail::peers);
}

// D3
TEST(Inventory, HoldsWhatTheDriverSaysOfEveryGpu) {
  Inventory const inventory = inventory_of("H200 H200/100/4711/4712");
  EXPECT_EQ(inventory.problem, "");
  EXPECT_EQ(inventory.driver_version, "580.00.01");
  ASSERT_EQ(inventory.gpus.size(), 2U);
  PhysicalGpu const& first = inventory.gpus[0];
  EXPECT_EQ(first.index, 0);
  EXPECT_EQ(first.uuid, "GPU-aaaaaaaa-0000-0000-0000-000000000000");
  EXPECT_EQ(first.name, "NVIDIA H200");
  EXPECT_EQ(first.pci_bus_id, "0000:1a:00.0");
  EXPECT_EQ(first.compute_major * 10 + first.compute_minor, 90);
  ASSERT_TRUE(first.memory);
  EXPECT_EQ(first.memory->total, 143771_MiB);
  EXPECT_EQ(first.memory->free, first.memory->total);
  EXPECT_THAT(first.compute_processes, IsEmpty());
  EXPECT_FALSE(first.mig_mode);
  PhysicalGpu const& full = inventory.gpus[1];
  EXPECT_EQ(full.index, 1);
  EXPECT_EQ(full.pci_bus_id, "0000:1b:00.0");
  EXPECT_EQ(full.memory->free, 100_MiB) << "a full GPU is listed all the same";
  EXPECT_THAT(full.compute_processes, ElementsAre(4711, 4712));
}

// D3
TEST(Inventory, ManyProcessesOnOneGpuAreAllListed) {
  std::string crowd = "H200/100";
  for (int pid = 1; pid <= 100; ++pid) crowd += "/" + std::to_string(pid);
  EXPECT_EQ(inventory_of(crowd.c_str()).gpus.at(0).compute_processes.size(), 100U);
}

TEST(Inventory, AGpuInMigModeHasItsInstances) {
  Inventory const inventory = inventory_of("H200-mig2 H200");
  ASSERT_EQ(inventory.gpus.size(), 2U);
  EXPECT_TRUE(inventory.gpus[0].mig_mode);
  ASSERT_EQ(inventory.gpus[0].mig.size(), 2U) << "of 7 places";
  EXPECT_EQ(inventory.gpus[0].mig[1].uuid, "MIG-aaaaaaaa-0000-0000-0000-000000000002");
  EXPECT_TRUE(inventory.gpus[0].mig[1].memory);
  EXPECT_FALSE(inventory.gpus[1].mig_mode);
}

TEST(Inventory, AGpuAndAnInstanceAreFoundByTheirIds) {
  Inventory const inventory = inventory_of("H200-mig2 H200/100");
  GpuId const part{"MIG-aaaaaaaa-0000-0000-0000-000000000002"};
  auto const instance = find_gpu(inventory.gpus, part);
  ASSERT_TRUE(instance);
  EXPECT_EQ(instance->gpu, &inventory.gpus[0]);
  EXPECT_EQ(instance->instance, &inventory.gpus[0].mig[1]);
  EXPECT_EQ(instance->uuid(), part);
  auto const whole = find_gpu(inventory.gpus, inventory.gpus[1].uuid);
  ASSERT_TRUE(whole);
  EXPECT_EQ(whole->instance, nullptr);
  EXPECT_EQ(whole->memory()->free, 100_MiB);
  EXPECT_FALSE(find_gpu(inventory.gpus, {"GPU-ffffffff-0000-0000-0000-000000000000"}));
  EXPECT_FALSE(find_gpu(inventory.gpus, {})) << "a CPU has no id";
}

// D3
TEST(Inventory, NoLibraryAndNoGpuAreNormalAnswers) {
  Inventory const none = inventory_of("none");
  EXPECT_THAT(none.gpus, IsEmpty());
  EXPECT_EQ(none.problem, "");
  Inventory const nothing = read_inventory("/nowhere/libnvidia-ml.so.1");
  EXPECT_THAT(nothing.gpus, IsEmpty());
  EXPECT_EQ(nothing.driver_version, "");
  EXPECT_THAT(nothing.problem, HasSubstr("/nowhere/libnvidia-ml.so.1"));
}

TEST(Inventory, ALibraryThatDoesNotStartIsEmptyWithItsReason) {
  Inventory const inventory = inventory_of("error=9");
  EXPECT_THAT(inventory.gpus, IsEmpty());
  EXPECT_THAT(inventory.problem, HasSubstr("NVML, the driver's library, does not start: a fake error (9)"));
}

TEST(Inventory, ALibraryOfAnotherKindIsEmptyWithItsReason) {
  Inventory const inventory = read_inventory("libm.so.6");
  EXPECT_THAT(inventory.gpus, IsEmpty());
  EXPECT_THAT(inventory.problem, HasSubstr("libm.so.6 has no function nvmlInit_v2"));
}

TEST(Inventory, GpusOfOthersAreLeftOutAndLostOnesAreNamed) {
  Inventory const inventory = inventory_of("denied H200 lost H100");
  ASSERT_EQ(inventory.gpus.size(), 2U);
  EXPECT_EQ(inventory.gpus[0].index, 0) << "counted as CUDA counts what it can open";
  EXPECT_EQ(inventory.gpus[1].name, "NVIDIA H100");
  EXPECT_EQ(inventory.problem, "GPU 2 of the driver cannot be asked: GPU is lost (15)");
}

// L12
TEST(Inventory, PeerAccessIsAskedOfEveryPairInBothDirections) {
  using enum PeerAccess;
  Inventory const all = all_of("H200 H200 H200", "nvlink 0-1=pci 1-2=none 2-0=unknown");
  EXPECT_THAT(all.peers, ElementsAre(ElementsAre(itself, direct, nvlink), ElementsAre(nvlink, itself, none),
                                     ElementsAre(unknown, nvlink, itself)));
  EXPECT_EQ(all.cuda_version, "13.0");
  Inventory const some = all_of("denied H200 lost H100", "none 1-3=nvlink");
  EXPECT_THAT(some.peers, ElementsAre(ElementsAre(itself, nvlink), ElementsAre(none, itself)))
      << "of those that are listed";
}

// L12
TEST(Inventory, PeersAndCudaAreLeftOutUnlessAskedForAndWhereTheDriverDoesNotTell) {
  Inventory const unasked = inventory_of("H200 H200");
  EXPECT_THAT(unasked.peers, IsEmpty());
  EXPECT_EQ(unasked.cuda_version, "");
  Inventory const untold = all_of("H200", "nvlink", "none");
  EXPECT_EQ(untold.cuda_version, "") << "libcuda.so.1 is not there";
  EXPECT_EQ(untold.problem, "");
  EXPECT_EQ(all_of("H200", "nvlink", "12080").cuda_version, "12.8");
}

}  // namespace
}  // namespace ddp
