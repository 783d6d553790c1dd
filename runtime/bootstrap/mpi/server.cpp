#include "bootstrap/mpi/server.hpp"

#include <algorithm>
#include <utility>

#include "bootstrap/mpi/backoff.hpp"
#include "core/system/process_stat.hpp"
#include "core/system/thread_without_signals.hpp"
#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"

namespace ddp {
namespace {

using std::chrono::microseconds;

constexpr std::chrono::seconds kBeforeALine{10};
constexpr std::chrono::milliseconds kNewsWaits{20};  // a notice that a rank left in order

wire::Frame answer_frame(ControlStore::Answer const& answer) {
  if (answer.failure) {
    return {wire::Type::failed, answer.to.number, {}, wire::encode_failure(*answer.failure)};
  }
  wire::Frame frame{wire::Type::done, answer.to.number, {}, {}};
  wire::append_u32(frame.value, static_cast<std::uint32_t>(answer.values.size()));
  for (ControlStore::Value const& value : answer.values) {
    wire::append_u32(frame.value, static_cast<std::uint32_t>(value->size()));
    frame.value += *value;
  }
  return frame;
}

}  // namespace

MpiServer::MpiServer(std::shared_ptr<mpi::Messages> messages, int size)
    : messages_(std::move(messages)), store_(size), present_(all_ranks(size)) {
  thread_ = start_thread_without_signals([this] { serve(); });
}

MpiServer::~MpiServer() { stop(); }

void MpiServer::watch(std::unique_ptr<Lifelines> lifelines) noexcept {
  std::lock_guard const lock(mutex_);
  lifelines_ = std::move(lifelines);
}

void MpiServer::know(std::vector<std::pair<Rank, pid_t>> processes) noexcept {
  std::lock_guard const lock(mutex_);
  processes_ = std::move(processes);
}

void MpiServer::finish() noexcept {
  try {
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, kBeforeALine, [this] { return ended_; })) {
      std::string stopped;
      for (auto const& [rank, process] : processes_) {
        if (std::ranges::find(present_, rank) != present_.end()) stopped += describe_stopped(rank, process);
      }
      log(stopped.empty() ? LogLevel::info : LogLevel::warning,
          text("rank 0 has left and waits for ranks that have not: ", join(present_, ", "), stopped));
    }
  } catch (std::exception const& error) {
    log(LogLevel::warning, error.what());
  }
  stop();
}

void MpiServer::stop() noexcept {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
}

void MpiServer::serve() noexcept {
  Backoff backoff(microseconds(1000), microseconds(2000));
  while (!stop_) {
    try {
      bool const is_old = std::chrono::steady_clock::now() - oldest_news_ > kNewsWaits;
      if (!news_.empty() && is_old) spread_news();
      if (handle_next()) {
        backoff.reset();
        continue;
      }
      look_for_ended_ranks();
      if (all_are_gone()) break;
    } catch (std::exception const& error) {  // of one message: the others go on
      log(LogLevel::error, text("control plane of rank 0: ", error.what()));
    }
    backoff.pause();
  }
  say_traffic();
  std::lock_guard const lock(mutex_);
  ended_ = true;
  changed_.notify_all();
}

bool MpiServer::handle_next() {
  auto letter = messages_->receive(std::nullopt, kRequestTag);
  if (!letter) return false;
  received_.add(letter->bytes.size());
  handle(letter->from, wire::decode(letter->bytes, wire::from_rank(store_.size()), letter->from));
  return true;
}

void MpiServer::handle(Rank from, wire::Frame frame) {
  using wire::Type;
  if (auto const answers = store_.handle(from, frame)) {
    if (std::ranges::any_of(*answers, [](auto const& answer) { return answer.failure.has_value(); }))
      spread_news();
    return deliver(*answers);
  }
  switch (frame.type) {
    case Type::lost: {
      Failure const lost = wire::decode_lost(frame.value);
      if (lost.ranks.front().value() >= store_.size()) {
        throw Error(ErrorCode::protocol, text("rank ", from, " tells of rank ", lost.ranks.front(),
                                              " in a job of ", store_.size()));
      }
      return lose(lost);
    }
    case Type::leave:
      lose(has_left(from));
      return deliver({{{from, frame.request}, std::nullopt, {}}});
    default:
      throw Error(ErrorCode::protocol,
                  text("rank ", from, " sent a frame of type ", static_cast<int>(frame.type)));
  }
}

// Logs a failure to send: the other ranks get their messages all the same.
void MpiServer::send(Rank to, int tag, wire::Frame const& frame) noexcept {
  try {
    std::string words = wire::encode(frame);
    sent_.add(words.size());
    messages_->send(to, tag, std::move(words));
  } catch (std::exception const& error) {
    log(LogLevel::error, text("control plane of rank 0: a message to rank ", to, ": ", error.what()));
  }
}

void MpiServer::say_traffic() const noexcept {
  try {
    log(LogLevel::info,
        text("the control plane of ", store_.size(), " ranks got ", received_.messages, " messages (",
             received_.bytes, " bytes) and sent ", sent_.messages, " (", sent_.bytes, " bytes)"));
  } catch (std::exception const&) {  // no memory for a line
  }
}

void MpiServer::deliver(ControlStore::Answers const& answers) {
  for (ControlStore::Answer const& answer : answers) {
    send(answer.to.rank, answer_tag(answer.to.number), answer_frame(answer));
  }
}

// Ranks that end in order mostly end together. Notices of that wait a moment, since few ranks are left then
// that need them. Other notices go out at once, and before the failures that they cause: whoever catches a
// failure finds the rank in lost().
void MpiServer::lose(Failure const& lost) {
  if (store_.find_lost(lost.ranks.front()) != nullptr) return;
  ControlStore::Answers const answers = store_.lose(lost);
  if (news_.empty()) oldest_news_ = std::chrono::steady_clock::now();
  news_.push_back(lost);
  if (lost.manner != Failure::Manner::left || !answers.empty()) spread_news();
  deliver(answers);
  std::lock_guard const lock(mutex_);
  std::erase(present_, lost.ranks.front());
}

void MpiServer::spread_news() {
  for (Rank const rank : all_ranks(store_.size())) {
    if (store_.find_lost(rank) != nullptr) continue;
    for (Failure const& lost : news_)
      send(rank, kNewsTag, {wire::Type::lost, 0, {}, wire::encode_failure(lost)});
  }
  news_.clear();
}

void MpiServer::look_for_ended_ranks() {
  std::vector<Failure> ended;
  {
    std::lock_guard const lock(mutex_);
    if (lifelines_) ended = lifelines_->ended();
  }
  for (Failure const& lost : ended) lose(lost);
}

bool MpiServer::all_are_gone() {
  {
    std::lock_guard const lock(mutex_);
    if (!present_.empty()) return false;
  }
  return messages_->all_sent();
}

}  // namespace ddp
