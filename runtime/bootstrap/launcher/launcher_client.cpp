#include "bootstrap/launcher/launcher_client.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "bootstrap/error_file.hpp"
#include "core/system/thread_without_signals.hpp"
#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"

namespace ddp {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t kAnswerReadSize = (64_KiB).value;
constexpr milliseconds kReportTime{200};  ///< to send the server something that nobody waits for

Failure is_gone() {
  return {.code = ErrorCode::peer_lost,
          .detail = "ddp-launch is gone: its control socket closed. This rank cannot go on alone"};
}

Failure is_silent() {
  return {.code = ErrorCode::timeout,
          .manner = Failure::Manner::silent,
          .detail = "ddp-launch does not answer on its control socket: is it stopped?"};
}

// False when the time ended before the socket was ready.
bool wait_for(int descriptor, short events, PausingDeadline& timeout) noexcept {
  for (;;) {
    pollfd entry{descriptor, events, 0};
    if (::poll(&entry, 1, static_cast<int>(timeout.nap().count())) > 0) return true;
    if (timeout.ended()) return false;
  }
}

FileDescriptor connect_to(std::string const& path, Deadline deadline) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    throw Error(ErrorCode::invalid_argument, text("DDP_CONTROL is ", path.size(),
                                                  " bytes long, a socket's path at "
                                                  "most ",
                                                  sizeof address.sun_path - 1, ": ", path));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  FileDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) throw_errno("making a socket for the control plane", errno);
  PausingDeadline timeout(deadline);
  while (::connect(socket.get(), reinterpret_cast<sockaddr const*>(&address), sizeof address) != 0) {
    if (errno != EAGAIN && errno != EINTR) {
      throw_errno(
          text("connecting to ddp-launch at ", path, " (from DDP_CONTROL; is ddp-launch still running?)"),
          errno);
    }
    // EAGAIN: the server's backlog is full. There is nothing to poll for.
    if (timeout.ended()) {
      throw CommError(ErrorCode::timeout, text("connecting to ddp-launch at ", path, " timed out after ",
                                               seconds(deadline.allowed()), " s: it accepts no connections"));
    }
    std::this_thread::sleep_for(milliseconds(1));
  }
  return socket;
}

Deadline at_least(Deadline deadline, milliseconds least) {
  return deadline.remaining() < least ? Deadline::after(least) : deadline;
}

}  // namespace

LauncherClient::LauncherClient(RankInfo const& info, Deadline deadline)
    : ControlClient(info.rank, info.size),
      path_(info.control),
      error_file_(info.error_file),
      socket_(connect_to(info.control, deadline)) {
  reader_ = start_thread_without_signals([this] { read_until_closed(); });
  try {
    join(deadline);
  } catch (...) {
    stop_reading();
    throw;
  }
}

LauncherClient::~LauncherClient() { stop_reading(); }

void LauncherClient::stop_reading() noexcept {
  ::shutdown(socket_.get(), SHUT_RDWR);  // wakes the reader
  reader_.join();
}

void LauncherClient::join(Deadline deadline) {
  Waiter waiter(pending_);
  auto const unsent =
      send({wire::Type::join, waiter.number(), {}, wire::encode_join({rank(), size()})}, deadline);
  if (unsent) throw CommError(unsent->code, text("joining the job at ", path_, ": ", unsent->detail));
  if (!waiter.wait(PausingDeadline(deadline))) {
    throw CommError(ErrorCode::timeout, text("joining the job at ", path_, " timed out after ",
                                             seconds(deadline.allowed()), " s: ", is_silent().detail));
  }
  auto const refusal = waiter.take().failure;
  if (!refusal) return;
  if (refusal->code == ErrorCode::peer_lost) {
    throw Error(ErrorCode::io, text("joining the job at ", path_,
                                    ": ddp-launch closed the connection. Is it of "
                                    "another version, or run by another user?"));
  }
  if (refusal->code == ErrorCode::protocol) {
    throw Error(ErrorCode::protocol, text("joining the job at ", path_, ": ", refusal->detail));
  }
  throw Error(refusal->code, text("ddp-launch refused rank ", rank(), " of ", size(), ": ", refusal->detail));
}

void LauncherClient::read_until_closed() noexcept {
  try {
    std::string buffer(kAnswerReadSize, '\0');
    wire::Decoder decoder(wire::kFromServer);
    for (;;) {
      ssize_t const count = ::recv(socket_.get(), buffer.data(), buffer.size(), 0);
      if (count > 0) {
        std::span<char const> bytes(buffer.data(), static_cast<std::size_t>(count));
        while (auto frame = decoder.take(bytes)) handle(*frame);
        continue;
      }
      if (count == 0 || (errno != EAGAIN && errno != EINTR)) break;
      pollfd entry{socket_.get(), POLLIN, 0};
      ::poll(&entry, 1, -1);  // ended by the server or by the destructor's shutdown()
    }
    close_with(is_gone());
  } catch (std::exception const& error) {
    ::shutdown(socket_.get(), SHUT_RDWR);
    close_with({.code = ErrorCode::protocol,
                .detail = text("the control socket cannot be read any more: ", error.what())});
  }
}

