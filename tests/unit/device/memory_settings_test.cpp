// D9, D10: limits are enforced and memory is counted, on virtual CPU devices.
#include "ddp/device/memory_settings.hpp"

#include <gmock/gmock.h>

#include <atomic>
#include <cmath>
#include <thread>

#include "ddp/comm/factory.hpp"
#include "ddp/device/logical_device.hpp"
#include "ddp/device/memory.hpp"
#include "device/memory/memory_account.hpp"
#include "support/devices/virtual_cpus.hpp"
#include "support/errors.hpp"
#include "support/ranks/run_ranks.hpp"

namespace ddp::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Tensor bytes_on(Device device, Bytes bytes) { return zeros(Shape{bytes.value}, DType::u8, device); }

// Which of the virtual CPUs a test uses for the first time: settings come before the first memory.
enum : int { kOneMiB, kHalfMiB, kCounted, kLimited, kFraction, kContradicted, kLate, kShared, kFree, kAll };

class MemoryOfVirtualCpus : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    std::vector<std::optional<Bytes>> limits(kAll);
    limits[kOneMiB] = 1_MiB;
    limits[kHalfMiB] = 512_KiB;
    limits[kShared] = 1_MiB;
    set_logical_devices({.kind = DeviceKind::cpu, .limits = limits});
  }
};

TEST_F(MemoryOfVirtualCpus, D9MoreThanTheLimitFailsThoughTheMachineHasRoom) {
  Tensor const first = bytes_on(cpu(kOneMiB), 768_KiB);
  auto const error = error_of([] { static_cast<void>(bytes_on(cpu(kOneMiB), 512_KiB)); });
  EXPECT_EQ(error.code(), ErrorCode::out_of_memory);
  EXPECT_THAT(error.what(), HasSubstr("out of memory on cpu:0: its limit is 1 MiB, 768 KiB are in use, and "
                                      "u8[524288] asks for 512 KiB more"));
  EXPECT_GT(memory_info(cpu(kOneMiB)).free, 1_MiB);
  EXPECT_EQ(memory_stats(cpu(kOneMiB)).in_use, 768_KiB) << "what failed is not counted";
}

TEST_F(MemoryOfVirtualCpus, D9TheLimitItselfFitsAndFreedMemoryCountsNoMore) {
  for (int round = 0; round < 3; ++round) {
    Tensor const all = bytes_on(cpu(kHalfMiB), 512_KiB);
    EXPECT_EQ(error_of([] { static_cast<void>(bytes_on(cpu(kHalfMiB), 1_B)); }).code(),
              ErrorCode::out_of_memory);
    EXPECT_EQ(bytes_on(cpu(kHalfMiB), 0_B).view().bytes(), 0U);
  }
  EXPECT_EQ(memory_stats(cpu(kHalfMiB)).in_use, 0_B);
}

TEST_F(MemoryOfVirtualCpus, D9OneDevicesMemoryIsNoOthers) {
  Tensor const full = bytes_on(cpu(kHalfMiB), 512_KiB);
  EXPECT_EQ(bytes_on(cpu(kOneMiB), 256_KiB).view().device, cpu(kOneMiB));
  EXPECT_EQ(memory_limit(cpu(kHalfMiB)), 512_KiB);
  EXPECT_EQ(memory_limit(cpu(kCounted)), std::nullopt);
}

TEST_F(MemoryOfVirtualCpus, D10CountersTellWhatIsInUseAndThePeak) {
  EXPECT_EQ(memory_stats(cpu(kCounted)).peak, 0_B);
  Tensor const kept = bytes_on(cpu(kCounted), 1000_B);
  {
    Tensor const copy = kept;  // shares the memory
    Tensor const more = bytes_on(cpu(kCounted), 10_KiB);
    EXPECT_EQ(memory_stats(cpu(kCounted)).in_use, 11_KiB) << "rounded up to 512";
  }
  MemoryStats use = memory_stats(cpu(kCounted));
  EXPECT_EQ(use.in_use, 1_KiB);
  EXPECT_EQ(use.reserved, 1_KiB) << "a CPU keeps nothing";
  EXPECT_EQ(use.peak, 11_KiB);
  reset_peak_memory_stats(cpu(kCounted));
  empty_cache(cpu(kCounted));
  use = memory_stats(cpu(kCounted));
  EXPECT_EQ(use.peak, 1_KiB);
  EXPECT_EQ(use.in_use, 1_KiB);
}

