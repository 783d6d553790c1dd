// Whether all ranks have the same weights (F12).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ddp/core/tensor.hpp"
#include "ddp/reducer/parameter.hpp"
#include "reducer/memory/gradient_run.hpp"
#include "reducer/parts/step_part.hpp"

namespace ddp {

/// A number for each parameter's values, which any flipped bit changes, compared over ranks. Of one lane.
class ValueHashes {
 public:
  /// `parameters`: all of the model, of which this takes those on the lane's device.
  ValueHashes(ReducerLane const& lane, std::span<Parameter const> parameters);

  /// Hashes the values as they are on the compute stream, and gives every rank the hashes of all. The host
  /// waits.
  void exchange(std::span<Parameter const> parameters, Stream& compute_stream);
  /// A parameter that is not the same on all ranks, and the ranks (by index) on which it differs from what
  /// most ranks have, or, without a majority, from rank 0's.
  struct Difference {
    std::size_t parameter = 0;
    std::vector<std::size_t> ranks;
    bool is_minority = true;
  };
  [[nodiscard]] std::vector<Difference> differences() const;

 private:
  ReducerLane lane_;
  std::vector<std::size_t> indices_;
  std::vector<GradientRun> runs_;  // of values
  Tensor mine_;
  Tensor all_;
  std::vector<std::int64_t> fetched_;  // `all_`, on the host
};

/// Every so many steps ranks compare their weights.
class ReplicaCheck final : public StepPart {
 public:
  ReplicaCheck(ReducerState const& of, std::uint64_t every);

  [[nodiscard]] std::string describe() const override;
  [[nodiscard]] std::string why_not_recorded() const override {
    return "Options::verify_every is set, for which the host compares weights";
  }
  void verdict() override;

 private:
  std::uint64_t every_;
  std::vector<ValueHashes> hashes_;  // by lane
};

/// What one element, whose bits are `bits`, adds to its parameter's hash, a sum that depends on no order.
#ifdef __CUDACC__
__host__ __device__
#endif
    constexpr std::uint64_t
    hash_of(std::uint64_t bits, std::uint64_t index) noexcept {
  std::uint64_t x = (bits + 1) * 0x9e3779b97f4a7c15U ^ (index + 1) * 0xd6e8feb86659fd93U;
  x = (x ^ (x >> 32U)) * 0xd6e8feb86659fd93U;
  return x ^ (x >> 29U);
}

namespace cuda {
/// hashes[run.parameter] += that of the run's elements, whose first one has index 0.
void hash_elements(std::span<GradientRun const> runs, std::uint64_t* hashes, Stream& stream);
/// As load_check_kernels().
void load_hash_kernels();
}  // namespace cuda
}  // namespace ddp
