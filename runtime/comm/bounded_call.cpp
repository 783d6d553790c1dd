#include "comm/bounded_call.hpp"

#include <unistd.h>

#include <exception>
#include <future>
#include <thread>
#include <utility>

#include "core/patience.hpp"
#include "ddp/core/log.hpp"

namespace ddp {
namespace {

bool becomes_ready(std::future<void> const& end, std::chrono::milliseconds longest) {
  Patience patience(longest);
  while (end.wait_for(patience.nap()) != std::future_status::ready) {
    if (patience.ended()) return false;
  }
  return true;
}

}  // namespace

bool call_within(std::chrono::milliseconds longest, std::function<void()> call) {
  std::packaged_task<void()> task(std::move(call));
  std::future<void> done = task.get_future();
  std::thread(std::move(task)).detach();
  if (!becomes_ready(done, longest)) return false;
  done.get();
  return true;
}

void call_or_leave(std::chrono::milliseconds longest, std::function<void()> const& call,
                   ControlPlane& control, std::string const& message) noexcept {
  std::promise<void> done;
  std::thread guard;
  try {
    guard = std::thread([&, ended = done.get_future()] {
      if (becomes_ready(ended, longest)) return;
      log(LogLevel::error, message);
      control.report_error(ErrorCode::aborted, message);
      ::_exit(1);
    });
  } catch (std::exception const& error) {
    // The call matters more than its bound.
    log(LogLevel::error, error.what());
  }
  call();
  done.set_value();
  if (guard.joinable()) guard.join();
}

}  // namespace ddp