TEST_F(MemoryOfVirtualCpus, D10ALimitAndAFractionHold) {
  set_memory_limit(cpu(kLimited), 1_MiB);
  set_memory_limit(cpu(kLimited), 64_KiB);  // nothing depends on it yet: the last one counts
  EXPECT_EQ(memory_limit(cpu(kLimited)), 64_KiB);
  EXPECT_THAT(message_of([] { static_cast<void>(bytes_on(cpu(kLimited), 65_KiB)); }),
              HasSubstr("its limit is 64 KiB, 0 B are in use"));

  Bytes const total = memory_info(cpu(kFraction)).total;
  double const fraction = static_cast<double>((1_MiB).value) / static_cast<double>(total.value);
  set_memory_fraction(cpu(kFraction), fraction);
  ASSERT_TRUE(memory_limit(cpu(kFraction)));
  EXPECT_NEAR(static_cast<double>(memory_limit(cpu(kFraction))->value), static_cast<double>((1_MiB).value),
              1.0);
  EXPECT_EQ(error_of([] { static_cast<void>(bytes_on(cpu(kFraction), 2_MiB)); }).code(),
            ErrorCode::out_of_memory);
}

TEST_F(MemoryOfVirtualCpus, D10SettingsThatContradictEachOtherAreRefused) {
  set_memory_fraction(cpu(kContradicted), 0.5);
  auto const error = error_of([] { set_memory_limit(cpu(kContradicted), 1_MiB); });
  EXPECT_EQ(error.code(), ErrorCode::invalid_state);
  EXPECT_THAT(error.what(), HasSubstr("set_memory_limit(cpu:5, 1 MiB): contradicts "
                                      "set_memory_fraction(cpu:5, 0.5), which was called before; keep one"));
  EXPECT_THAT(message_of([] { set_memory_limit(cpu(kShared), 2_MiB); }),
              AllOf(HasSubstr("cpu:7 is a virtual device that was made with a limit of 1 MiB"),
                    HasSubstr("set_logical_devices")));
  EXPECT_THAT(message_of([] { set_memory_fraction(cpu(kShared), 0.1); }), HasSubstr("virtual device"));
}

TEST_F(MemoryOfVirtualCpus, D10SettingsThatComeTooLateAreRefused) {
  Tensor const first = bytes_on(cpu(kLate), 16_B);
  auto const error = error_of([] { set_memory_limit(cpu(kLate), 1_MiB); });
  EXPECT_EQ(error.code(), ErrorCode::invalid_state);
  EXPECT_THAT(error.what(), HasSubstr("too late, since memory of cpu:6 is in use already (first for u8[16]"
                                      "); move this call before the first tensor"));
  EXPECT_THAT(message_of([] { set_memory_fraction(cpu(kLate), 0.5); }), HasSubstr("too late"));
  EXPECT_EQ(memory_limit(cpu(kLate)), std::nullopt) << "nothing has changed";
}

TEST_F(MemoryOfVirtualCpus, D10ValuesThatCannotBeRightAreRefused) {
  for (double const fraction : {0.0, -0.5, 1.5, std::nan("")}) {
    EXPECT_EQ(error_of([&] { set_memory_fraction(cpu(kFree), fraction); }).code(),
              ErrorCode::invalid_argument);
  }
  EXPECT_THAT(message_of([] { set_memory_limit(cpu(kFree), 0_B); }), HasSubstr("expected more than 0 B"));
  EXPECT_THAT(message_of([] { set_memory_limit(cpu(kFree), Bytes{SIZE_MAX / 2}); }), HasSubstr("in all"));
  EXPECT_EQ(error_of([] { set_memory_growth(cpu(kFree), false); }).code(), ErrorCode::unsupported);
  EXPECT_EQ(error_of([] { set_memory_limit(cpu(99), 1_MiB); }).code(), ErrorCode::not_found);
}

