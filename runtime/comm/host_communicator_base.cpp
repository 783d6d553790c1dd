#include "comm/host_communicator_base.hpp"

#include "comm/last_operation.hpp"

namespace ddp {

void HostCommunicatorBase::enqueue(std::span<Operation const> operations, Stream& stream) {
  HostStream& host = host_stream(stream);
  for (Operation const& operation : operations) {
    count_on(host);
    host.enqueue([this, operation] {
      auto const finish = [](std::atomic<int>* pending) { --*pending; };
      std::unique_ptr<std::atomic<int>, decltype(finish)> const however_it_ends(&pending_, finish);
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
