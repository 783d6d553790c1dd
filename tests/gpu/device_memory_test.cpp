// D9, D10, D13, D5 on a GPU that is cut into virtual devices: each has settings of its own.
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "ddp/device/logical_device.hpp"
#include "ddp/device/memory.hpp"
#include "ddp/device/memory_settings.hpp"
#include "ddp/device/physical_device.hpp"
#include "ddp/device/queries.hpp"
#include "ddp/device/tensor_ops.hpp"
#include "device/cuda/backend.hpp"
#include "support/errors.hpp"

namespace ddp::testing {
namespace {

using ::testing::HasSubstr;

// Which slice of the first GPU a test uses for the first time: settings come before the first memory.
enum Slice : int { kLimited, kCounted, kFilled, kFraction, kGreedy, kPlain, kSlices };

Device cuda_device(int index) { return {DeviceKind::cuda, DeviceIndex{index}}; }

std::vector<std::optional<Bytes>> limits_of_slices() {
  std::vector<std::optional<Bytes>> limits(kSlices);
  limits[kLimited] = 256_MiB;
  limits[kFilled] = 1_GiB;
  return limits;
}

Tensor bytes_on(Device device, Bytes bytes) { return zeros(Shape{bytes.value}, DType::u8, device); }

Bytes driver_says(Device device, cudaMemPoolAttr attribute) {
  std::uint64_t bytes = 0;
  auto* const pool = static_cast<cudaMemPool_t>(cuda::pool_handle(device));
  EXPECT_EQ(cudaMemPoolGetAttribute(pool, attribute, &bytes), cudaSuccess);
  return Bytes{bytes};
}

TEST(SlicesOfOneGpu, D9AreTheDevicesThatWereAskedFor) {
  auto const all = logical_devices();
  ASSERT_GE(all.size(), static_cast<std::size_t>(kSlices));
  EXPECT_EQ(all[kLimited].limit, 256_MiB);
  EXPECT_EQ(all[kLimited].visible, all[kPlain].visible);
}

TEST(SlicesOfOneGpu, D9MoreThanTheLimitFailsThoughTheCardHasRoom) {
  Tensor const first = bytes_on(cuda_device(kLimited), 200_MiB);
  auto const error = error_of([] { static_cast<void>(bytes_on(cuda_device(kLimited), 100_MiB)); });
  EXPECT_EQ(error.code(), ErrorCode::out_of_memory);
  EXPECT_THAT(error.what(), HasSubstr("out of memory on cuda:0: its limit is 256 MiB, 200 MiB are in use"));
  EXPECT_THAT(error.what(), HasSubstr("asks for 100 MiB more"));
  EXPECT_GT(memory_info(cuda_device(kLimited)).free, 100_MiB);
  EXPECT_EQ(bytes_on(cuda_device(kPlain), 100_MiB).view().bytes(), Bytes{100_MiB}.value)
      << "another slice has room";
  EXPECT_EQ(bytes_on(cuda_device(kLimited), 56_MiB).view().bytes(), Bytes{56_MiB}.value);
}

TEST(SlicesOfOneGpu, D10CountersAgreeWithTheDrivers) {
  Device const device = cuda_device(kCounted);
  Bytes const before = memory_info(device).free;
  Tensor const kept = bytes_on(device, 64_MiB);
  { Tensor const more = bytes_on(device, 30_MiB); }
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);  // freed in the order of the pool's stream
  MemoryStats const use = memory_stats(device);
  EXPECT_EQ(use.in_use, 64_MiB);
  EXPECT_EQ(use.peak, 94_MiB);
  auto const near = [](Bytes ours, Bytes drivers) {
    EXPECT_NEAR(static_cast<double>(ours.value), static_cast<double>(drivers.value), 2.0 * 512);
  };
  near(use.in_use, driver_says(device, cudaMemPoolAttrUsedMemCurrent));
  near(use.peak, driver_says(device, cudaMemPoolAttrUsedMemHigh));
  EXPECT_EQ(use.reserved, driver_says(device, cudaMemPoolAttrReservedMemCurrent));
  EXPECT_GE(use.reserved, use.peak);
  // Other processes may have come and gone; this one has at least what it uses.
  EXPECT_LE(memory_info(device).free + use.in_use, before);
  reset_peak_memory_stats(device);
  EXPECT_EQ(memory_stats(device).peak, 64_MiB);
}

TEST(SlicesOfOneGpu, D10EmptyCacheGivesBackWhatIsNotUsed) {
  Device const device = cuda_device(kPlain);
  { Tensor const gone = bytes_on(device, 512_MiB); }
  Bytes const held = memory_stats(device).reserved;
  Bytes const free = memory_info(device).free;
  EXPECT_GE(held, 512_MiB) << "kept for the next allocation";
  empty_cache(device);
  EXPECT_LE(memory_stats(device).reserved + 512_MiB, held);
  EXPECT_GE(memory_info(device).free, free + 256_MiB);
}

TEST(SlicesOfOneGpu, D10WithoutGrowthThePoolHasItsLimitFromTheStart) {
  Device const device = cuda_device(kFilled);
  set_memory_growth(device, false);
  Tensor const first = bytes_on(device, 1_MiB);
  EXPECT_GE(memory_stats(device).reserved, 1_GiB);
  EXPECT_EQ(memory_stats(device).in_use, 1_MiB);
  Bytes const free = memory_info(device).free;
  Tensor const more = bytes_on(device, 512_MiB);
  EXPECT_GE(memory_stats(device).reserved, 1_GiB);
  EXPECT_GE(memory_info(device).free + 64_MiB, free) << "nothing was taken anew";
  EXPECT_THAT(message_of([&] { set_memory_growth(device, true); }), HasSubstr("too late"));
  EXPECT_THAT(message_of([] { set_memory_growth(true); }), HasSubstr("too late"));
}

TEST(SlicesOfOneGpu, D10ASliceWithoutALimitCannotTakeTheWholeCard) {
  set_memory_growth(cuda_device(kGreedy), false);
  auto const error = error_of([] { static_cast<void>(bytes_on(cuda_device(kGreedy), 1_MiB)); });
  EXPECT_EQ(error.code(), ErrorCode::invalid_state);
  EXPECT_THAT(error.what(), HasSubstr("logical devices of one GPU and has no limit"));
}

TEST(SlicesOfOneGpu, D10AFractionOfTheCardHolds) {
  Device const device = cuda_device(kFraction);
  Bytes const total = memory_info(device).total;
  set_memory_fraction(device, 256.0 * 1024 * 1024 / static_cast<double>(total.value));
  EXPECT_EQ(error_of([&] { static_cast<void>(bytes_on(device, 300_MiB)); }).code(), ErrorCode::out_of_memory);
  EXPECT_EQ(bytes_on(device, 200_MiB).view().device, device);
  EXPECT_THAT(message_of([&] { set_memory_limit(device, 1_GiB); }), HasSubstr("too late"));
}

TEST(SlicesOfOneGpu, D5TheCurrentOneIsTheSliceThatWasChosen) {
  set_device(cuda_device(kCounted));
  EXPECT_EQ(current_device(), cuda_device(kCounted)) << "CUDA knows the GPU only";
  {
    DeviceGuard const guard(cuda_device(kPlain));
    EXPECT_EQ(current_device(), cuda_device(kPlain));
  }
  EXPECT_EQ(current_device(), cuda_device(kCounted));
  set_device(cuda_device(0));
}

TEST(Gpu, D5IsDescribedAsCudaDescribesIt) {
  EXPECT_TRUE(cuda_is_available());
  EXPECT_TRUE(is_built_with_cuda());
  EXPECT_TRUE(cuda_is_initialized());
  cudaDeviceProp told{};
  ASSERT_EQ(cudaGetDeviceProperties(&told, 0), cudaSuccess);
  DeviceProperties const properties = device_properties(cuda_device(0));
  EXPECT_EQ(properties.name, told.name);
  EXPECT_EQ(device_name(cuda_device(0)), told.name);
  EXPECT_EQ(properties.memory.value, told.totalGlobalMem);
  EXPECT_EQ(device_capability(cuda_device(0)), (ComputeCapability{told.major, told.minor}));
  EXPECT_EQ(properties.multiprocessors, told.multiProcessorCount);
  EXPECT_EQ(properties.warp_size, 32);
  LibraryVersions const versions = library_versions();
  EXPECT_NE(versions.driver, "");
  EXPECT_NE(versions.cuda_driver, "");
  EXPECT_NE(versions.cuda_runtime, "");
  EXPECT_NE(versions.nccl, "");
}

TEST(Gpu, D5CudnnWouldTakeWhatItCan) {
  Tensor const tensor = bytes_on(cuda_device(kPlain), 16_B);
  EXPECT_THAT(cudnn_would_accept(tensor).reason, HasSubstr("u8[16]"));
  CudnnAnswer const answer = cudnn_would_accept(zeros(Shape{4}, DType::f32, cuda_device(kPlain)));
  EXPECT_EQ(answer.accepted, !library_versions().cudnn.empty()) << answer.reason;
}

TEST(Gpu, D5ToMovesValuesThereAndBack) {
  std::vector<float> numbers(1000);
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(i);
  Tensor const there = to(view_of(std::span(numbers)), cuda_device(kPlain));
  EXPECT_EQ(there.view().device, cuda_device(kPlain));
  Device const last = logical_devices().back().device;  // another GPU, where there are several
  Tensor const back = to(to(there, last), Device{});
  EXPECT_TRUE(std::equal(numbers.begin(), numbers.end(), back.as<float>().begin()));
}

TEST(Gpus, D10PoolsAreOpenToEachOtherWhereTheHardwareIs) {
  Device const last = logical_devices().back().device;
  int const first_gpu = logical_device(cuda_device(kPlain)).visible.value();
  int const last_gpu = logical_device(last).visible.value();
  if (first_gpu == last_gpu) GTEST_SKIP() << "one GPU has no peer";
  Tensor const here = bytes_on(cuda_device(kPlain), 1_MiB);
  Tensor const there = bytes_on(last, 1_MiB);
  int reaches = 0;
  ASSERT_EQ(cudaDeviceCanAccessPeer(&reaches, last_gpu, first_gpu), cudaSuccess);
  cudaMemLocation location{};
  location.type = cudaMemLocationTypeDevice;
  location.id = last_gpu;
  cudaMemAccessFlags flags = cudaMemAccessFlagsProtNone;
  auto* const pool = static_cast<cudaMemPool_t>(cuda::pool_handle(cuda_device(kPlain)));
  ASSERT_EQ(cudaMemPoolGetAccess(&flags, pool, &location), cudaSuccess);
  EXPECT_EQ(flags, reaches != 0 ? cudaMemAccessFlagsProtReadWrite : cudaMemAccessFlagsProtNone);
}

template <class T>
class RandomFills : public ::testing::Test {};
using FloatingTypes = ::testing::Types<double, float, float16, bfloat16>;
TYPED_TEST_SUITE(RandomFills, FloatingTypes);

// What fill() writes on a GPU and on a CPU, from one and the same place of a stream.
template <class T, class Fill>
std::pair<std::vector<T>, std::vector<T>> on_both(std::size_t count, Fill fill) {
  RandomGenerator for_gpu(21, 3);
  RandomGenerator for_cpu(21, 3);
  static_cast<void>(for_gpu.take((std::uint64_t{1} << 32) - 5));  // the counter's second word too
  static_cast<void>(for_cpu.take((std::uint64_t{1} << 32) - 5));
  auto const stream = make_compute_stream(cuda_device(kPlain));
  Tensor const memory = zeros(Shape{count}, dtype_of<T>, cuda_device(kPlain));
  fill(memory.view(), for_gpu, *stream);
  Tensor const copied = to(memory, Device{}, *stream);
  Tensor const host = zeros(Shape{count}, dtype_of<T>, Device{});
  fill(host.view(), for_cpu, *HostStream::inline_stream());
  EXPECT_EQ(for_gpu.offset(), for_cpu.offset());
  auto const list = [](Tensor const& tensor) {
    auto const elements = tensor.as<T>();
    return std::vector<T>(elements.begin(), elements.end());
  };
  return {list(copied), list(host)};
}

TYPED_TEST(RandomFills, D13UniformNumbersAreTheSameBitsAsOnACpu) {
  for (std::size_t const count : {1U, 7U, 1'000'003U}) {
    auto const [gpu, cpu] = on_both<TypeParam>(count, [](auto const& view, auto& generator, auto& stream) {
      fill_uniform(view, generator, stream, -0.3, 1.7);
    });
    ASSERT_EQ(std::memcmp(gpu.data(), cpu.data(), count * sizeof(TypeParam)), 0) << count;
  }
}

double as_double(double value) { return value; }
double as_double(float value) { return static_cast<double>(value); }

TYPED_TEST(RandomFills, D13NormalNumbersAreTheSameUpToRounding) {
  auto const [gpu, cpu] = on_both<TypeParam>(100'001, [](auto const& view, auto& generator, auto& stream) {
    fill_normal(view, generator, stream, 0.5, 2);
  });
  using Shown = std::conditional_t<std::is_same_v<TypeParam, double>, double, float>;
  double const tolerance = sizeof(TypeParam) == 8 ? 1e-14 : sizeof(TypeParam) == 4 ? 1e-6 : 1e-2;
  for (std::size_t i = 0; i < gpu.size(); ++i) {
    double const expected = as_double(static_cast<Shown>(cpu[i]));
    ASSERT_NEAR(as_double(static_cast<Shown>(gpu[i])), expected,
                tolerance * std::max(1.0, std::abs(expected)))
        << i;
  }
}

// Pools are statics, and give back what is of a GPU when the process ends.
TEST(DeviceMemoryDeathTest, AProcessWhoseFirstWorkIsMemoryEndsInOrder) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        static_cast<void>(bytes_on(cuda_device(kPlain), 1_MiB));
        std::exit(0);
      },
      ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace ddp::testing

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (ddp::list_physical_devices(ddp::DeviceKind::cuda).empty()) {
    std::puts("skipped: no GPU is here");
    return 69;
  }
  ddp::set_logical_devices(
      {.kind = ddp::DeviceKind::cuda, .physical = 0, .limits = ddp::testing::limits_of_slices()});
  return RUN_ALL_TESTS();
}
