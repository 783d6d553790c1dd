// Threads that do rounds of work together. It has no .cpp, since ddp::libtorch includes it too, and a shared
// library hides private symbols.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "core/system/own_process.hpp"
#include "core/system/thread_without_signals.hpp"
#include "ddp/core/error.hpp"

namespace ddp {

/// Threads that live between rounds, one for each member; the calling thread is member 0's. One thread at a
/// time. In a forked child, which has none of these threads, it may only be destroyed.
class ThreadTeam {
 public:
  /// What a member's task threw.
  struct Failure {
    std::size_t member;
    std::exception_ptr error;
  };

  /// Throws std::system_error if no thread can be started.
  explicit ThreadTeam(std::size_t members) : crew_(new Crew(members)) {}

  /// Calls task(i) for every member below `count`, each in its thread, and returns when all have returned. It
  /// has no deadline of its own: what tasks wait for has one. If some threw, returns the failure of the
  /// lowest index. `count` is at most the number of members. Not inside of a task.
  [[nodiscard]] std::optional<Failure> run(std::size_t count,
                                           std::function<void(std::size_t member)> const& task) {
    return crew_->run(count, task);
  }

 private:
  class Crew {
   public:
    explicit Crew(std::size_t members) {
      errors_.resize(members);
      SignalsBlocked const during;
      for (std::size_t i = 1; i < members; ++i) {
        threads_.emplace_back([this, i](std::stop_token const& stop) { work(i, stop); });
      }
    }

    [[nodiscard]] std::optional<Failure> run(std::size_t count,
                                             std::function<void(std::size_t member)> const& task) {
      if (count == 0) return std::nullopt;
      {
        std::lock_guard const lock(mutex_);
        task_ = &task;
        count_ = count;
        working_ = count - 1;
        ++rounds_;
      }
      if (count > 1) begin_.notify_all();
      run_one(0);
      {
        std::unique_lock lock(mutex_);
        end_.wait(lock, [this] { return working_ == 0; });
      }
      auto const first = std::ranges::find_if(errors_, [](auto const& error) { return error != nullptr; });
      if (first == errors_.end()) return std::nullopt;
      Failure failure{static_cast<std::size_t>(first - errors_.begin()), *first};
      std::ranges::fill(errors_, nullptr);
      return failure;
    }

   private:
    void work(std::size_t member, std::stop_token const& stop) {
      std::size_t seen = 0;
      std::unique_lock lock(mutex_);
      while (begin_.wait(lock, stop, [&] { return rounds_ != seen; })) {
        seen = rounds_;
        if (member >= count_) continue;
        lock.unlock();
        run_one(member);
        lock.lock();
        if (--working_ == 0) end_.notify_all();
      }
    }
    void run_one(std::size_t member) {
      try {
        (*task_)(member);
      } catch (...) {
        errors_[member] = std::current_exception();
      }
    }

    std::mutex mutex_;
    std::condition_variable_any begin_;
    std::condition_variable end_;
    std::function<void(std::size_t)> const* task_ = nullptr;  // of the last round, and so are these
    std::size_t count_ = 0;
    std::size_t working_ = 0;
    std::size_t rounds_ = 0;
    std::vector<std::exception_ptr> errors_;  // by member, written by its thread
    std::vector<std::jthread> threads_;       // of member 1, 2, …; they end before the rest goes
  };

  std::unique_ptr<Crew, DeleteOwn> crew_;
};

/// Throws what `error` is with `who` in front of its message: a CommError as such, another ddp::Error with
/// its code, anything else as Error(invalid_state), or out_of_memory; the original is nested in it.
[[noreturn]] inline void rethrow_as(std::string const& who, std::exception_ptr const& error) {
  try {
    std::rethrow_exception(error);
  } catch (CommError const& original) {
    std::throw_with_nested(CommError(original.failure(), who + original.what(), original.where()));
  } catch (Error const& original) {
    std::throw_with_nested(Error(original.code(), who + original.what(), original.where()));
  } catch (std::bad_alloc const& original) {
    std::throw_with_nested(Error(ErrorCode::out_of_memory, who + original.what()));
  } catch (std::exception const& original) {
    std::throw_with_nested(Error(ErrorCode::invalid_state, who + original.what()));
  } catch (...) {
    std::throw_with_nested(
        Error(ErrorCode::invalid_state, who + "it threw something that is no std::exception"));
  }
}

}  // namespace ddp
