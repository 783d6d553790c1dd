// Where kernels run when SMs are set aside for communication.
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <set>
#include <vector>

#include "ddp/core/text.hpp"
#include "ddp/device/cuda_stream.hpp"
#include "ddp/device/logical_device.hpp"
#include "ddp/device/memory.hpp"
#include "ddp/device/sm_partition.hpp"
#include "ddp/device/tensor_ops.hpp"
#include "support/errors.hpp"

namespace ddp::testing {
namespace {

using ::testing::HasSubstr;

constexpr Device kGpu{DeviceKind::cuda, DeviceIndex{0}};
constexpr int kBlocks = 4096;

// Long enough that the next blocks go elsewhere.
__global__ void note_sm(unsigned int* sm_of_block) {
  unsigned int sm = 0;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
  sm_of_block[blockIdx.x] = sm;
  for (int i = 0; i < 64; ++i) __nanosleep(1000);
}

// Those that so many blocks find.
std::set<int> sms_of(Stream& stream) {
  Tensor const found = zeros(Shape{kBlocks}, DType::i32, kGpu);
  note_sm<<<kBlocks, 64, 0, cuda_stream(stream).handle()>>>(static_cast<unsigned int*>(found.view().data));
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  std::vector<std::int32_t> host(kBlocks);
  copy_elements(view_of(std::span(host)), found, stream);
  stream.synchronize();
  return {host.begin(), host.end()};
}

TEST(SmPartition, KernelsRunOnTheirSideOnly) {
  SmPartition const partition(kGpu, 16);
  EXPECT_GE(partition.communication_sms(), 16);
  EXPECT_EQ(partition.communication_sms() + partition.compute_sms(), logical_device(kGpu).sms);
  auto const comm = partition.make_comm_stream();
  auto const compute = partition.make_compute_stream();
  auto const anywhere = make_compute_stream(kGpu);
  auto const on_comm = sms_of(*comm);
  auto const on_compute = sms_of(*compute);
  EXPECT_EQ(on_comm.size(), static_cast<std::size_t>(partition.communication_sms()));
  EXPECT_EQ(on_compute.size(), static_cast<std::size_t>(partition.compute_sms()));
  std::vector<int> both;
  std::set_intersection(on_comm.begin(), on_comm.end(), on_compute.begin(), on_compute.end(),
                        std::back_inserter(both));
  EXPECT_TRUE(both.empty()) << "shared: " << join(both, ", ");
  EXPECT_EQ(sms_of(*anywhere).size(), static_cast<std::size_t>(logical_device(kGpu).sms));
}

TEST(SmPartition, CommunicationGoesFirst) {
  SmPartition const partition(kGpu, 16);
  auto const priority_of = [](Stream& stream) {
    int priority = 0;
    EXPECT_EQ(cudaStreamGetPriority(cuda_stream(stream).handle(), &priority), cudaSuccess);
    return priority;
  };
  auto const comm = partition.make_comm_stream();
  auto const compute = partition.make_compute_stream();
  EXPECT_LT(priority_of(*comm), priority_of(*compute));
}

// Two collectives that ranks launch in different order would each keep the SMs that the other one needs.
TEST(SmPartition, OneStreamForCommunicationHasTheSmsSetAsideAndFurtherOnesEachAsManyOfTheOthers) {
  SmPartition const partition(kGpu, 16);
  auto const set_aside = static_cast<std::size_t>(partition.communication_sms());
  auto const others = static_cast<std::size_t>(partition.compute_sms());
  auto first = partition.make_comm_stream();
  std::vector<std::unique_ptr<Stream>> further;
  for (std::size_t i = 0; i < others / set_aside; ++i) further.push_back(partition.make_comm_stream());
  EXPECT_EQ(sms_of(*first).size(), set_aside);
  for (auto const& stream : further) EXPECT_EQ(sms_of(*stream).size(), others);
  auto const error = error_of<Error>([&] { static_cast<void>(partition.make_comm_stream()); });
  EXPECT_EQ(error.code(), ErrorCode::invalid_state);
  EXPECT_THAT(error.what(), HasSubstr("set fewer SMs aside (DDP_COMM_SMS"));
  first.reset();
  EXPECT_EQ(sms_of(*partition.make_comm_stream()).size(), set_aside);
}

TEST(SmPartition, ItsStreamsOutliveItAndAreOrderedByEvents) {
  auto streams = [] {
    SmPartition const partition(kGpu, 8);
    return std::make_pair(partition.make_comm_stream(), partition.make_compute_stream());
  }();
  Tensor const memory = zeros(Shape{std::size_t{64} << 20}, DType::u8, kGpu);
  std::vector<std::uint8_t> ones(memory.view().bytes(), 1);
  for (int i = 0; i < 20; ++i) zero_fill(memory, *streams.second);
  streams.first->wait(*streams.second);
  copy_elements(memory, view_of(std::span(ones)), *streams.first);
  streams.second->wait(*streams.first);
  std::vector<std::uint8_t> found(ones.size());
  copy_elements(view_of(std::span(found)), memory, *streams.second);
  streams.second->synchronize();
  EXPECT_EQ(found, ones);
}

TEST(SmPartition, WhatLeavesNothingToComputeOnIsRefused) {
  int const all = logical_device(kGpu).sms;
  for (int const sms : {0, -1, all, 100000}) {
    auto const error = error_of<Error>([&] { SmPartition const none(kGpu, sms); });
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument) << sms << ": " << error.what();
    EXPECT_THAT(error.what(), HasSubstr(text(sms, " SMs of cuda:0 for communication")));
  }
}

}  // namespace
}  // namespace ddp::testing
