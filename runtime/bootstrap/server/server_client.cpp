#include "bootstrap/server/server_client.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "bootstrap/failure_json.hpp"
#include "bootstrap/server/unix_socket.hpp"
#include "core/record.hpp"
#include "core/system/host_identity.hpp"
#include "core/system/thread_without_signals.hpp"
#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"

namespace ddp {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t kAnswerReadSize = (64_KiB).value;
constexpr milliseconds kReportTime{200};  ///< to send the server something that nobody waits for

// False when the time ended before the socket was ready.
bool wait_for(int descriptor, short events, PausingDeadline& timeout) noexcept {
  for (;;) {
    pollfd entry{descriptor, events, 0};
    if (::poll(&entry, 1, static_cast<int>(timeout.nap().count())) > 0) return true;
    if (timeout.ended()) return false;
  }
}

Deadline at_least(Deadline deadline, milliseconds least) {
  return deadline.remaining() < least ? Deadline::after(least) : deadline;
}

}  // namespace

ServerClient::ServerClient(RankInfo const& info, Deadline deadline)
    : ServerClient(info,
                   unix_socket::connect(info.control, "ddp-launch",
                                        "DDP_CONTROL; is ddp-launch still running?", deadline),
                   {"ddp-launch", info.control, std::nullopt}, deadline) {}

ServerClient::ServerClient(RankInfo const& info, FileDescriptor socket, Server server, Deadline deadline)
    : ControlClient(info.rank, info.size),
      server_(std::move(server)),
      error_file_(info.error_file),
      socket_(std::move(socket)) {
  reader_ = start_thread_without_signals([this] { read_until_closed(); });
  try {
    join(info.generation, deadline);
  } catch (...) {
    stop_reading();
    throw;
  }
}

Failure ServerClient::is_gone() const {
  if (!server_.rank) {
    return {
        .code = ErrorCode::peer_lost,
        .detail = text(server_.name, " is gone: its control socket closed. This rank cannot go on alone")};
  }
  std::lock_guard const lock(mutex_);
  Failure gone = process_has_ended(*server_.rank, server_process_, server_host_);
  gone.detail += ", and the control plane of the job with it: no rank can go on";
  auto const before =
      std::ranges::find_if(lost_, [&](Failure const& lost) { return lost.ranks.front() != *server_.rank; });
  if (before != lost_.end()) gone.detail += "; before that, " + to_string(*before);
  return gone;
}

Failure ServerClient::silence() const {
  Failure failure{.code = ErrorCode::timeout, .manner = Failure::Manner::silent};
  if (server_.rank) failure.ranks = {*server_.rank};
  failure.detail =
      text(server_.rank ? text("rank ", *server_.rank, ", which serves the control plane,") : server_.name,
           " does not answer", server_.rank ? "" : " on its control socket", ": is it stopped?");
  return failure;
}

ServerClient::~ServerClient() { stop_reading(); }

void ServerClient::stop_reading() noexcept {
  ::shutdown(socket_.get(), SHUT_RDWR);  // wakes the reader
  reader_.join();
}

void ServerClient::join(int generation, Deadline deadline) {
  Waiter waiter(pending_);
  auto const unsent =
      send({wire::Type::join,
            waiter.number(),
            {},
            wire::encode_join({rank(), size(), generation, ::getpid(), host_name(host_identity())})},
           deadline);
  if (unsent) throw CommError(unsent->code, text("joining the job at ", server_.place, ": ", unsent->detail));
  if (!waiter.wait(PausingDeadline(deadline))) {
    throw CommError(ErrorCode::timeout, text("joining the job at ", server_.place, " timed out after ",
                                             seconds(deadline.allowed()), " s: ", silence().detail));
  }
  auto const [refusal, server] = waiter.take();
  if (!refusal) {
    std::lock_guard const lock(mutex_);
    if (server.size() == 1) RecordReader(server.front()) >> server_host_ >> server_process_;
    return;
  }
  if (refusal->code == ErrorCode::peer_lost) {
    throw Error(ErrorCode::io,
                text("joining the job at ", server_.place, ": ", server_.name,
                     " closed the connection. Is it of another version, or run by another user?"));
  }
  if (refusal->code == ErrorCode::protocol) {
    throw Error(ErrorCode::protocol, text("joining the job at ", server_.place, ": ", refusal->detail));
  }
  throw Error(refusal->code, text("joining the job at ", server_.place, ": ", server_.name, " refused rank ",
                                  rank(), " of ", size(), ": ", refusal->detail));
}

void ServerClient::read_until_closed() noexcept {
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
    Failure gone = is_gone();
    if (server_.rank) {
      std::lock_guard const lock(mutex_);
      if (!has_left_) add_lost(process_has_ended(*server_.rank, server_process_, server_host_));
    }
    close_with(std::move(gone));
  } catch (std::exception const& error) {
    ::shutdown(socket_.get(), SHUT_RDWR);
    close_with({.code = ErrorCode::protocol,
                .detail = text("the control socket cannot be read any more: ", error.what())});
  }
}

