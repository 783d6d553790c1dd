// A client of the control socket that keeps no rules: for tests of what the server does about that.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <optional>
#include <string>
#include <string_view>

#include "bootstrap/server/unix_socket.hpp"
#include "bootstrap/wire.hpp"
#include "core/system/file_descriptor.hpp"
#include "ddp/core/deadline.hpp"

namespace ddp::testing {

class RawSocket {
 public:
  explicit RawSocket(std::string const& path) : socket_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    unix_socket::Address const address(path);
    if (::connect(socket_.get(), address.get(), address.length) != 0) error_ = errno;
  }

  /// errno of connect(), 0 when connected.
  [[nodiscard]] int error() const { return error_; }

  /// Sends without blocking; how many bytes the kernel took, -1 when the connection is broken.
  ssize_t send(std::string_view bytes) {
    ssize_t const count = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    return count < 0 && errno == EAGAIN ? 0 : count;
  }
  ssize_t send(wire::Frame const& frame) { return send(wire::encode(frame)); }

  /// Sends all of it, waiting as long as that takes, but not longer than 10 s; false when that failed.
  bool send_all(std::string_view bytes) {
    Deadline const deadline = Deadline::after(std::chrono::seconds(10));
    while (!bytes.empty()) {
      ssize_t const count = send(bytes);
      if (count < 0 || deadline.expired()) return false;
      bytes.remove_prefix(static_cast<std::size_t>(count));
      if (count == 0) wait(POLLOUT, std::chrono::milliseconds(10));
    }
    return true;
  }

  /// The next frame; nullopt when the connection closed or nothing came within 10 s.
  std::optional<wire::Frame> receive() {
    for (;;) {
      if (auto frame = decoder_.take(unread_)) return frame;
      if (!wait(POLLIN, std::chrono::seconds(10))) return std::nullopt;
      ssize_t const count = ::recv(socket_.get(), buffer_, sizeof buffer_, 0);
      if (count <= 0) return std::nullopt;
      unread_ = {buffer_, static_cast<std::size_t>(count)};
    }
  }

  /// Whether the server closes this connection within `time`. Discards what comes before that.
  bool closes_within(std::chrono::milliseconds time) {
    Deadline const deadline = Deadline::after(time);
    while (!deadline.expired()) {
      if (!wait(POLLIN, deadline.remaining())) continue;
      if (::recv(socket_.get(), buffer_, sizeof buffer_, 0) <= 0) return true;
    }
    return false;
  }

  /// Joins as an honest rank would.
  void join(int rank, int size) {
    send({wire::Type::join, 1, {}, wire::encode_join({Rank{rank}, size})});
    auto const answer = receive();
    ASSERT_TRUE(answer.has_value());
    ASSERT_EQ(answer->type, wire::Type::done);
  }

  void close() { socket_.reset(); }

 private:
  bool wait(short events, std::chrono::milliseconds time) {
    pollfd entry{socket_.get(), events, 0};
    return ::poll(&entry, 1, static_cast<int>(time.count())) > 0;
  }

  FileDescriptor socket_;
  int error_ = 0;
  wire::Decoder decoder_{wire::kFromServer};
  char buffer_[4096];
  std::span<char const> unread_;
};

}  // namespace ddp::testing
