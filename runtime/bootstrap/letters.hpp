// Messages from ranks to this one that nobody has taken yet.
#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "ddp/bootstrap/control_plane.hpp"

namespace ddp {

/// The messages of all channels. Any thread.
class Letters {
 public:
  /// Keeps at most this many, and drops the oldest, such as those of a channel that nobody reads any more.
  static constexpr std::size_t kMost = 4096;

  void put(std::string channel, Letter letter) {
    std::lock_guard const lock(mutex_);
    if (waiting_.size() == kMost) waiting_.pop_front();
    waiting_.push_back({std::move(channel), std::move(letter)});
  }
  [[nodiscard]] std::optional<Letter> take(std::string_view channel) {
    std::lock_guard const lock(mutex_);
    auto const found = std::ranges::find(waiting_, channel, &Entry::channel);
    if (found == waiting_.end()) return std::nullopt;
    Letter letter = std::move(found->letter);
    waiting_.erase(found);
    return letter;
  }

 private:
  struct Entry {
    std::string channel;
    Letter letter;
  };
  std::mutex mutex_;
  std::deque<Entry> waiting_;
};

}  // namespace ddp