// The mutex is held.
void ServerClient::add_lost(Failure lost) {
  bool const known = std::ranges::any_of(
      lost_, [&](Failure const& before) { return before.ranks.front() == lost.ranks.front(); });
  if (!known) lost_.push_back(std::move(lost));
}

// Before any news that comes behind it. Newcomers are no longer lost.
void ServerClient::begin(std::string_view membership) {
  wire::Reader reader(membership);
  static_cast<void>(reader.u32());
  auto const members = wire::decode_group(reader, size());
  std::lock_guard const lock(mutex_);
  interruption_.reset();
  is_interrupted_ = false;
  std::erase_if(lost_, [&](Failure const& lost) {
    return std::ranges::find(members, lost.ranks.front()) != members.end();
  });
}

void ServerClient::handle(wire::Frame const& frame) {
  silent_ = false;
  if (frame.type == wire::Type::lost) {
    std::lock_guard const lock(mutex_);
    return add_lost(wire::decode_lost(frame.value));
  }
  if (frame.type == wire::Type::interrupted) {
    std::lock_guard const lock(mutex_);
    interruption_ = wire::decode_failure(frame.value);
    is_interrupted_ = true;
    return;
  }
  if (frame.type == wire::Type::notice) {
    wire::Reader reader(frame.value);
    Rank const from = wire::decode_rank(reader);
    return notices_.deliver(frame.key, from, std::string(reader.rest()));
  }
  Outcome outcome;
  if (frame.type == wire::Type::done || frame.type == wire::Type::begun) {
    outcome.values = wire::decode_values(frame.value);
    if (frame.type == wire::Type::begun) begin(outcome.values.at(0));
  } else if (frame.type == wire::Type::failed) {
    outcome.failure = wire::decode_failure(frame.value);
    if (frame.request == 0) {
      outcome.failure->detail.insert(0, server_.name + " dropped this rank's connection: ");
      return close_with(std::move(*outcome.failure));
    }
  } else {
    throw Error(ErrorCode::protocol, text("unexpected frame of type ", static_cast<int>(frame.type)));
  }
  pending_.answer(frame.request, std::move(outcome));
}

ControlClient::Outcome ServerClient::ask(wire::Frame request, Deadline deadline) {
  PausingDeadline const timeout(deadline);
  Waiter waiter(pending_);
  if (waiter.answered()) return waiter.take();  // closed already
  request.request = waiter.number();
  if (auto failure = send(request, at_least(deadline, milliseconds(100)))) {
    return {std::move(failure), {}};
  }
  if (waiter.wait(timeout)) return waiter.take();

  // The server answers `waits` at once, if it answers at all: nobody else is waited for.
  silent_ = request.type == wire::Type::waits || silent_;
  if (silent_) return {silence(), {}};
  // The answer says which ranks are missing, unless the server has just answered the request itself.
  static_cast<void>(send({wire::Type::withdraw, waiter.number(), {}, {}}, Deadline::after(kAnswerGrace)));
  if (waiter.wait(PausingDeadline(kAnswerGrace))) return waiter.take();
  silent_ = true;
  return {silence(), {}};
}

std::optional<Failure> ServerClient::send(wire::Frame const& frame, Deadline deadline) {
  PausingDeadline timeout(deadline);
  std::string const bytes = wire::encode(frame);
  {
    std::unique_lock lock(send_mutex_);
    if (!timeout.wait(lock, send_free_, [&] { return !sending_; })) {
      return silence();
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

std::optional<Failure> ServerClient::send_in_turn(std::string_view& bytes, PausingDeadline& timeout) {
  while (!bytes.empty()) {
    ssize_t const sent = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    } else if (errno == EAGAIN) {
      if (!wait_for(socket_.get(), POLLOUT, timeout)) return silence();
    } else if (errno != EINTR) {
      return is_gone();
    }
  }
  return std::nullopt;
}

std::vector<Failure> ServerClient::lost() const {
  std::lock_guard const lock(mutex_);
  return lost_;
}

std::optional<Failure> ServerClient::interruption() const {
  if (!is_interrupted_) return std::nullopt;
  std::lock_guard const lock(mutex_);
  return interruption_;
}

void ServerClient::report_error(Failure const& failure) noexcept {
  write_error_file(error_file_, rank(), failure);
  try {
    static_cast<void>(
        send({wire::Type::error, 0, {}, wire::encode_failure(failure)}, Deadline::after(kReportTime)));
  } catch (std::exception const& error) {
    log(LogLevel::warning, error.what());
  }
}

void ServerClient::notify(std::span<Rank const> to, std::string_view name, std::string_view bytes) {
  auto const failure = send({wire::Type::notice, 0, std::string(name), wire::encode_group(to).append(bytes)},
                            Deadline::after(kReportTime));
  if (failure) throw CommError(*failure);
}

void ServerClient::leave() noexcept {
  try {
    {
      std::lock_guard const lock(mutex_);
      has_left_ = true;
    }
    Waiter waiter(pending_);
    // Once the server has answered, it does not take an exit for a failure.
    if (!silent_ && !waiter.answered() &&
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