void LauncherClient::handle(wire::Frame const& frame) {
  if (frame.type == wire::Type::lost) {
    Failure lost = wire::decode_lost(frame.value);
    std::lock_guard const lock(mutex_);
    lost_.push_back(std::move(lost));
    return;
  }
  Outcome outcome;
  if (frame.type == wire::Type::done) {
    outcome.values = wire::decode_values(frame.value);
  } else if (frame.type == wire::Type::failed) {
    outcome.failure = wire::decode_failure(frame.value);
    if (frame.request == 0) {
      outcome.failure->detail.insert(0, "ddp-launch dropped this rank's connection: ");
      return close_with(std::move(*outcome.failure));
    }
  } else {
    throw Error(ErrorCode::protocol, text("unexpected frame of type ", static_cast<int>(frame.type)));
  }
  pending_.answer(frame.request, std::move(outcome));
}

ControlClient::Outcome LauncherClient::ask(Request const& request, Deadline deadline) {
  PausingDeadline const timeout(deadline);
  Waiter waiter(pending_);
  if (waiter.answered()) return waiter.take();  // closed already
  if (auto failure = send(request.frame(waiter.number()), at_least(deadline, milliseconds(100)))) {
    return {std::move(failure), {}};
  }
  if (waiter.wait(timeout)) return waiter.take();

  // The answer says which ranks are missing, unless the server has just answered the request itself.
  static_cast<void>(send({wire::Type::withdraw, waiter.number(), {}, {}}, Deadline::after(kAnswerGrace)));
  if (waiter.wait(PausingDeadline(kAnswerGrace))) return waiter.take();
  return {is_silent(), {}};
}

std::optional<Failure> LauncherClient::send(wire::Frame const& frame, Deadline deadline) {
  PausingDeadline timeout(deadline);
  std::string const bytes = wire::encode(frame);
  {
    std::unique_lock lock(send_mutex_);
    if (!timeout.wait(lock, send_free_, [&] { return !sending_; })) {
      return is_silent();
    }
    sending_ = true;
  }
  std::string_view unsent = bytes;
  auto failure = send_in_turn(unsent, timeout);
  if (failure &&
      unsent.size() < bytes.size()) {  // half a frame was sent: the server could read nothing after it
    close_with(*failure);
    ::shutdown(socket_.get(), SHUT_RDWR);
  }
  std::lock_guard const lock(send_mutex_);
  sending_ = false;
  send_free_.notify_one();
  return failure;
}

std::optional<Failure> LauncherClient::send_in_turn(std::string_view& bytes, PausingDeadline& timeout) {
  while (!bytes.empty()) {
    ssize_t const sent = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    } else if (errno == EAGAIN) {
      if (!wait_for(socket_.get(), POLLOUT, timeout)) return is_silent();
    } else if (errno != EINTR) {
      return is_gone();
    }
  }
  return std::nullopt;
}

std::vector<Failure> LauncherClient::lost() const {
  std::lock_guard const lock(mutex_);
  return lost_;
}

void LauncherClient::report_error(Failure const& failure) noexcept {
  write_error_file(error_file_, rank(), failure);
  try {
    static_cast<void>(
        send({wire::Type::error, 0, {}, wire::encode_failure(failure)}, Deadline::after(kReportTime)));
  } catch (std::exception const& error) {
    log(LogLevel::warning, error.what());
  }
}

void LauncherClient::report_progress(Progress const& progress) noexcept {
  try {
    static_cast<void>(
        send({wire::Type::progress, 0, {}, wire::encode_progress(progress)}, Deadline::after(kReportTime)));
  } catch (std::exception const& error) {
    log(LogLevel::warning, error.what());
  }
}

void LauncherClient::leave() noexcept {
  try {
    Waiter waiter(pending_);
    // Once the server has answered, it does not take an exit for a failure.
    if (!waiter.answered() &&
        !send({wire::Type::leave, waiter.number(), {}, {}}, Deadline::after(kAnswerGrace))) {
      static_cast<void>(waiter.wait(PausingDeadline(kAnswerGrace)));
    }
    close_with(has_left_already(rank()));
    ::shutdown(socket_.get(), SHUT_RDWR);
  } catch (std::exception const& error) {
    log(LogLevel::warning, text("leaving the group: ", error.what()));
  }
}

}  // namespace ddp
