// Notices from other ranks to this one.
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "ddp/bootstrap/control_plane.hpp"

namespace ddp {

/// Brings notices to those who listen under their names. Any thread.
class Notices {
 public:
  /// So many that nobody has listened to are kept; older ones are dropped.
  static constexpr std::size_t kMostKept = 256;
  using Listener = ControlPlane::Listener;

  void deliver(std::string name, Rank from, std::string bytes) {
    std::lock_guard const lock(mutex_);
    if (auto const found = listeners_.find(name); found != listeners_.end())
      return found->second(from, bytes);
    if (kept_.size() == kMostKept) kept_.pop_front();
    kept_.push_back({std::move(name), from, std::move(bytes)});
  }
  /// As ControlPlane::listen(). This object must outlive what it returns.
  [[nodiscard]] std::shared_ptr<void> listen(std::string_view name, Listener listener) {
    std::lock_guard const lock(mutex_);
    auto const place = listeners_.emplace(name, std::move(listener)).first;
    std::erase_if(kept_, [&](Notice const& notice) {
      if (notice.name != name) return false;
      place->second(notice.from, notice.bytes);
      return true;
    });
    return {this, [place](Notices* notices) {
              std::lock_guard const end(notices->mutex_);
              notices->listeners_.erase(place);
            }};
  }

 private:
  struct Notice {
    std::string name;
    Rank from;
    std::string bytes;
  };
  std::mutex mutex_;
  std::map<std::string, Listener, std::less<>> listeners_;
  std::deque<Notice> kept_;
};

}  // namespace ddp
