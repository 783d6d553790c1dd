#include "launcher/supervise/event_loop.hpp"

#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <span>
#include <utility>

#include "ddp/core/error.hpp"

namespace ddp::launcher {
namespace {

int milliseconds_until(std::optional<Deadline::Clock::time_point> moment) {
  if (!moment) return -1;
  auto const left = std::chrono::ceil<std::chrono::milliseconds>(*moment - Deadline::Clock::now()).count();
  return static_cast<int>(std::clamp<long long>(left, 0, 3600000));
}

}  // namespace

EventLoop::EventLoop() : epoll_(epoll_create1(EPOLL_CLOEXEC)) {
  if (!epoll_) throw_errno("making the event loop", errno);
}

void EventLoop::watch(int fd, std::uint32_t events, Handler handler, Turn turn) {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) throw_errno("watching a descriptor", errno);
  watched_.insert_or_assign(fd, Watched{std::move(handler), turn});
}

void EventLoop::forget(int fd) {
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  watched_.erase(fd);
}

void EventLoop::wait(std::optional<Deadline::Clock::time_point> until) {
  std::array<epoll_event, 64> events{};
  int const count =
      epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), milliseconds_until(until));
  if (count < 0 && errno != EINTR) throw_errno("waiting for events", errno);
  auto const ready = std::span(events).first(static_cast<std::size_t>(std::max(count, 0)));
  for (Turn const turn : {Turn::usual, Turn::last}) {
    for (epoll_event const& event : ready) {
      auto const found = watched_.find(event.data.fd);
      if (found == watched_.end() || found->second.turn != turn) continue;
      Handler const handler = found->second.handler;  // it may forget itself
      handler();
    }
  }
}

}  // namespace ddp::launcher
