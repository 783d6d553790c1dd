// Memory that is not where its view says: what is refused, and what the message tells.
#include "device/memory/memory_place.hpp"

#include <gmock/gmock.h>

#include "ddp/core/text.hpp"

namespace ddp::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Kind = MemoryPlace::Kind;

constexpr int kVisible = 2;  // CUDA's number of cuda:1

std::string why(Device device, std::optional<MemoryPlace> found) {
  float element = 0;
  return why_memory_is_elsewhere({&element, Shape{1}, DType::f32, device}, found, kVisible);
}

TEST(MemoryPlace, MemoryOfAGpuInAViewThatDoesNotSaySoIsRefused) {
  auto const message = why(Device{}, MemoryPlace{Kind::gpu, 3});
  EXPECT_THAT(message, HasSubstr("f32[1] on cpu:0"));
  EXPECT_THAT(message, HasSubstr("is memory of a GPU (CUDA's number 3)"));
  EXPECT_THAT(message, HasSubstr("TensorView::device"));
}

TEST(MemoryPlace, MemoryOfTheHostInAViewOfAGpuIsRefused) {
  auto const message = why({DeviceKind::cuda, DeviceIndex{1}}, MemoryPlace{Kind::plain});
  EXPECT_THAT(message, HasSubstr("f32[1] on cuda:1"));
  EXPECT_THAT(message, HasSubstr("no memory of a GPU, but of the host"));
}

TEST(MemoryPlace, MemoryOfAnotherGpuIsRefused) {
  auto const message = why({DeviceKind::cuda, DeviceIndex{1}}, MemoryPlace{Kind::gpu, 0});
  EXPECT_THAT(message, HasSubstr("f32[1] on cuda:1, which is CUDA's number 2"));
  EXPECT_THAT(message, HasSubstr("is memory of CUDA's number 0"));
}

TEST(MemoryPlace, WhatTheDeviceReachesIsTaken) {
  Device const gpu{DeviceKind::cuda, DeviceIndex{1}};
  EXPECT_THAT(why(gpu, MemoryPlace{Kind::gpu, kVisible}), IsEmpty());
  EXPECT_THAT(why(gpu, MemoryPlace{Kind::pinned}), IsEmpty());
  EXPECT_THAT(why(gpu, MemoryPlace{Kind::managed}), IsEmpty());
  EXPECT_THAT(why(gpu, std::nullopt), IsEmpty());
  EXPECT_THAT(why(Device{}, MemoryPlace{Kind::plain}), IsEmpty());
  EXPECT_THAT(why(Device{}, MemoryPlace{Kind::pinned}), IsEmpty());
  EXPECT_THAT(why(Device{}, MemoryPlace{Kind::managed}), IsEmpty());
}

}  // namespace
}  // namespace ddp::testing
