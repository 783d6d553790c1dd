// What communicators of host memory have in common: operations as work on a host's stream.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/communicator_backend.hpp"
#include "comm/group/members.hpp"
#include "ddp/core/failure.hpp"

namespace ddp {

/// Puts operations on their stream, and counts what is under way. Derived classes run them, one at a time;
/// every wait has the communicator's deadline.
class HostCommunicatorBase : public CommunicatorBackend {
 public:
  void abort(std::string_view reason) noexcept final {
    fail({.code = ErrorCode::aborted, .ranks = {members_.me()}, .detail = std::string(reason)});
  }

 protected:
  HostCommunicatorBase(MemberGroup members, Device device)
      : CommunicatorBackend(members.rank, members.size(), device), members_(std::move(members)) {}

  /// Runs one collective, in the stream.
  virtual void run_collective(Operation const& operation) = 0;

  /// Makes every pending and later operation fail, on every rank. Any thread.
  virtual void fail(Failure const& failure) noexcept = 0;

  /// split() and allocate() run in the calling thread: this waits until no operation runs in a worker.
  /// Arguments and errors as wait_for_operations().
  void finish_operations(char const* what);

  /// Every rank's `mine`, all of one length. Runs at once, in this thread: no operation may be under way.
  template <class T>
  [[nodiscard]] std::vector<T> gather_now(std::vector<T> const& mine) {
    std::vector<T> all(mine.size() * static_cast<std::size_t>(size()));
    Operation operation;
    operation.kind = OperationKind::all_gather;
    operation.in = mine.data();
    operation.out = all.data();
    operation.count = mine.size() * sizeof(T);
    run_collective(operation);
    return all;
  }

  MemberGroup const members_;
  std::uint64_t sequence_ = 0;  ///< operations so far: run_collective() counts

 private:
  void enqueue(std::span<Operation const> operations, Stream& stream) final;
  void count_on(HostStream& stream);

  std::atomic<int> pending_{0};  // operations that a stream has not finished yet
  // The stream of the last operation that the calling thread does not run. watch_ tells whether it is gone.
  HostStream* stream_ = nullptr;
  std::shared_ptr<StreamWatch const> watch_;
};

}  // namespace ddp
