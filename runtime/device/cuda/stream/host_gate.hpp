// Host streams for which a GPU's stream waits.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

namespace ddp {

/// A word in pinned memory: the number up to which all host streams have arrived. They may arrive in any
/// order, since a GPU's stream waits for a number only after it has waited for all smaller ones.
class HostGate {
 public:
  /// `word` is 0, and only this object writes it.
  explicit HostGate(std::uint32_t* word) : word_(word) {}

  /// A number for a call of came(), which must follow. Called by the thread that enqueues.
  [[nodiscard]] std::uint32_t expect() {
    std::lock_guard const lock(mutex_);
    std::size_t const outstanding = expected_ + 1 - *word_;
    if (early_.capacity() < outstanding) early_.reserve(2 * outstanding);
    return ++expected_;
  }
  /// A host stream has done the work that this number stands for. Any thread.
  void came(std::uint32_t number) noexcept {
    std::lock_guard const lock(mutex_);
    early_.push_back(number);  // expect() has made room
    std::uint32_t come = *word_;
    while (std::erase(early_, come + 1) != 0) ++come;
    std::atomic_ref(*word_).store(come, std::memory_order_release);
  }
  [[nodiscard]] std::uint32_t const* word() const noexcept { return word_; }

 private:
  std::uint32_t* word_;
  std::mutex mutex_;  // guards what follows, and the writes to the word
  std::uint32_t expected_ = 0;
  std::vector<std::uint32_t> early_;  // came before a smaller number
};

}  // namespace ddp
