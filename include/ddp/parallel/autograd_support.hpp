// Functions that only an adapter for an autograd library needs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "ddp/core/export.hpp"
#include "ddp/core/tensor.hpp"
#include "ddp/parallel/distributed_data_parallel.hpp"

namespace DDP_EXPORT ddp {

/// A view of a DistributedDataParallel, which must outlive it and stay where it is. Threads and errors: as
/// there. ddp::libtorch is such an adapter.
class AutogradSupport {
 public:
  /// Writes flags, of which each is 0 or 1.
  using TellFlags = std::function<void(std::span<std::uint8_t> flags)>;
  /// What an adapter does in World::rebuild().
  struct Following {
    std::function<std::string()> why_not;                ///< why it cannot follow; empty if it can
    std::function<void(std::string_view reason)> abort;  ///< its own operations fail; must not throw
    /// Parameters and buffers are about to be read, or written, where this object knows them.
    std::function<void()> settle;
    /// The last step may have broken, gradients have been bound anew, parameters and buffers may have other
    /// values, and what tell_with_tail() was given is forgotten. On every rank, in the order in which the
    /// objects were made.
    std::function<void()> go_on;
  };

  explicit AutogradSupport(DistributedDataParallel& ddp) noexcept : ddp_(&ddp) {}  ///< Of this one.

  /// From now on World::rebuild() calls these, all of them.
  void follow_world(Following follows);
  /// As DistributedDataParallel::no_gradient(), but in place of zeros this rank gives `kept`, a gradient of
  /// an earlier step, under the rules of gradient_ready(index, source): what the ranks have added up is
  /// averaged. The bound memory then has that average also if no rank used the parameter.
  void no_gradient(std::size_t index, Tensor kept);
  /// Sends now what the next synchronize() would send first, so that synchronize() only waits. For a program
  /// that ends the steps of several objects, which ranks may have begun in different orders.
  void send_rest();
  /// As DistributedDataParallel::abandon_step(), also where this rank has not begun the step.
  void abandon_step(std::string_view reason) noexcept;
  /// Before the first gradient of a step: whether the program has changed a parameter, and cleared a
  /// gradient, since this rank's last step. If ranks that call this differ, they get CommError(mismatch) from
  /// this step.
  void since_last_step(bool changed_parameters, bool cleared_gradients);
  /// Before the first step, with the same `flags` on every rank: that many bytes of 0 or 1 travel with each
  /// step's last message (the tail). `say` writes all of this rank's, in the thread that marks the step's
  /// last parameter or calls synchronize().
  void tell_with_tail(std::size_t flags, TellFlags say);
  /// After synchronize(): for each flag 1 if some rank set it; the same on every rank. Between CPUs these are
  /// the flags of this step; on a GPU those of the step before, for which the host waits when a step begins.
  [[nodiscard]] std::span<std::uint8_t const> told_with_tail();

 private:
  DistributedDataParallel* ddp_;
};

}  // namespace ddp
