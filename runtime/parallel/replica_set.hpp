// Replicas that live between steps: their values are refreshed, their gradients added up.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "ddp/bootstrap/control_plane.hpp"
#include "ddp/comm/communicator.hpp"
#include "ddp/parallel/module.hpp"
#include "parallel/backward_progress.hpp"
#include "parallel/flat_messages.hpp"
#include "parallel/replica_threads.hpp"

namespace ddp {

/// Replica 0 is the module; each further one has a stream and a rank of its own. refresh() and
/// reduce_gradients() are collective: each replica's thread calls them. Behind their first message they
/// enqueue few things, however many tensors there are: more might wait for room in a queue of the GPU, which
/// would wait for another thread's message.
class ReplicaSet {
 public:
  /// The module's tensors lie on devices[0]; devices are checked. Collective ends after `timeout`.
  ReplicaSet(std::shared_ptr<Module> module, std::vector<Device> devices, std::chrono::milliseconds timeout);
  ~ReplicaSet();
  ReplicaSet(ReplicaSet const&) = delete;
  ReplicaSet& operator=(ReplicaSet const&) = delete;

  [[nodiscard]] std::size_t size() const noexcept { return replicas_.size(); }
  [[nodiscard]] Module& module(std::size_t replica) const noexcept { return *replicas_[replica].module; }
  [[nodiscard]] Stream& stream(std::size_t replica) const noexcept { return module(replica).stream(); }
  [[nodiscard]] std::vector<std::shared_ptr<Module>> modules() const;
  [[nodiscard]] ReplicaThreads& threads() noexcept { return threads_; }
  [[nodiscard]] std::size_t parameter_count() const noexcept { return parameter_count_; }
  /// "in-process", "nccl", "staged"; "none" for one replica.
  [[nodiscard]] std::string_view backend() const noexcept;

  /// Gives every replica the values of parameters and buffers of replica 0; unpack_values() puts them in
  /// place.
  void refresh(std::size_t replica);
  void unpack_values(std::size_t replica);  ///< When all have called refresh().
  /// Before a backward pass, in its thread: no gradient is ready, and those of replicas but 0 are 0.
  void begin_backward(std::size_t replica);
  /// Before a backward pass: if replica 0 keeps its gradients elsewhere now, sums go there. Throws
  /// Error(invalid_argument) if they are not like its values.
  void follow_gradients();
  /// Within a backward pass, in its thread, as BackwardProgress::ready(). Throws Error(invalid_argument) for
  /// a parameter that is not there.
  void gradient_ready(std::size_t replica, std::size_t parameter);
  void end_backward(std::size_t replica);  ///< Behind it, as BackwardProgress::end().
  /// Adds the gradients of all replicas to those of replica 0, each bucket as soon as it is complete. Once
  /// the host is through with the backward passes of all: what user code does may wait for the GPU, which
  /// would wait for a message that another thread cannot enqueue meanwhile.
  void reduce_gradients(std::size_t replica);
  void unpack_gradients();  ///< Puts the sums in place, when all have called reduce_gradients().

  /// Work of every replica's stream from now on comes behind that of replica 0's until now.
  void follow_primary();
  /// The other way round.
  void lead_primary();
  /// The same as far as it can be done.
  void lead_primary_after_error() noexcept;

 private:
  struct Replica {
    std::shared_ptr<Module> module;
    std::shared_ptr<ControlPlane> control;
    std::unique_ptr<Communicator> communicator;
    std::unique_ptr<Stream> reduce_stream;  // beside the module's
    FlatMessages values;
    FlatMessages gradients;
    std::optional<BackwardProgress> progress;
  };
  void make_replica(std::size_t replica);
  void bind_gradients(std::size_t replica);
  void use_gradients_of_module(std::size_t replica);
  void make_reduce_stream(std::size_t replica);
  /// Calls `enqueue()`, collective; if it throws, no other replica waits for this one.
  template <class Enqueue>
  void together(std::size_t replica, Enqueue const& enqueue);
  void connect(std::chrono::milliseconds timeout);
  /// A message as the communicator names its device: in-process ranks are all of cpu:0.
  [[nodiscard]] TensorView as_sent(Replica const& replica, TensorView message) const;

  std::vector<Replica> replicas_;
  FlatLayout value_layout_;
  FlatLayout gradient_layout_;
  std::shared_ptr<BackwardPlan const> backward_plan_;
  std::size_t parameter_count_ = 0;
  std::vector<void*> gradients_at_;  // of replica 0, as it says
  ReplicaThreads threads_;           // last: its threads end first
};

}  // namespace ddp
