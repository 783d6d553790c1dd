#include "comm/host_communicator_base.hpp"

#include <utility>

#include "comm/last_operation.hpp"

namespace ddp {
namespace {

// Counts an operation as finished, however it ends.
class Finished {
 public:
  explicit Finished(std::atomic<int>& pending) noexcept : pending_(pending) {}
  Finished(Finished const&) = delete;
  Finished& operator=(Finished const&) = delete;
  ~Finished() { --pending_; }

 private:
  std::atomic<int>& pending_;
};

}  // namespace

Fingerprint HostCommunicatorBase::fingerprint(Operation const& operation) const {
  return {sequence_,         operation.whole_count(),        operation.kind,         operation.dtype,
          operation.op.kind, operation.op.factor != nullptr, operation.root.value(), operation.begins};
}

void HostCommunicatorBase::enqueue(std::span<Operation const> operations, Stream& stream) {
  HostStream& host = host_stream(stream);
  for (Operation const& operation : operations) {
    count_on(host);
    host.enqueue([this, operation] {
      Finished const finished(pending_);
      run_collective(operation);
    });
  }
}

void HostCommunicatorBase::count_on(HostStream& stream) {
  ++pending_;
  if (stream.is_inline()) return;
  auto watch = stream.watch();
  if (watch != watch_) watch_ = std::move(watch);
  stream_ = &stream;
}

// The stream's worker may be asleep because a caller said that it would wait; enqueue_always() wakes it.
// Operations behind failed work never finish; a stream that was destroyed has finished all of them.
void HostCommunicatorBase::finish_operations(char const* what) {
  bool woken = false;
  auto const check = [&] {
    check_health();
    if (pending_ == 0) return;
    watch_->check();
    if (woken || watch_->is_over()) return;
    stream_->enqueue_always([] {});
    woken = true;
  };
  wait_for_operations(
      what, members_.waiting.timeout, [this] { return pending_ == 0; }, check,
      [this](Failure const& failure) { fail(failure); });
}

}  // namespace ddp
