// Requests of one process that wait for their answers.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "core/pausing_deadline.hpp"

namespace ddp {

/// Brings answers to the threads that wait for them. Any thread.
template <class Answer>
class PendingRequests {
 public:
  /// One request, with a number of its own. It can be answered while it exists.
  class Waiter {
   public:
    explicit Waiter(PendingRequests& all) : all_(all) {
      std::lock_guard const lock(all_.mutex_);
      number_ = all_.next_++;
      answer_ = all_.closed_;
      all_.waiters_.emplace(number_, this);
    }
    ~Waiter() {
      std::lock_guard const lock(all_.mutex_);
      all_.waiters_.erase(number_);
    }
    Waiter(Waiter const&) = delete;
    Waiter& operator=(Waiter const&) = delete;

    [[nodiscard]] std::uint64_t number() const noexcept { return number_; }
    [[nodiscard]] bool answered() const {
      std::lock_guard const lock(all_.mutex_);
      return answer_.has_value();
    }
    /// False when timeout ended before the answer came.
    [[nodiscard]] bool wait(PausingDeadline timeout) {
      std::unique_lock lock(all_.mutex_);
      return timeout.wait(lock, changed_, [this] { return answer_.has_value(); });
    }
    /// The answer, which is there.
    [[nodiscard]] Answer take() {
      std::lock_guard const lock(all_.mutex_);
      return std::move(*answer_);
    }

   private:
    friend class PendingRequests;
    void set(Answer given) {
      if (answer_) return;
      answer_ = std::move(given);
      changed_.notify_one();
    }

    PendingRequests& all_;
    std::uint64_t number_ = 0;
    std::condition_variable changed_;
    std::optional<Answer> answer_;
  };

  /// The first answer of a request stays. Does nothing if nobody waits for it any more.
  void answer(std::uint64_t request, Answer given) {
    std::lock_guard const lock(mutex_);
    auto const waiter = waiters_.find(request);
    if (waiter != waiters_.end()) waiter->second->set(std::move(given));
  }
  /// Answers every request that waits, and every later one. The first call counts.
  void close(Answer const& reason) {
    std::lock_guard const lock(mutex_);
    if (closed_) return;
    closed_ = reason;
    for (auto const& [number, waiter] : waiters_) waiter->set(reason);
  }

 private:
  std::mutex mutex_;
  std::uint64_t next_ = 1;
  std::map<std::uint64_t, Waiter*> waiters_;
  std::optional<Answer> closed_;
};

}  // namespace ddp
