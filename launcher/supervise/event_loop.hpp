// The supervisor's event loop: epoll, with a handler for each descriptor.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>

#include "core/system/file_descriptor.hpp"
#include "ddp/core/deadline.hpp"

namespace ddp::launcher {

/// For one thread. Forget a descriptor before closing it, unless wait() is not called any more: epoll would
/// still report it if a forked child holds a copy.
class EventLoop {
 public:
  using Handler = std::function<void()>;
  enum class Turn { usual, last };

  EventLoop();  ///< Throws Error(io).

  /// `events`: EPOLLIN or EPOLLOUT. If several are ready, handlers of Turn::last are called after all others.
  void watch(int fd, std::uint32_t events, Handler handler, Turn turn = Turn::usual);
  /// Its handler is not called any more, even if it is ready together with the handler that runs now.
  void forget(int fd);
  /// Sleeps until something is ready, `until` at the latest, and calls the handlers.
  void wait(std::optional<Deadline::Clock::time_point> until);

 private:
  struct Watched {
    Handler handler;
    Turn turn;
  };
  FileDescriptor epoll_;
  std::map<int, Watched> watched_;
};

}  // namespace ddp::launcher
