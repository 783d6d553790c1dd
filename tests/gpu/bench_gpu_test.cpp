// What ddp-bench computes on a GPU, and timelines of a GPU's streams.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <vector>

#include "circumstances.hpp"
#include "ddp/core/text.hpp"
#include "ddp/device/logical_device.hpp"
#include "ddp/device/memory.hpp"
#include "ddp/device/span_recorder.hpp"
#include "ddp/device/tensor_ops.hpp"
#include "gemm.hpp"
#include "support/launcher/shell.hpp"
#include "support/trace_file.hpp"

namespace ddp::testing {
namespace {

using bench::Gemm;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

constexpr Device kGpu{DeviceKind::cuda, DeviceIndex{0}};

// Numbers of three bits behind the point: TF32 and bf16 hold them exactly, and f32 holds their products'
// sums.
Tensor numbers(Shape const& shape, std::size_t step) {
  Tensor const tensor = Tensor::zeros(shape, DType::f32);
  auto const elements = tensor.as<float>();
  for (std::size_t i = 0; i < elements.size(); ++i) {
    elements[i] = static_cast<float>(static_cast<int>(i * step % 15) - 7) / 8;
  }
  return tensor;
}

Tensor on_gpu(Tensor const& host, DType dtype, Stream& stream) {
  Tensor const converted = Tensor::zeros(host.view().shape, dtype);
  for (std::size_t i = 0; i < host.view().count(); ++i) {
    if (dtype == DType::bf16) {
      converted.as<bfloat16>()[i] = bfloat16(host.as<float>()[i]);
    } else {
      converted.as<float>()[i] = host.as<float>()[i];
    }
  }
  Tensor const device = zeros(host.view().shape, dtype, kGpu);
  copy_elements(device, converted, stream);
  stream.synchronize();
  return device;
}

TEST(BenchDataParallel, TimesStepsOnEveryGpu) {
  TemporaryFolder const folder;
  auto const outcome = run_shell(
      folder.path(), DDP_BENCH " data-parallel --layers 3 --width 128 --rows 64 --steps 2 --rounds 5", 120);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("3 layers of 128 x 128, 64 rows each"));
}

TEST(BenchDataParallel, TimesStepsOnAGpuUsedAsSeveral) {
  TemporaryFolder const folder;
  auto const outcome = run_shell(folder.path(),
                                 "exec env CUDA_VISIBLE_DEVICES=0 DDP_VIRTUAL_DEVICES=2 " DDP_BENCH
                                 " data-parallel --layers 3 --width 128 --rows 64 --steps 2 --rounds 5",
                                 120);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("3 layers of 128 x 128, 64 rows each"));
}

struct Interval {
  double begin;
  double end;
};

std::vector<Interval> intervals_of(std::filesystem::path const& file, std::string const& name) {
  std::vector<Interval> all;
  for (auto const& span : spans_of(file)) {
    if (span.at("name") != name) continue;
    double const begin = span.at("ts");
    all.push_back({begin, begin + span.at("dur").get<double>()});
  }
  return all;
}

// Of ranks that share a GPU; where there are two GPUs, of a rank on each too, whose first buckets begin early
// in the backward pass (a GPU that is shared may do all of one process before it goes on with the other).
// Without overlap they begin at its end, and the clocks of two streams are too far apart to tell on which
// side of it.
TEST(BenchOverlap, TracesTheBucketsOfEveryRank) {
  std::vector<std::string> places{"--gpus 0 --virtual 2"};
  if (logical_devices().size() > 1) places.emplace_back("--gpus 0,1");
  for (std::string const& place : places) {
    TemporaryFolder const folder;
    auto const outcome = run_shell(
        folder.path(),
        DDP_LAUNCH " " + place + " --no-log-files -- " DDP_BENCH " overlap --quick --trace traces", 120);
    ASSERT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
    for (char const* const rank : {"traces/rank0.json", "traces/rank1.json"}) {
      auto const file = folder.path() / rank;
      auto const passes = intervals_of(file, "backward");
      auto const buckets = intervals_of(file, "bucket 0");
      EXPECT_EQ(passes.size(), 3U);  // of two steps, and of one without overlap
      EXPECT_EQ(buckets.size(), 3U);
      EXPECT_EQ(intervals_of(file, "bucket 15").size(), 3U);
      if (place != "--gpus 0,1") continue;
      auto const begins_early = [&](Interval const& bucket) {
        return std::any_of(passes.begin(), passes.end(), [&](Interval const& pass) {
          return pass.begin < bucket.begin && bucket.begin < (pass.begin + pass.end) / 2;
        });
      };
      EXPECT_EQ(std::count_if(buckets.begin(), buckets.end(), begins_early), 2) << place << ", " << rank;
    }
  }
}

class BenchGemm : public ::testing::TestWithParam<std::tuple<DType, Gemm::Transposed>> {};

