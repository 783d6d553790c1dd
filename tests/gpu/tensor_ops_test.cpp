// Many copies at once within a GPU's memory.
#include "ddp/device/tensor_ops.hpp"

#include <cuda_runtime_api.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "ddp/device/cuda_stream.hpp"
#include "ddp/device/device_guard.hpp"
#include "ddp/device/memory.hpp"
#include "device/cuda/backend.hpp"
#include "support/errors.hpp"

namespace ddp::testing {
namespace {

using ::testing::HasSubstr;

constexpr Device kFirstGpu{DeviceKind::cuda, DeviceIndex{0}};
constexpr std::uint8_t kUntouched = 0xEE;

std::vector<std::uint8_t> noise(std::size_t bytes, std::uint32_t state) {
  std::vector<std::uint8_t> made(bytes);
  for (std::uint8_t& byte : made) {
    state = state * 1664525U + 1013904223U;
    byte = static_cast<std::uint8_t>(state >> 24U);
  }
  return made;
}

// Copies of runs of one block of memory to another block, and on the host what the other holds afterwards.
class ManyCopies {
 public:
  explicit ManyCopies(Stream& stream)
      : stream_(stream), from_(noise(kBytes, 1)), to_(kBytes, kUntouched), expected_(to_) {
    copy_elements(source_, view_of(std::span(from_)), stream_);
    copy_elements(target_, view_of(std::span(to_)), stream_);
  }

  /// Of `count` elements; the runs begin `to_gap` and `from_gap` bytes behind the last ones.
  void add(DType dtype, std::size_t count, std::size_t to_gap, std::size_t from_gap) {
    std::size_t const element = size_of(dtype);
    to_end_ = (to_end_ + to_gap + element - 1) / element * element;
    from_end_ = (from_end_ + from_gap + element - 1) / element * element;
    std::size_t const bytes = count * element;
    ASSERT_LE(std::max(to_end_, from_end_) + bytes, kBytes) << "the test needs more memory";
    copies_.push_back({view(target_, to_end_, count, dtype), view(source_, from_end_, count, dtype)});
    std::copy_n(from_.begin() + static_cast<std::ptrdiff_t>(from_end_), bytes,
                expected_.begin() + static_cast<std::ptrdiff_t>(to_end_));
    to_end_ += bytes;
    from_end_ += bytes;
  }

  void enqueue() const { copy_elements(copies_, stream_); }
  void check() {
    copy_elements(view_of(std::span(to_)), target_, stream_);
    stream_.synchronize();
    auto const wrong = std::mismatch(to_.begin(), to_.end(), expected_.begin()).first;
    EXPECT_EQ(wrong - to_.begin(), static_cast<std::ptrdiff_t>(kBytes)) << "the first byte that is wrong";
  }
  [[nodiscard]] std::size_t size() const { return copies_.size(); }

 private:
  static constexpr std::size_t kBytes = std::size_t{16} << 20;

  static TensorView view(TensorView const& bytes, std::size_t offset, std::size_t count, DType dtype) {
    return {static_cast<std::uint8_t*>(bytes.data) + offset, Shape{count}, dtype, kFirstGpu};
  }