TEST_F(MemoryOfVirtualCpus, D10ThreadsNeverPassTheLimitTogether) {
  std::atomic<int> refused = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&refused] {
      for (int i = 0; i < 200; ++i) {
        try {
          Tensor const each = bytes_on(cpu(kShared), 300_KiB);
        } catch (Error const& error) {
          EXPECT_EQ(error.code(), ErrorCode::out_of_memory);
          ++refused;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  MemoryStats const use = memory_stats(cpu(kShared));
  EXPECT_EQ(use.in_use, 0_B);
  EXPECT_LE(use.peak, 1_MiB);
  EXPECT_EQ(use.peak.value % (300 * 1024), 0U);
}

TEST_F(MemoryOfVirtualCpus, D9SharedMemoryOfACommunicatorCountsToo) {
  auto communicators = make_in_process_communicators(2);  // both on cpu:0
  Bytes const before = memory_stats(cpu(kOneMiB)).in_use;
  run_ranks(2, [&](int rank) {
    Communicator& communicator = *communicators[static_cast<std::size_t>(rank)];
    Tensor const memory = communicator.allocate(400_KiB);
    communicator.barrier(*HostStream::inline_stream());
    EXPECT_EQ(memory_stats(cpu(kOneMiB)).in_use, before + 800_KiB);
    communicator.barrier(*HostStream::inline_stream());
    auto const error = error_of([&] { static_cast<void>(communicator.allocate(200_KiB)); });
    EXPECT_EQ(error.code(), ErrorCode::out_of_memory) << "on every rank, whichever has room";
  });
  EXPECT_EQ(memory_stats(cpu(kOneMiB)).in_use, before);
}

// What GPUs do, without one.
struct GpuAccount : MemoryAccount {
  explicit GpuAccount(int sharers = 1, std::optional<Bytes> virtual_limit = {})
      : MemoryAccount({{DeviceKind::cuda, DeviceIndex{0}}, 100_GiB, virtual_limit, sharers}) {}
};

TEST(MemorySettings, D10APoolGrowsUnlessToldOtherwise) {
  GpuAccount gpu;
  EXPECT_TRUE(gpu.grows(true));
  EXPECT_FALSE(gpu.grows(false)) << "set_memory_growth(false) for all";
  gpu.set_growth(false);
  EXPECT_FALSE(gpu.grows(true));
  gpu.set_growth(true);
  EXPECT_TRUE(gpu.grows(false)) << "one device's word goes before that for all";
}

TEST(MemorySettings, D10SlicesOfOneGpuCannotTakeItAllWithoutLimits) {
  GpuAccount slice(2);
  slice.set_growth(false);
  EXPECT_THAT(message_of([&] { static_cast<void>(slice.grows(true)); }),
              HasSubstr("cuda:0 is one of 2 logical devices of one GPU and has no limit"));
  EXPECT_FALSE(GpuAccount(2, 1_GiB).grows(false));
  slice.set_fraction(0.25);
  EXPECT_FALSE(slice.grows(true));
  EXPECT_EQ(slice.limit(), 25_GiB);
}

TEST(MemorySettings, D10NothingChangesAfterTheFirstUse) {
  GpuAccount gpu;
  gpu.take(16_B, "f32[4]");
  EXPECT_THAT(message_of([&] { gpu.set_growth(false); }),
              HasSubstr("set_memory_growth(cuda:0, false): too late"));
  EXPECT_TRUE(gpu.grows(true));
}

}  // namespace
}  // namespace ddp::testing
