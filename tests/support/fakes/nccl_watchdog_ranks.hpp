#pragma once

#include <chrono>
#include <future>
#include <latch>
#include <memory>
#include <thread>

#include "comm/nccl/watch/watchdog.hpp"
#include "device/cuda/stream/stream_state.hpp"
#include "support/errors.hpp"
#include "support/fakes/fake_cuda_events.hpp"
#include "support/fakes/fake_nccl_ranks.hpp"

namespace ddp::testing {

inline Fingerprint barrier() {
  return {0, 0, OperationKind::barrier, DType::u8, ReduceOp::Kind::sum, false, 0};
}

/// Two ranks, of which the first has a watchdog; the other one calls what a test says for it.
class Watchdog : public FakeNcclRanks {
 protected:
  ~Watchdog() override {
    fake_cuda::set_answering(true);
    fake_cuda::set_capturing(false);
    fake_cuda::set_done(true);
  }

  template <class Body>
  void on_one_of_two(std::chrono::milliseconds timeout, Body body) {
    std::latch ready(1);
    std::latch over(1);
    on_ranks(2, timeout, [&](NcclConnection connection, int rank) {
      auto const handles = connection.handles;
      if (rank == 1) {
        peer_ = connection.calls;
        ready.count_down();
      } else {
        ready.wait();
        CudaStream stream(Device{}, nullptr);
        auto const watchdog = std::make_shared<NcclWatchdog>(std::move(connection));
        watchdog->start();
        body(*watchdog, stream);
        fake_cuda::set_answering(true);
        fake_cuda::set_done(true);
        watchdog->fail(
            {.code = ErrorCode::aborted, .detail = "the test is over"});  // the first failure stays
        watchdog->close();
        is_over_ = watchdog->is_over();
        over.count_down();
      }
      over.wait();
      if (rank == 1) peer_.reset();
      handles->abort([] {});
    });
  }

  static void call(NcclWatchdog& watchdog, CudaStream& stream, int operations = 1,
                   Fingerprint const& operation = barrier()) {
    NcclWatchdog::Call call(watchdog, stream);
    for (int i = 0; i < operations; ++i) call.publish(operation);
    call.begin();
    fake_cuda::set_done(false);  // what runs waits for the other rank
  }

  /// Returns when the watchdog has given up: the failure, after the abort of both communicators.
  static CommError failure_of(NcclWatchdog const& watchdog, int open_before) {
    Deadline const give_up = Deadline::after(std::chrono::seconds(30));
    while (fake_nccl::open_communicators() > open_before - 2) {
      if (give_up.expired()) {
        ADD_FAILURE() << "nothing was aborted";
        break;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return error_of<CommError>([&] { watchdog.check(); });
  }

  /// A wait for a stream that the GPU has passed, in another thread.
  static std::future<void> settling(NcclWatchdog const& watchdog, std::uint64_t through) {
    return std::async(std::launch::async, [&watchdog, through] { watchdog.settle(through); });
  }
  static std::future<void> finishing(NcclWatchdog const& watchdog) {
    return std::async(std::launch::async, [&watchdog] { watchdog.finish_operations("split"); });
  }
  static bool ends(std::future<void> const& work, std::chrono::milliseconds within) {
    return work.wait_for(within) == std::future_status::ready;
  }

  std::shared_ptr<PublishedCalls> peer_;
  bool is_over_ = false;  // what it says after its end
};

}  // namespace ddp::testing
