#include "bootstrap/server/rank_connection.hpp"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "ddp/core/text.hpp"

namespace ddp {

void RankConnection::joined_as(wire::Join const& join) {
  who_ = join;
  decoder_.set_limits(wire::from_rank(join.size));
}

void RankConnection::let_guard_go(std::optional<Rank> rank) {
  if (guard_ && guard_->rank == rank.value_or(guard_->rank)) send(std::exchange(guard_, {})->number, {});
}

void RankConnection::break_off(std::string reason) {
  if (!broken_) broken_ = std::move(reason);
}

void RankConnection::say_why() noexcept {
  if (!who_ || !broken_ || sent_of_front_ > 0 || !pieces_.empty()) return;
  try {
    Failure const why{.code = ErrorCode::protocol, .manner = Failure::Manner::refused, .detail = *broken_};
    std::string const frame = wire::encode({wire::Type::failed, 0, {}, wire::encode_failure(why)});
    ::send(socket_.get(), frame.data(), frame.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  } catch (std::exception const&) {  // out of memory: the peer sees its connection close all the same
  }
}

bool RankConnection::read(std::span<char> buffer) {
  unread_ = {};
  ssize_t const count = ::recv(socket_.get(), buffer.data(), buffer.size(), 0);
  drained_ = count < static_cast<ssize_t>(buffer.size());
  if (count > 0) {
    traffic_.bytes_in += static_cast<std::uint64_t>(count);
    unread_ = buffer.first(static_cast<std::size_t>(count));
    return true;
  }
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  break_off(count == 0 || errno == ECONNRESET ? "its connection closed"
                                              : text("reading failed: ", std::strerror(errno)));
  return false;
}

std::optional<wire::Frame> RankConnection::next_frame() {
  if (broken_) return std::nullopt;
  try {
    auto frame = decoder_.take(unread_);
    if (frame) {
      if (who_) overdue_.reset();  // the next frame has a deadline of its own
      ++traffic_.frames_in;
    }
    return frame;
  } catch (Error const& error) {
    break_off(error.what());
    return std::nullopt;
  }
}

void RankConnection::expect_rest_by(Clock::time_point overdue) {
  if (!who_) return;  // the join is due from the beginning
  if (!decoder_.inside_frame()) {
    overdue_.reset();
  } else if (!overdue_) {
    overdue_ = overdue;
  }
}

void RankConnection::send(std::string bytes) {
  ++traffic_.frames_out;
  keep(std::make_shared<std::string const>(std::move(bytes)));
  flush();
}

// Runs of equal values: how many, then of each how many values, their length, and their bytes once. Ranks
// mostly compare what is the same on all of them.
void RankConnection::send(std::uint64_t request, std::vector<ControlStore::Value> const& values,
                          wire::Type type) {
  struct Run {
    ControlStore::Value const* value;
    std::uint32_t count;
  };
  std::vector<Run> runs;
  std::size_t length = 4;
  for (ControlStore::Value const& value : values) {
    if (!runs.empty() && **runs.back().value == *value) {
      ++runs.back().count;
    } else {
      runs.push_back({&value, 1});
      length += 8 + value->size();
    }
  }
  std::string head;
  try {
    head = wire::encode_header(type, request, 0, length);
  } catch (Error const& error) {  // the values of all ranks together are too large for one frame
    send({wire::Type::failed, request, {}, wire::encode_failure(failure_of(error))});
    return;
  }
  wire::append_u32(head, static_cast<std::uint32_t>(runs.size()));
  for (auto const& [value, count] : runs) {
    wire::append_u32(head, count);
    wire::append_u32(head, static_cast<std::uint32_t>((*value)->size()));
    if ((*value)->size() < 4096) {  // copying is cheaper than a piece of its own
      head.append(**value);
    } else {
      keep(std::make_shared<std::string const>(std::move(head)));
      keep(*value);
      head.clear();
    }
  }
  ++traffic_.frames_out;
  if (!head.empty()) keep(std::make_shared<std::string const>(std::move(head)));
  flush();
}

void RankConnection::keep(ControlStore::Value piece) {
  if (broken_ || deaf_) return;
  if (unsent_bytes_ > kMostBytes || pieces_.size() > kMostPieces) {
    break_off(text("it does not read its answers: ", to_string(Bytes{unsent_bytes_}), " wait for it"));
    return;
  }
  unsent_bytes_ += piece->size();
  pieces_.push_back(std::move(piece));
}

void RankConnection::flush() {
  while (!pieces_.empty() && !broken_) {
    std::array<iovec, 64> vectors{};
    std::size_t const count = std::min(vectors.size(), pieces_.size());
    for (std::size_t i = 0; i < count; ++i) {
      std::size_t const skip = i == 0 ? sent_of_front_ : 0;
      vectors[i] = {const_cast<char*>(pieces_[i]->data() + skip), pieces_[i]->size() - skip};
    }
    msghdr message{};
    message.msg_iov = vectors.data();
    message.msg_iovlen = count;
    ssize_t const sent = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL);
    if (sent < 0) {
      if (errno == EINTR) continue;
      if (errno != EAGAIN) {  // the peer has closed; read() still finds what it sent
        deaf_ = true;
        pieces_.clear();
        sent_of_front_ = unsent_bytes_ = 0;
      }
      break;
    }
    unsent_bytes_ -= static_cast<std::size_t>(sent);
    traffic_.bytes_out += static_cast<std::uint64_t>(sent);
    sent_of_front_ += static_cast<std::size_t>(sent);
    while (!pieces_.empty() && sent_of_front_ >= pieces_.front()->size()) {
      sent_of_front_ -= pieces_.front()->size();
      pieces_.pop_front();
    }
  }
  bool const was_paused = std::exchange(paused_, unsent_bytes_ > kPauseBytes);
  // Nothing was read while it was paused, so the rest of its frame may be there already: the deadline starts
  // anew.
  if (was_paused && !paused_) overdue_.reset();
}

}  // namespace ddp
