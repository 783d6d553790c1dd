// What communicators of host memory have in common: operations as work on a host's stream.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <span>
#include <vector>

#include "comm/fingerprint.hpp"
#include "comm/message.hpp"
#include "ddp/comm/communicator.hpp"

namespace ddp {

/// Puts operations on their stream, collects groups, and counts what is under way. What derives from it runs
/// them, one at a time, each wait with the communicator's deadline.
class HostCommunicator : public Communicator {
 protected:
  using Communicator::Communicator;

  /// Runs one collective, in the stream.
  virtual void run_collective(Operation const& operation) = 0;
  /// Runs the sends and receives of one group, or a single one, all together.
  virtual void run_messages(std::span<Operation const> messages) = 0;

  /// split() and allocate() run in the caller: nothing may be under way in a worker at the same time. Throws
  /// Error(invalid_state) for `what`, the call that needs it.
  void require_idle(char const* what) const;

  /// What this rank says of `operation`, for the others to compare. A collective is number sequence_.
  [[nodiscard]] Fingerprint fingerprint(Operation const& operation) const;

  /// A send or a recv of this rank.
  [[nodiscard]] static Message message_of(Operation const& operation);

  std::uint64_t sequence_ = 0;  ///< collectives so far: run_collective() counts

 private:
  // Sends and receives of one group, kept until they have run.
  struct Batch {
    std::vector<Operation> messages;
    std::atomic<bool> done{false};
  };

  void enqueue(Operation const& operation, Stream& stream) final;
  void begin_group() final;
  void end_group(bool start) final;
  void run(Operation const& operation);

  bool grouping_ = false;
  Stream* group_stream_ = nullptr;
  std::vector<Operation> group_;
  std::list<Batch> batches_;
  std::atomic<int> pending_{0};  // operations that a stream has not finished yet
};

}  // namespace ddp