  Stream& stream_;
  std::vector<std::uint8_t> from_;
  std::vector<std::uint8_t> to_;
  std::vector<std::uint8_t> expected_;
  Tensor source_ = zeros(Shape{kBytes}, DType::u8, kFirstGpu);
  Tensor target_ = zeros(Shape{kBytes}, DType::u8, kFirstGpu);
  std::size_t to_end_ = 0;
  std::size_t from_end_ = 0;
  std::vector<Copy> copies_;
};

// Sizes around vectors, a block's stride and its piece, at every alignment of source and target.
TEST(TensorOpsOnGpu, ManyCopiesOfAnySizeAndAlignmentTouchNothingElse) {
  auto const stream = make_comm_stream(kFirstGpu);
  ManyCopies copies(*stream);
  std::size_t const counts[] = {0, 1, 3, 7, 15, 16, 17, 255, 2047, 8193, 65535, 65536, 65537, 200'001};
  for (DType const dtype : {DType::u8, DType::f16, DType::f32, DType::f64, DType::bf16, DType::i64}) {
    for (std::size_t const count : counts) {
      copies.add(dtype, count, 1 + count % 13, 1 + count % 7);
    }
  }
  for (std::size_t to = 0; to < 16; ++to) {
    for (std::size_t from = 0; from < 16; ++from) copies.add(DType::u8, 40 + to, 16 + to, 16 + from);
  }
  ASSERT_GT(copies.size(), 300U) << "more than two launches";
  copies.enqueue();
  copies.check();
}

TEST(TensorOpsOnGpu, ACapturedBatchCopiesWhatIsThereAtEachReplay) {
  auto const stream = make_comm_stream(kFirstGpu);
  DeviceGuard const guard(kFirstGpu);
  cudaStream_t const handle = cuda_stream(*stream).handle();
  Tensor const from = zeros(Shape{1000}, DType::f32, kFirstGpu);
  Tensor const to = zeros(Shape{1000}, DType::f32, kFirstGpu);
  std::vector<Copy> copies;  // each element alone, in the other order
  for (std::size_t i = 0; i < 1000; ++i) copies.push_back({slice(to, 999 - i, 1), slice(from, i, 1)});
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t replay = nullptr;
  ASSERT_EQ(cudaStreamBeginCapture(handle, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  copy_elements(copies, *stream);
  ASSERT_EQ(cudaStreamEndCapture(handle, &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&replay, graph, 0), cudaSuccess);
  copies.clear();
  for (float const first : {1.0F, 5000.0F}) {
    std::vector<float> elements(1000);
    for (std::size_t i = 0; i < 1000; ++i) elements[i] = first + static_cast<float>(i);
    copy_elements(from, view_of(std::span(elements)), *stream);
    ASSERT_EQ(cudaGraphLaunch(replay, handle), cudaSuccess);
    std::vector<float> found(1000);
    copy_elements(view_of(std::span(found)), to, *stream);
    stream->synchronize();
    std::reverse(elements.begin(), elements.end());
    EXPECT_EQ(found, elements);
  }
  EXPECT_EQ(cudaGraphExecDestroy(replay), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
}

TEST(TensorOpsOnGpu, CopiesFromAndToHostMemoryMayBeAmongThem) {
  auto const stream = make_comm_stream(kFirstGpu);
  Tensor const a = zeros(Shape{50}, DType::f64, kFirstGpu);
  Tensor const b = zeros(Shape{50}, DType::f64, kFirstGpu);
  std::vector<double> numbers(50, 2.5);
  copy_elements(a, view_of(std::span(numbers)), *stream);
  std::vector<double> found(50);
  std::vector<double> other(50, 4.5);
  Tensor const c = zeros(Shape{50}, DType::f64, kFirstGpu);
  std::vector<Copy> const copies{
      {b, a}, {view_of(std::span(found)), a}, {c, view_of(std::span(other))}, {a, a}};
  copy_elements(copies, *stream);
  stream->synchronize();
  EXPECT_EQ(found, numbers);
  copy_elements(view_of(std::span(found)), b, *stream);
  stream->synchronize();
  EXPECT_EQ(found, numbers);
  copy_elements(view_of(std::span(found)), c, *stream);
  stream->synchronize();
  EXPECT_EQ(found, other);
}

TEST(TensorOpsOnGpu, ACopyThatIsRefusedLeavesAllUndone) {
  auto const stream = make_comm_stream(kFirstGpu);
  Tensor const from = zeros(Shape{8}, DType::u8, kFirstGpu);
  Tensor const to = zeros(Shape{8}, DType::u8, kFirstGpu);
  std::vector<std::uint8_t> ones(8, 1);
  copy_elements(from, view_of(std::span(ones)), *stream);
  std::vector<Copy> const copies{{to, from}, {to, zeros(Shape{2}, DType::f32, kFirstGpu)}};
  EXPECT_THAT(message_of([&] { copy_elements(copies, *stream); }), HasSubstr("cannot copy f32[2] on cuda:0"));
  copy_elements(view_of(std::span(ones)), to, *stream);
  stream->synchronize();
  EXPECT_EQ(ones[7], 0);
}

TEST(TensorOpsOnGpu, R13ConvertsBetweenAllFloatingPointTypesAsTheHostDoes) {
  auto const stream = make_comm_stream(kFirstGpu);
  auto const host = HostStream::inline_stream();
  std::vector<double> numbers{0,
                              -0.0,
                              1,
                              1 + 0x1p-9,
                              1 + 0x1p-8,
                              1 + 0x3p-9,
                              65519,
                              65520,
                              0x1p-25,
                              0x1.8p-25,
                              -3.4e38,
                              1e300,
                              std::numeric_limits<double>::infinity(),
                              1 + 0x1p-30};
  for (int i = 0; i < 50'000; ++i) numbers.push_back(std::ldexp(std::sin(i), i % 61 - 30));
  std::size_t const count = numbers.size();
  constexpr std::array kTypes{DType::f64, DType::f32, DType::f16, DType::bf16};
  for (DType const from : kTypes) {
    Tensor source = Tensor::zeros(Shape{count}, from);
    TensorView const exact = view_of(std::span(numbers));
    if (from == DType::f64) {
      copy_elements(source, exact, *host);
    } else {
      convert_elements(std::array{Copy{source, exact}}, *host);
    }
    Tensor const there = zeros(Shape{count}, from, kFirstGpu);
    copy_elements(there, source, *stream);
    for (DType const to : kTypes) {
      if (to == from) continue;
      Tensor const expected = Tensor::zeros(Shape{count}, to);
      convert_elements(std::array{Copy{expected, source}}, *host);
      // Runs of many lengths, so that some are aligned and others not, and more than fit into one launch.
      Tensor const made = zeros(Shape{count}, to, kFirstGpu);
      std::vector<Copy> copies;
      for (std::size_t at = 0, length = 1; at < count; at += length, length = length % 301 + 4) {
        length = std::min(length, count - at);
        copies.push_back({slice(made, at, length), slice(there, at, length)});
      }
      ASSERT_GT(copies.size(), 256U);
      convert_elements(copies, *stream);
      Tensor const found = Tensor::zeros(Shape{count}, to);
      copy_elements(found, made, *stream);
      stream->synchronize();
      EXPECT_EQ(std::memcmp(found.view().data, expected.view().data, found.view().bytes()), 0)
          << from << " to " << to;
      convert_elements(std::array{Copy{made, there}}, *stream);
      copy_elements(found, made, *stream);
      stream->synchronize();
      EXPECT_EQ(std::memcmp(found.view().data, expected.view().data, found.view().bytes()), 0)
          << from << " to " << to << " at once";
    }
  }
}

// Of more runs than fit into one launch, aligned and not, every 7th has one number that is not finite in what
// is written: at its end, in its middle, or, as f16, because it is too large.
TEST(TensorOpsOnGpu, R17ACopyTellsWhichRunsGotNumbersThatAreNotFinite) {
  auto const stream = make_comm_stream(kFirstGpu);
  for (auto const& [to, from] : {std::pair(DType::f32, DType::f32),
                                 {DType::f64, DType::f64},
                                 {DType::bf16, DType::bf16},
                                 {DType::f16, DType::f32},
                                 {DType::bf16, DType::f32}}) {
    constexpr std::size_t kRuns = 300;
    std::vector<double> numbers;
    std::vector<std::size_t> begins;
    std::vector<std::uint8_t> expected(kRuns, 0);
    for (std::size_t r = 0; r < kRuns; ++r) {
      begins.push_back(numbers.size());
      std::size_t const length = r % 50 == 0 ? 40'000 + r : r % 301 + 1;
      for (std::size_t i = 0; i < length; ++i) numbers.push_back(static_cast<double>(i % 100) - 50);
      if (r % 7 != 0) continue;
      expected[r] = 1;
      double const bad = to == DType::f16 ? 65520
                         : r % 2 == 0     ? std::nan("")
                                          : -std::numeric_limits<double>::infinity();
      numbers[begins[r] + (r % 3 == 0 ? length - 1 : length / 2)] = bad;
    }
    begins.push_back(numbers.size());
    Tensor const wide = zeros(Shape{numbers.size()}, DType::f64, kFirstGpu);
    copy_elements(wide, view_of(std::span(numbers)), *stream);
    Tensor const source = zeros(Shape{numbers.size()}, from, kFirstGpu);
    from == DType::f64 ? copy_elements(source, wide, *stream)
                       : convert_elements(std::array{Copy{source, wide}}, *stream);
    Tensor const made = zeros(Shape{numbers.size()}, to, kFirstGpu);
    Tensor const flags = zeros(Shape{kRuns}, DType::u8, kFirstGpu);
    std::vector<Copy> copies;
    std::vector<std::uint8_t*> places;
    for (std::size_t r = 0; r < kRuns; ++r) {
      std::size_t const length = begins[r + 1] - begins[r];
      copies.push_back({slice(made, begins[r], length), slice(source, begins[r], length)});
      places.push_back(static_cast<std::uint8_t*>(flags.view().data) + r);
    }
    cuda::convert(copies, *stream, places);
    std::vector<std::uint8_t> found(kRuns);
    copy_elements(view_of(std::span(found)), flags, *stream);
    Tensor const again = zeros(Shape{numbers.size()}, to, kFirstGpu);
    to == from ? copy_elements(again, source, *stream)
               : convert_elements(std::array{Copy{again, source}}, *stream);
    Tensor const here = Tensor::zeros(Shape{numbers.size()}, to);
    Tensor const there = Tensor::zeros(Shape{numbers.size()}, to);
    copy_elements(here, made, *stream);
    copy_elements(there, again, *stream);
    stream->synchronize();
    EXPECT_EQ(found, expected) << from << " to " << to;
    EXPECT_EQ(std::memcmp(here.view().data, there.view().data, here.view().bytes()), 0)
        << from << " to " << to;
  }
}

}  // namespace
}  // namespace ddp::testing
