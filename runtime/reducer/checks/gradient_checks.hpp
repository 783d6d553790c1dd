// What is found in the gradients of a step: which of a rank's are not finite, and the norm of the averages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ddp/core/tensor.hpp"
#include "ddp/device/tensor_ops.hpp"
#include "ddp/reducer/options.hpp"
#include "ddp/reducer/parameter.hpp"
#include "reducer/parts/rank_weights.hpp"
#include "reducer/parts/step_part.hpp"

namespace ddp {

/// Finds gradients that are not finite (R17), and clips averages by their norm (R15). Works on the lane's
/// communication stream, and allocates nothing in a step. Everything is the same on every rank once the
/// step is through.
class GradientChecks final : public StepPart {
 public:
  using Nonfinite = DistributedDataParallelOptions::Nonfinite;

  /// Of gradients on one lane, by `options`: nonfinite, clip_norm (0: the norm is not asked for),
  /// deterministic. `weights` must outlive this object.
  GradientChecks(ReducerState const& of, RankWeights const& weights,
                 DistributedDataParallelOptions const& options);

  /// Looks for numbers that are not finite in gradients of this rank, which it has not sent yet.
  void look(std::span<GradientRun const> runs);
  /// Copies gradients into a bucket, converted where it has another dtype, and looks at what is written
  /// there. `parameters`: of each copy.
  void copy(std::span<Copy const> copies, std::span<std::size_t const> parameters);

  /// f64[1], of `checks`. Throws Error(invalid_state) if they are null or without clip_norm.
  [[nodiscard]] static TensorView norm(GradientChecks const* checks);
  /// f32[1], of `checks`. Throws Error(invalid_state) if they are null or without Nonfinite::flag.
  [[nodiscard]] static TensorView found_nonfinite(GradientChecks const* checks);
  /// Which parameters were not finite in the last step, and on which ranks, by index. The host waits.
  [[nodiscard]] std::vector<NonfiniteGradient> nonfinite_gradients() const;

  [[nodiscard]] std::string describe() const override;
  [[nodiscard]] std::string why_not_recorded() const override;
  [[nodiscard]] bool may_refuse() const override { return nonfinite_ == Nonfinite::error; }
  void plan_changed() override;
  void head() override;
  void after_bucket(std::size_t bucket) override;
  void tail() override;
  void after_tail() override;
  void verdict() override;

  /// Memory that the kernels and the host's loops write.
  struct Words {
    std::uint8_t* flags;            ///< by parameter: 1 if it is not finite on this rank
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
  [[nodiscard]] bool looks() const noexcept { return nonfinite_ != Nonfinite::ignore; }
  [[nodiscard]] bool clips() const noexcept { return clip_norm_ > 0; }
  // The averages of a bucket.
  [[nodiscard]] std::span<GradientRun const> averages(std::size_t bucket);
  [[nodiscard]] double* own_squares() const noexcept;
  void add_squares(std::span<GradientRun const> runs);
  void add_squares_of_all();
  void clip(std::span<GradientRun const> runs);

  RankWeights const& weights_;
  ReducerLane const& lane_;
  Nonfinite nonfinite_;
  double clip_norm_;
  bool deterministic_;
  Tensor flags_;
  Tensor all_flags_;
  Tensor squares_;
  Tensor norm_;
  Tensor factor_;
  Tensor found_;
  std::size_t pieces_ = 0;                   // of this step, so far
  std::size_t own_pieces_ = 0;               // at most, in a step
  std::vector<std::uint8_t*> copied_flags_;  // of what one copy() copies
  std::vector<GradientRun> runs_;            // of one bucket
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
