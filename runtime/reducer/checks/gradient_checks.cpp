#include "reducer/checks/gradient_checks.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "ddp/core/half.hpp"
#include "ddp/device/device_guard.hpp"
#include "device/cuda/backend.hpp"
#include "reducer/memory/gradient_memory.hpp"
#include "reducer/memory/step_words.hpp"

namespace ddp {
namespace {

// As torch::nn::utils::clip_grad_norm_ has it.
constexpr double kNormFloor = 1e-6;

// Calls `use` with the elements as a span of their type.
template <class Use>
void with_elements(TensorView const& run, Use use) {
  switch (run.dtype) {
    case DType::f64:
      return use(std::span(static_cast<double*>(run.data), run.count()));
    case DType::f32:
      return use(std::span(static_cast<float*>(run.data), run.count()));
    case DType::f16:
      return use(std::span(static_cast<float16*>(run.data), run.count()));
    default:
      return use(std::span(static_cast<bfloat16*>(run.data), run.count()));
  }
}

template <class T>
auto widened(T element) noexcept {
  if constexpr (sizeof(T) == 2) {
    return static_cast<float>(element);
  } else {
    return element;
  }
}

bool has_nonfinite(TensorView const& run) {
  bool found = false;
  with_elements(run, [&](auto elements) {
    found = !std::ranges::all_of(elements, [](auto element) { return std::isfinite(widened(element)); });
  });
  return found;
}

double sum_of_squares(TensorView const& run) {
  double sum = 0;
  with_elements(run, [&](auto elements) {
    for (auto const element : elements) sum += static_cast<double>(widened(element)) * widened(element);
  });
  return sum;
}

void multiply(TensorView const& run, double factor) {
  with_elements(run, [&]<class T>(std::span<T> elements) {
    for (T& element : elements)
      element = static_cast<T>(widened(element) * static_cast<decltype(widened(element))>(factor));
  });
}

void finish_on_host(GradientChecks::Words const& words) {
  double sum = 0;
  for (std::size_t i = 0; i < words.squares_count; ++i) sum += words.squares[i];
  *words.norm = std::sqrt(sum);
  bool const clips = words.clip_norm > 0 && std::isfinite(*words.norm);
  *words.factor = clips ? std::min(1.0, words.clip_norm / (*words.norm + kNormFloor)) : 1.0;
  bool const found = std::any_of(words.all_flags, words.all_flags + words.all_flags_count,
                                 [](std::uint8_t flag) { return flag != 0; });
  *words.found = found || !std::isfinite(*words.norm) ? 1.0F : 0.0F;
}

std::size_t pieces_of(std::size_t count) noexcept {
  return (count + cuda::kCheckedPiece - 1) / cuda::kCheckedPiece;
}

}  // namespace

GradientChecks::GradientChecks(ReducerLane const& lane, std::size_t parameters, ReducerOptions const& options)
    : lane_(lane),
      parameters_(parameters),
      looks_(options.nonfinite != ReducerOptions::Nonfinite::ignore),
      clip_norm_(options.clip_norm),
      flags_(step_words(Shape{parameters}, DType::u8, lane.device)),
      all_flags_(step_words(Shape{parameters * static_cast<std::size_t>(lane.communicator->size())},
                            DType::u8, lane.device)),
      norm_(step_words(Shape{1}, DType::f64, lane.device)),
      factor_(step_words(Shape{1}, DType::f64, lane.device)),
      found_(step_words(Shape{1}, DType::f32, lane.device)) {
  if (lane.device.kind != DeviceKind::cuda) return;
  DeviceGuard const guard(lane.device);
  cuda::load_check_kernels();
  for (DType const each : {DType::f64, DType::f32, DType::f16, DType::bf16})
    cuda::load_conversion(each, each);
}

void GradientChecks::make_room(BucketPlan const& plan) {
  std::size_t pieces = 0;
  for (Bucket const& bucket : plan.buckets()) {
    nonfinite_.reserve(bucket.slices.size());
    for (BucketSlice const& piece : bucket.slices) pieces += pieces_of(piece.count);
  }
  if (pieces > squares_.view().count()) squares_ = step_words(Shape{pieces}, DType::f64, lane_.device);
}

GradientChecks::Words GradientChecks::words() const noexcept {
  return {static_cast<std::uint8_t*>(flags_.view().data),
          static_cast<std::uint8_t const*>(all_flags_.view().data),
          all_flags_.view().count(),
          static_cast<double*>(squares_.view().data),
          pieces_,
          static_cast<double*>(norm_.view().data),
          static_cast<double*>(factor_.view().data),
          static_cast<float*>(found_.view().data),
          clip_norm_};
}

void GradientChecks::begin_step() {
  pieces_ = 0;
  if (looks_) zero_fill(flags_, *lane_.comm_stream);
}

void GradientChecks::look(std::span<GradientRun const> runs) {
  if (!looks_) return;
  if (lane_.device.kind == DeviceKind::cuda) {
    cuda::find_nonfinite(runs, words().flags, *lane_.comm_stream);
    return;
  }
  for (GradientRun const& run : runs) {
    host_stream(*lane_.comm_stream)
        .enqueue([data = run.elements.data, count = run.elements.count(), dtype = run.elements.dtype,
                  flag = words().flags + run.parameter] {
          if (has_nonfinite({data, Shape{count}, dtype, Device{}})) *flag = 1;
        });
  }
}

void GradientChecks::copy(std::span<Copy const> copies, std::span<std::size_t const> parameters) {
  if (!looks_ || lane_.device.kind != DeviceKind::cuda) {
    move_elements(copies, *lane_.comm_stream);
    for (std::size_t i = 0; i < copies.size(); ++i)
      look(std::array{GradientRun{copies[i].to, parameters[i]}});
    return;
  }
  nonfinite_.clear();
  for (std::size_t const each : parameters) nonfinite_.push_back(words().flags + each);
  cuda::convert(copies, *lane_.comm_stream, nonfinite_);
}

void GradientChecks::exchange(double const* factor) {
  if (!looks_) return;
  if (factor != nullptr && lane_.device.kind == DeviceKind::cuda) {
    cuda::forget_without_weight(words().flags, parameters_, factor, *lane_.comm_stream);
  } else if (factor != nullptr) {
    host_stream(*lane_.comm_stream).enqueue([flags = words().flags, count = parameters_, factor] {
      if (*factor == 0) std::fill_n(flags, count, std::uint8_t{0});
    });
  }
  lane_.communicator->all_gather(flags_, all_flags_, *lane_.comm_stream);
}

void GradientChecks::add_squares(std::span<GradientRun const> runs) {
  double* const squares = words().squares + pieces_;
  if (lane_.device.kind == DeviceKind::cuda) {
    cuda::sum_squares(runs, squares, *lane_.comm_stream);
    for (GradientRun const& run : runs) pieces_ += pieces_of(run.elements.count());
    return;
  }
  for (GradientRun const& run : runs) {
    host_stream(*lane_.comm_stream)
        .enqueue([data = run.elements.data, count = run.elements.count(), dtype = run.elements.dtype,
                  square = words().squares + pieces_] {
          *square = sum_of_squares({data, Shape{count}, dtype, Device{}});
        });
    ++pieces_;
  }
}

void GradientChecks::finish() {
  if (lane_.device.kind == DeviceKind::cuda) {
    cuda::finish_checks(words(), *lane_.comm_stream);
  } else {
    host_stream(*lane_.comm_stream).enqueue([words = words()] { finish_on_host(words); });
  }
}

void GradientChecks::clip(std::span<GradientRun const> runs) {
  double const* const factor = words().factor;
  if (lane_.device.kind == DeviceKind::cuda) {
    cuda::multiply(runs, factor, *lane_.comm_stream);
    return;
  }
  for (GradientRun const& run : runs) {
    host_stream(*lane_.comm_stream)
        .enqueue(
            [data = run.elements.data, count = run.elements.count(), dtype = run.elements.dtype, factor] {
              if (*factor != 1) multiply({data, Shape{count}, dtype, Device{}}, *factor);
            });
  }
}

std::vector<NonfiniteGradient> GradientChecks::nonfinite_gradients() {
  std::vector<std::uint8_t> flags(all_flags_.view().count());
  lane_.comm_stream->expect_wait();
  copy_elements(view_of(std::span(flags)), all_flags_, *lane_.comm_stream);
  lane_.comm_stream->synchronize();
  std::vector<NonfiniteGradient> found;
  for (std::size_t p = 0; p < parameters_; ++p) {
    for (std::size_t i = p, rank = 0; i < flags.size(); i += parameters_, ++rank) {
      if (flags[i] != 0) found.push_back({p, Rank{static_cast<int>(rank)}});
    }
  }
  return found;
}

}  // namespace ddp
