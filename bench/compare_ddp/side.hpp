// One of the things that are compared: how it reaches the other ranks, and how it wraps a module.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "ddp/libtorch/sharded_optimizer.hpp"

namespace compare {

/// How a module is wrapped.
struct WrapOptions {
  bool broadcast_buffers = true;  ///< in every step
  bool bf16 = false;              ///< gradients travel as bf16
  bool checked = false;           ///< gradients are looked at for NaN and infinity
  bool deterministic = false;     ///< gradients are added up in rank order
  bool statistics = false;        ///< steps are measured by what is compared itself
  double clip_norm = 0;           ///< the side may clip gradients; 0: it must not
  std::int64_t bucket_mib = 0;    ///< of a bucket, in MiB; 0: the default
  /// If set: updates some parameters whose gradients are averaged, while others still travel.
  std::function<void(std::vector<torch::Tensor> const&)> update{};
  /// If set: each rank keeps a part of the optimizer, which `make` makes of that part.
  std::optional<ddp::libtorch::ShardedOptimizer::Update> shard{};
  ddp::libtorch::ShardedOptimizer::Factory make{};

  /// For a side that has none of these.
  void require_plain() const {
    if (bf16 || checked || deterministic || statistics || update || shard || bucket_mib != 0) {
      throw std::runtime_error(
          "only compare_ddp_ours has --bf16, --checked, --deterministic, --statistics, --update-per-bucket, "
          "--shard and "
          "--bucket-mib");
    }
  }
};

/// A module whose gradients are averaged. before_forward() and before_backward() are called in each step.
class Wrapped {
 public:
  virtual ~Wrapped() = default;
  virtual void before_forward() {}
  virtual void before_backward(torch::Tensor const& loss) { static_cast<void>(loss); }
  /// Calls `backward`, whose gradients do not travel: those of the next one take them along.
  virtual void without_exchange(std::function<void()> const& backward) = 0;
  /// The norm of the last step's gradients before they were clipped to WrapOptions::clip_norm; undefined if
  /// the side does not clip.
  [[nodiscard]] virtual torch::Tensor clipped_norm() const { return {}; }
  /// With WrapOptions::checked: 1 where the optimizer is to skip the step.
  [[nodiscard]] virtual torch::Tensor found_nonfinite() const { return {}; }
  /// With WrapOptions::shard: what updates the parameters.
  [[nodiscard]] virtual ddp::libtorch::ShardedOptimizer* sharded() { return nullptr; }
};

/// A step that is run some times as it is, and then replayed as a CUDA graph where that can be.
class Recorded {
 public:
  virtual ~Recorded() = default;
  virtual void run() = 0;
  /// Why no graph is replayed; empty if one is.
  [[nodiscard]] virtual std::string why_eager() const = 0;
};

class Side {
 public:
  virtual ~Side() = default;
  [[nodiscard]] virtual char const* name() const = 0;
  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;
  [[nodiscard]] virtual torch::Device device() const = 0;
  /// An all-reduce of 4 bytes, behind what the device was given so far. The host does not wait on a GPU.
  virtual void meet() = 0;
  /// Returns when every rank has called it.
  virtual void barrier() = 0;
  [[nodiscard]] virtual std::unique_ptr<Wrapped> wrap(torch::nn::Module& net, WrapOptions const& options) = 0;
  /// `wrapped`: what the step is of; null if it is of a module that is not wrapped.
  [[nodiscard]] virtual std::unique_ptr<Recorded> record(Wrapped* wrapped, std::function<void()> step) {
    static_cast<void>(wrapped);
    static_cast<void>(step);
    throw std::runtime_error("only compare_ddp_ours has --graph");
  }
};

/// The side of this program. Joins the other ranks.
[[nodiscard]] std::unique_ptr<Side> make_side();

}  // namespace compare
