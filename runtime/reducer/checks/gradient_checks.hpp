// What is found in the gradients of a step: which of a rank's are not finite, and the norm of the averages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "ddp/core/tensor.hpp"
#include "ddp/device/tensor_ops.hpp"
#include "ddp/reducer/reducer.hpp"

namespace ddp {

/// Elements of one parameter, one after another in memory.
struct GradientRun {
  TensorView elements;
  std::size_t parameter = 0;
};

/// Works on the lane's communication stream, and allocates nothing in a step. Everything is the same
/// on every rank once the step is through.
class GradientChecks {
 public:
  GradientChecks(ReducerLane const& lane, std::size_t parameters, ReducerOptions const& options);
  GradientChecks(GradientChecks&&) = delete;

  /// For the buckets of a plan. Between steps; the streams have reached all that was enqueued.
  void make_room(BucketPlan const& plan);

  void begin_step();
  /// Looks for numbers that are not finite in gradients of this rank, which it has not sent yet.
  void look(std::span<GradientRun const> runs);
  /// Copies gradients into a bucket, converted where it has another dtype, and looks at what is written
  /// there. `parameters`: of each copy.
  void copy(std::span<Copy const> copies, std::span<std::size_t const> parameters);
  /// Tells every rank what look() has found. May be called inside a group. `factor`, read when this runs:
  /// with 0 this rank's gradients are in no sum, and whatever they are is not told; null: they are.
  void exchange(double const* factor);
  /// Adds to the norm: of averages.
  void add_squares(std::span<GradientRun const> runs);
  /// norm() and found_nonfinite() are known to what is enqueued behind this.
  void finish();
  /// Multiplies averages by what brings their norm down to ReducerOptions::clip_norm.
  void clip(std::span<GradientRun const> runs);

  [[nodiscard]] TensorView const& norm() const noexcept { return norm_.view(); }
  [[nodiscard]] TensorView const& found_nonfinite() const noexcept { return found_.view(); }
  /// Of the last step: parameters and the ranks, by index, on which they were not finite. The host waits.
  [[nodiscard]] std::vector<NonfiniteGradient> nonfinite_gradients();

  /// What the kernels and the host's loops write.
  struct Words {
    std::uint8_t* flags;            ///< by parameter: whether it is not finite on this rank
    std::uint8_t const* all_flags;  ///< by rank and parameter
    std::size_t all_flags_count;
    double* squares;  ///< sums of squares, one for each piece of a run
    std::size_t squares_count;
    double* norm;
    double* factor;
    float* found;
    double clip_norm;
  };

 private:
  [[nodiscard]] Words words() const noexcept;

  ReducerLane lane_;
  std::size_t parameters_;
  bool looks_;
  double clip_norm_;
  Tensor flags_;
  Tensor all_flags_;
  Tensor squares_;
  Tensor norm_;
  Tensor factor_;
  Tensor found_;
  std::size_t pieces_ = 0;                // of this step, so far
  std::vector<std::uint8_t*> nonfinite_;  // of what one copy() copies
};

namespace cuda {

/// What one block of a kernel does.
inline constexpr std::size_t kCheckedPiece = std::size_t{16} << 10;

/// flags[parameter] = 1 where a run has an element that is not finite.
void find_nonfinite(std::span<GradientRun const> runs, std::uint8_t* flags, Stream& stream);
/// flags[0] … = 0 if *factor is 0.
void forget_without_weight(std::uint8_t* flags, std::size_t count, double const* factor, Stream& stream);
/// The sum of squares of each piece of each run, to squares[0], [1], …
void sum_squares(std::span<GradientRun const> runs, double* squares, Stream& stream);
void finish_checks(GradientChecks::Words const& words, Stream& stream);
/// Does nothing where *factor is 1.
void multiply(std::span<GradientRun const> runs, double const* factor, Stream& stream);
/// Loads these kernels; a first launch might wait for work of other ranks.
void load_check_kernels();

}  // namespace cuda
}  // namespace ddp
