#include "reducer/checks/gradient_checks.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <iomanip>
#include <string>

#include "ddp/core/half.hpp"
#include "ddp/core/text.hpp"
#include "ddp/device/device_guard.hpp"
#include "device/cuda/backend.hpp"
#include "reducer/checks/parameter_check.hpp"
#include "reducer/memory/gradient_memory.hpp"
#include "reducer/memory/step_words.hpp"

namespace ddp {
namespace {

// As torch::nn::utils::clip_grad_norm_ has it.
constexpr double kNormFloor = 1e-6;

// Calls `use` with the elements as a span of their type.
template <class Use>
void with_elements(TensorView const& run, Use use) {
  dispatch(run.dtype, [&]<class T>(T) {
    if constexpr (is_floating(dtype_of<T>)) use(std::span(static_cast<T*>(run.data), run.count()));
  });
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

GradientChecks::GradientChecks(ReducerState const& of, RankWeights const& weights,
                               DistributedDataParallelOptions const& options)
    : StepPart(of),
      weights_(weights),
      lane_(of.lanes[0]),
      nonfinite_(options.nonfinite),
      clip_norm_(options.clip_norm),
      deterministic_(options.deterministic),
      flags_(step_words(Shape{of.parameters.size()}, DType::u8, lane_.device)),
      all_flags_(step_words(Shape{of.parameters.size() * of.ranks.size()}, DType::u8, lane_.device)),
      norm_(step_words(Shape{1}, DType::f64, lane_.device)),
      factor_(step_words(Shape{1}, DType::f64, lane_.device)),
      found_(options.nonfinite == Nonfinite::flag && lane_.skip.view().data != nullptr
                 ? lane_.skip
                 : step_words(Shape{1}, DType::f32, lane_.device)) {
  if (lane_.device.kind != DeviceKind::cuda) return;
  DeviceGuard const guard(lane_.device);
  cuda::load_check_kernels();
  for (DType const each : {DType::f64, DType::f32, DType::f16, DType::bf16})
    cuda::load_conversion(each, each);
}

std::string GradientChecks::describe() const {
  constexpr std::array kNames{"ignore", "error", "flag"};
  return text("nonfinite ", kNames[static_cast<std::size_t>(nonfinite_)], ", clip_norm ",
              std::setprecision(17), clip_norm_);
}

std::string GradientChecks::why_not_recorded() const {
  return may_refuse() ? "Options::nonfinite is error, for which the host looks at each step; set it to flag"
                      : "";
}

// Of a bucket's parts each rank adds up its own, in no more pieces than these.
void GradientChecks::plan_changed() {
  own_pieces_ = 0;
  for (std::size_t b = 0; b < of_.buckets.count(); ++b) {
    own_pieces_ += pieces_of(of_.buckets.own_part(b).count) + of_.buckets[b].slices.size();
  }
  copied_flags_.reserve(of_.buckets.most_slices());
  runs_.reserve(std::max(of_.buckets.most_slices(), deterministic_ ? of_.parameters.size() : 0));
  std::size_t const all = own_pieces_ * of_.buckets.parts();
  if (all > squares_.view().count()) squares_ = step_words(Shape{all}, DType::f64, lane_.device);
}

GradientChecks::Words GradientChecks::words() const noexcept {
  return {static_cast<std::uint8_t*>(flags_.view().data),
          static_cast<std::uint8_t const*>(all_flags_.view().data),
          all_flags_.view().count(),
          static_cast<double*>(squares_.view().data),
          of_.buckets.is_sharded() ? own_pieces_ * of_.buckets.parts() : pieces_,
          static_cast<double*>(norm_.view().data),
          static_cast<double*>(factor_.view().data),
          static_cast<float*>(found_.view().data),
          clip_norm_};
}

void GradientChecks::head() {
  pieces_ = 0;
  if (clips() && of_.buckets.is_sharded()) zero_fill(squares_, *lane_.comm_stream);
  if (looks()) zero_fill(flags_, *lane_.comm_stream);
}

void GradientChecks::look(std::span<GradientRun const> runs) {
  if (!looks()) return;
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
  if (!looks() || lane_.device.kind != DeviceKind::cuda) {
    move_elements(copies, *lane_.comm_stream);
    for (std::size_t i = 0; i < copies.size(); ++i)
      look(std::array{GradientRun{copies[i].to, parameters[i]}});
    return;
  }
  copied_flags_.clear();
  for (std::size_t const each : parameters) copied_flags_.push_back(words().flags + each);
  cuda::convert(copies, *lane_.comm_stream, copied_flags_);
}

// With weight 0 this rank's gradients are in no sum, so what was found in them is not sent.
void GradientChecks::tail() {
  if (!looks()) return;
  double const* const factor = weights_.factor(0);
  std::size_t const parameters = of_.parameters.size();
  if (factor != nullptr && lane_.device.kind == DeviceKind::cuda) {
    cuda::forget_without_weight(words().flags, parameters, factor, *lane_.comm_stream);
  } else if (factor != nullptr) {
    host_stream(*lane_.comm_stream).enqueue([flags = words().flags, count = parameters, factor] {
      if (*factor == 0) std::fill_n(flags, count, std::uint8_t{0});
    });
  }
  lane_.communicator->all_gather(flags_, all_flags_, *lane_.comm_stream);
}

void GradientChecks::add_squares(std::span<GradientRun const> runs) {
  double* const squares = own_squares() + pieces_;
  if (lane_.device.kind == DeviceKind::cuda) {
    cuda::sum_squares(runs, squares, *lane_.comm_stream);
    for (GradientRun const& run : runs) pieces_ += pieces_of(run.elements.count());
    return;
  }
  for (GradientRun const& run : runs) {
    host_stream(*lane_.comm_stream)
        .enqueue([data = run.elements.data, count = run.elements.count(), dtype = run.elements.dtype,
                  square = own_squares() + pieces_] {
          *square = sum_of_squares({data, Shape{count}, dtype, Device{}});
        });
    ++pieces_;
  }
}

// Where this rank writes them, if ranks then exchange theirs.
double* GradientChecks::own_squares() const noexcept {
  return words().squares + (of_.buckets.is_sharded() ? own_pieces_ * of_.buckets.place() : 0);
}

std::span<GradientRun const> GradientChecks::averages(std::size_t bucket) {
  runs_.clear();
  for (BucketSlice const& piece : of_.buckets.own_slices(bucket)) {
    runs_.push_back(
        {slice(of_.memory.gradient(piece.parameter), piece.parameter_offset, piece.count), piece.parameter});
  }
  return runs_;
}

// R18: whole parameters, in their order, wherever buckets begin and end.
void GradientChecks::add_squares_of_all() {
  runs_.clear();
  for (std::size_t p = 0; p < of_.parameters.size(); ++p) {
    TensorView const gradient = of_.memory.gradient(p);
    if (!runs_.empty() && runs_.front().elements.dtype != gradient.dtype) {
      add_squares(runs_);
      runs_.clear();
    }
    runs_.push_back({gradient, p});
  }
  add_squares(runs_);
}

void GradientChecks::after_bucket(std::size_t bucket) {
  if (clips() && !deterministic_) add_squares(averages(bucket));
}

// Work that is enqueued after this can read norm() and found_nonfinite().
void GradientChecks::after_tail() {
  if (clips() && deterministic_) add_squares_of_all();
  if (clips() && of_.buckets.parts() > 1) {
    TensorView const all = slice(squares_, 0, own_pieces_ * of_.buckets.parts());
    lane_.communicator->all_gather(slice(all, own_pieces_ * of_.buckets.place(), own_pieces_), all,
                                   *lane_.comm_stream);
  }
  if (lane_.device.kind == DeviceKind::cuda) {
    cuda::finish_checks(words(), *lane_.comm_stream);
  } else {
    host_stream(*lane_.comm_stream).enqueue([words = words()] { finish_on_host(words); });
  }
  for (std::size_t b = 0; clips() && b < of_.buckets.count(); ++b) clip(averages(b));
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

TensorView GradientChecks::norm(GradientChecks const* checks) {
  if (checks != nullptr && checks->clips()) return checks->norm_.view();
  throw Error(ErrorCode::invalid_state, "gradient_norm(): set Options::clip_norm, which has it computed");
}

TensorView GradientChecks::found_nonfinite(GradientChecks const* checks) {
  if (checks != nullptr && checks->nonfinite_ == Nonfinite::flag) return checks->found_.view();
  throw Error(ErrorCode::invalid_state,
              "found_nonfinite(): set Options::nonfinite to flag, which has gradients looked at");
}

std::vector<NonfiniteGradient> GradientChecks::nonfinite_gradients() const {
  std::vector<std::uint8_t> flags(all_flags_.view().count());
  lane_.comm_stream->expect_wait();
  copy_elements(view_of(std::span(flags)), all_flags_, *lane_.comm_stream);
  lane_.comm_stream->synchronize();
  std::vector<NonfiniteGradient> found;
  for (std::size_t p = 0; p < of_.parameters.size(); ++p) {
    for (std::size_t i = p, rank = 0; i < flags.size(); i += of_.parameters.size(), ++rank) {
      if (flags[i] != 0) found.push_back({p, Rank{static_cast<int>(rank)}});
    }
  }
  return found;
}

// Every rank has the same flags, so every rank throws the same error.
void GradientChecks::verdict() {
  if (!may_refuse()) return;
  std::string complaints;
  for (NonfiniteGradient const& found : nonfinite_gradients()) {
    complaints += text(complaints.empty() ? "" : ", ", parameter_name(of_.parameters, found.parameter),
                       " on rank ", of_.ranks[found.rank.index()]);
  }
  if (complaints.empty()) return;
  of_.ranks.let_others_read();
  throw Error(ErrorCode::invalid_state,
              text("gradients with NaN or infinity in synchronised step ", of_.step.number, ": ", complaints,
                   ". No weights have changed. Look at that rank's data and loss, or set "
                   "Options::nonfinite to flag, and skip such steps"));
}

}  // namespace ddp