TEST_P(BenchGemm, GivesWhatTheCpuGives) {
  auto const [dtype, transposed] = GetParam();
  Shape const a_shape = transposed == Gemm::Transposed::first ? Shape{72, 24} : Shape{24, 72};
  Shape const b_shape = transposed == Gemm::Transposed::second ? Shape{40, 72} : Shape{72, 40};
  auto const host_stream = HostStream::inline_stream();
  auto const stream = make_compute_stream(kGpu);
  Tensor const a = numbers(a_shape, 7);
  Tensor const b = numbers(b_shape, 11);
  Tensor const expected = Tensor::zeros(Shape{24, 40}, DType::f32);
  bench::make_gemm(Device{}, DType::f32)->multiply(transposed, a, b, expected, *host_stream);

  Tensor const out = on_gpu(numbers(Shape{24, 40}, 1), dtype, *stream);  // what was there is overwritten
  auto const gemm = bench::make_gemm(kGpu, dtype);
  Tensor const a_gpu = on_gpu(a, dtype, *stream);
  Tensor const b_gpu = on_gpu(b, dtype, *stream);
  gemm->multiply(transposed, a_gpu, b_gpu, out, *stream);
  Tensor const found = Tensor::zeros(Shape{24, 40}, dtype);
  copy_elements(found, out, *stream);
  stream->synchronize();
  for (std::size_t i = 0; i < 24 * 40; ++i) {
    float const wanted = expected.as<float>()[i];
    if (dtype == DType::bf16) {
      ASSERT_EQ(static_cast<float>(found.as<bfloat16>()[i]), static_cast<float>(bfloat16(wanted))) << i;
    } else {
      ASSERT_EQ(found.as<float>()[i], wanted) << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, BenchGemm,
                         ::testing::Combine(::testing::Values(DType::f32, DType::bf16),
                                            ::testing::Values(Gemm::Transposed::none, Gemm::Transposed::first,
                                                              Gemm::Transposed::second)),
                         [](auto const& parameters) {
                           return text(std::get<0>(parameters.param), "Transposed",
                                       static_cast<int>(std::get<1>(parameters.param)));
                         });

class SpanRecorderOnAGpu : public ::testing::Test {
 protected:
  TemporaryFolder const folder;
  std::shared_ptr<ChromeTrace> const trace = std::make_shared<ChromeTrace>(folder.path(), Rank{0}, "rank 0");
  std::unique_ptr<Stream> const stream = make_comm_stream(kGpu);
  SpanRecorder recorder{trace, "gpu", kGpu};
};

// The span lies where the host saw it, and is as long as the GPU took.
TEST_F(SpanRecorderOnAGpu, PutsWorkOntoTheHostsTimeline) {
  Tensor const memory = zeros(Shape{std::size_t{256} << 20}, DType::u8, kGpu);
  SpanRecorder host(trace, "host", Device{});
  auto const host_stream = HostStream::inline_stream();
  Event begin(kGpu);
  Event end(kGpu);
  double gpu_us = 0;
  for (std::size_t round = 0; round < 3; ++round) {
    ScopedSpan const seen(&host, *host_stream, {.what = "host", .index = round});
    auto const span = recorder.begin(*stream);
    begin.record(*stream);
    for (int i = 0; i < 100; ++i) zero_fill(memory, *stream);
    end.record(*stream);
    recorder.end(span, *stream, {.what = "gpu", .index = round});
    stream->synchronize();
    gpu_us = Event::milliseconds(begin, end) * 1e3;
  }
  recorder.flush();
  host.flush();
  trace->write();
  auto const spans = spans_of(trace->file());
  ASSERT_EQ(spans.size(), 6U);
  for (std::size_t round = 0; round < 3; ++round) {
    auto const named = [&, round](char const* what) {
      for (auto const& span : spans) {
        if (span.at("name") == text(what, ' ', round)) return span;
      }
      return nlohmann::json();
    };
    auto const begin_of = [](nlohmann::json const& span) { return span.at("ts").get<double>(); };
    auto const end_of = [&](nlohmann::json const& span) {
      return begin_of(span) + span.at("dur").get<double>();
    };
    constexpr double kSlackUs = 50;
    EXPECT_GE(begin_of(named("gpu")), begin_of(named("host")) - kSlackUs);
    EXPECT_LE(end_of(named("gpu")), end_of(named("host")) + kSlackUs);
    if (round == 2) {
      EXPECT_NEAR(named("gpu").at("dur").get<double>(), gpu_us, 0.1 * gpu_us + 20);
    }
  }
}

TEST_F(SpanRecorderOnAGpu, DoesNotMakeTheHostWait) {
  Tensor const memory = zeros(Shape{std::size_t{1} << 30}, DType::u8, kGpu);
  Event end(kGpu);
  auto const span = recorder.begin(*stream);
  for (int i = 0; i < 200; ++i) zero_fill(memory, *stream);
  recorder.end(span, *stream, {.what = "gpu"});
  end.record(*stream);
  EXPECT_FALSE(end.reached()) << "200 GiB were written before the host came back: did it wait?";
  stream->synchronize();
}

TEST(BenchCircumstances, NameTheGpuAndItsLibraries) {
  auto const where = bench::circumstances("nccl", 1, kGpu);
  EXPECT_THAT(where.gpu, HasSubstr("driver "));
  EXPECT_THAT(where.gpu, HasSubstr("CUDA "));
  EXPECT_THAT(where.gpu, HasSubstr("NCCL "));
}

}  // namespace
}  // namespace ddp::testing
