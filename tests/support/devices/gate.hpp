// Holds a stream until a test lets it go on.
#pragma once

#include <atomic>
#include <chrono>
#include <thread>

#include "ddp/device/stream.hpp"

namespace ddp::testing {

/// Keeps what is enqueued behind it waiting until it is opened, or for kLongest.
class Gate {
 public:
  static constexpr std::chrono::seconds kLongest{30};
  explicit Gate(Stream& stream) {
    host_.enqueue([open = &open_, holds = &holds_] {
      auto const give_up = std::chrono::steady_clock::now() + kLongest;
      while (!*open && std::chrono::steady_clock::now() < give_up)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      *holds = false;
    });
    stream.wait(host_);
  }
  ~Gate() { open(); }
  Gate(Gate const&) = delete;
  Gate& operator=(Gate const&) = delete;
  void open() noexcept { open_ = true; }
  [[nodiscard]] bool holds() const noexcept { return holds_; }

 private:
  std::atomic<bool> open_{false};
  std::atomic<bool> holds_{true};
  HostStream host_;
};

}  // namespace ddp::testing
