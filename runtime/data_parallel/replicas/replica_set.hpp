// Replicas that live between steps: their values are refreshed, their gradients added up.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "data_parallel/replicas/backward_progress.hpp"
#include "data_parallel/replicas/direct_exchange.hpp"
#include "data_parallel/replicas/replica_threads.hpp"
#include "ddp/bootstrap/control_plane.hpp"
#include "ddp/comm/communicator.hpp"
#include "ddp/data_parallel/module.hpp"
#include "reducer/memory/coalesced_tensors.hpp"

namespace ddp {

/// Replica 0 is the module; each further one has a stream of its own. One thread at a time, but functions
/// that name a replica are called by that replica's thread. If replicas are ranks of a communicator, a
/// replica's thread enqueues little after its first message, for any number of tensors. Otherwise it might
/// block on a full queue of its GPU, while that GPU waits for a message that another thread cannot enqueue.
class ReplicaSet {
 public:
  /// How messages are sent: as fits the devices, or always without communicators.
  enum class Exchange { fitting, direct };

  /// Values below it travel in packs of at most kPackOfValues: NCCL takes twice as long for many messages of
  /// 1 MiB as for one, and packs are filled and unpacked while another one travels.
  static constexpr Bytes kSmallValue = 4_MiB;
  static constexpr Bytes kPackOfValues = 48_MiB;

  /// The module's tensors lie on devices[0]; devices are checked. A message that does not arrive fails after
  /// `timeout`.
  ReplicaSet(std::shared_ptr<Module> module, std::vector<Device> devices, std::chrono::milliseconds timeout,
             Exchange exchange = Exchange::fitting);
  ~ReplicaSet();
  ReplicaSet(ReplicaSet const&) = delete;
  ReplicaSet& operator=(ReplicaSet const&) = delete;

  [[nodiscard]] std::size_t size() const noexcept { return replicas_.size(); }
  [[nodiscard]] Module& module(std::size_t replica) const noexcept { return *replicas_[replica].module; }
  [[nodiscard]] Stream& stream(std::size_t replica) const noexcept { return module(replica).stream(); }
  [[nodiscard]] ReplicaThreads& threads() noexcept { return threads_; }
  [[nodiscard]] std::size_t parameter_count() const noexcept { return parameter_count_; }
  /// "in-process", "nccl", "direct" where replicas share a card; "none" for one replica.
  [[nodiscard]] std::string_view backend() const noexcept;

  /// Gives every replica the values of parameters and buffers of replica 0; unpack_values() puts them in
  /// place. No user code may run until this has returned: user code may wait for the GPU (a library's first
  /// call that allocates), and the GPU for a message that another thread cannot enqueue meanwhile.
  void refresh();
  void unpack_values(std::size_t replica);  ///< After refresh().
  /// Before a backward pass, in its thread: no gradient is ready, and those of all replicas but 0 are zeroed.
  void begin_backward(std::size_t replica);
  /// Before a backward pass: if replica 0 keeps its gradients elsewhere now, writes sums there. Throws
  /// Error(invalid_argument) if they are not like its values.
  void follow_gradients();
  /// Within a backward pass, in its thread, as BackwardProgress::ready(). Throws Error(invalid_argument) for
  /// a parameter that is not there.
  void gradient_ready(std::size_t replica, std::size_t parameter);
  void end_backward(std::size_t replica);  ///< After it, as BackwardProgress::end().
  /// Adds the gradients of all replicas to those of replica 0, each bucket as soon as it is complete. Called
  /// after all backward passes have returned on the host: for the same reason as refresh(), and because a
  /// replica that fails in its pass would leave the others waiting.
  void reduce_gradients();

  /// Waits until the devices have finished all work. Failures are logged.
  void synchronize() noexcept;

  /// From now on, work on every replica's stream waits for what is on replica 0's stream now.
  void follow_primary();
  /// From now on, work on replica 0's stream waits for what is on every replica's stream now.
  void lead_primary();
  /// The same, as far as possible.
  void lead_primary_after_error() noexcept;

 private:
  struct Replica {
    std::shared_ptr<Module> module;
    std::shared_ptr<ControlPlane> control;
    std::unique_ptr<Communicator> communicator;
    std::unique_ptr<Stream> message_stream;  // beside the module's, where the replica enqueues messages
    CoalescedTensors values;
    std::vector<Event> arrived;  // by message of values, with packs ahead
    CoalescedTensors gradients;
    std::optional<BackwardProgress> progress;
  };
  void make_replica(std::size_t replica);
  void bind_gradients(std::size_t replica);
  void use_gradients_of_module(std::size_t replica);
  void make_message_stream(std::size_t replica);
  void broadcast_values(std::size_t replica);
  void copy_values();
  void reduce_gradients_of(std::size_t replica);
  void add_gradients();
  /// Calls `enqueue()`, collective. If it throws, no other replica waits for this one, and this one's stream
  /// waits for `messages`.
  template <class Enqueue>
  void together(std::size_t replica, Stream& messages, Enqueue const& enqueue);
  void connect(std::chrono::milliseconds timeout);
  /// A message with the communicator's device: that of in-process ranks is always cpu:0.
  [[nodiscard]] TensorView as_sent(Replica const& replica, TensorView message) const;

  std::vector<Replica> replicas_;
  std::optional<DirectExchange> direct_;  // instead of communicators
  FlatLayout value_layout_;
  bool packs_ahead_ = false;  // packs of values are filled while another one travels
  FlatLayout gradient_layout_;
  std::shared_ptr<BackwardPlan const> backward_plan_;
  std::size_t parameter_count_ = 0;
  std::vector<void*> gradients_at_;  // replica 0's, as its module gave them last
  ReplicaThreads threads_;           // last: its threads end first
};

}  // namespace ddp
