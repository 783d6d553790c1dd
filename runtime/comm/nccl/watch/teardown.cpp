#include "comm/nccl/watch/teardown.hpp"

#include <chrono>
#include <optional>

#include "bootstrap/bounded_call.hpp"
#include "core/system/thread_without_signals.hpp"
#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"
#include "ddp/device/device_guard.hpp"

namespace ddp {
namespace {

// How long freeing a communicator may take.
constexpr std::chrono::seconds kLongestEnd{30};

// NCCL restores the thread's device afterwards: a thread without one would get a context on GPU 0.
template <class End>
void on_device(Device device, End const& end) noexcept {
  std::optional<DeviceGuard> guard;
  try {
    guard.emplace(device);
  } catch (Error const& error) {
    log(LogLevel::error, error.what());
  }
  end();
}

// Aborts in the calling thread, whose current device is the group's. If that hangs, the process exits: it
// could never use its GPU again, and would never end by itself.
void abort_within_bound(NcclGroup const& group, std::function<void()> const& abort) noexcept {
  call_or_leave(kLongestEnd, abort, *group.control,
                text("rank ", group.me(), " leaves: NCCL's abort has not returned for ", kLongestEnd.count(),
                     " s, so its GPU cannot be used again by this process"));
}

// Calls `close` in a thread of its own. If it takes too long, the communicator is leaked; if it fails,
// aborts.
void close_within_bound(NcclGroup const& group, std::function<void()> close,
                        std::function<void()> const& abort) noexcept {
  try {
    bool const ended = call_within(kLongestEnd, [device = group.device, close = std::move(close)] {
      set_device(device);
      close();
    });
    if (ended) return;
    log(LogLevel::error, text("an NCCL communicator has not closed within ", kLongestEnd.count(),
                              " s and is left behind; CUDA graphs that hold its operations must go first"));
  } catch (std::exception const& error) {
    log(LogLevel::error, error.what());
    abort_within_bound(group, abort);
  }
}

}  // namespace

void NcclTeardown::begin_to_abort() noexcept {
  begun_ = true;
  try {
    aborting_ = start_thread_without_signals([this] { abort(); });
  } catch (std::exception const& error) {  // no thread can be started
    log(LogLevel::error, error.what());
    abort();
  }
}

void NcclTeardown::finish(Manner manner) noexcept {
  if (begun_) {
    if (aborting_.joinable()) aborting_.join();
  } else if (manner == Manner::failed) {
    abort();
  } else {
    manner == Manner::in_order ? close() : leave();
    retired_ = true;
  }
}

void NcclTeardown::abort() noexcept {
  if (group_.commits) group_.commits->poison();
  gate_.shut();
  abort_within_bound(group_, [this] {
    on_device(group_.device, [this] { handles_->abort([this] { gate_.wait_for_calls(); }); });
  });
  aborted_ = true;
}

void NcclTeardown::close() noexcept {
  on_device(group_.device, [this] {
    close_within_bound(
        group_, [handles = handles_] { handles->close(); }, [this] { handles_->abort([] {}); });
  });
}

// Unlike abort() it ends no step: all operations are through.
void NcclTeardown::leave() noexcept {
  abort_within_bound(group_, [this] { on_device(group_.device, [this] { handles_->abort([] {}); }); });
}

}  // namespace ddp
