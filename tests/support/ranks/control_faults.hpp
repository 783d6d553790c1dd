// A control server, honest ranks that must not be harmed, and what others may throw at it.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <random>

#include "ddp/core/text.hpp"
#include "support/launcher/shell.hpp"
#include "support/ranks/control_jobs.hpp"
#include "support/ranks/raw_socket.hpp"

namespace ddp::testing {

using std::chrono::milliseconds;
using std::chrono::seconds;

inline constexpr milliseconds kFrameDeadline{300};
inline constexpr milliseconds kWellAfterIt{5000};

inline std::size_t resident_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmRSS:")) return std::stoul(line.substr(6)) * 1024;
  }
  throw std::runtime_error("/proc/self/status has no VmRSS");
}

/// Two honest ranks that gather with each other, from the beginning of a test to its end.
class HonestRanks {
 public:
  explicit HonestRanks(ServerThread& server, int size) {
    for (int r = 0; r < 2; ++r) {
      planes_.push_back(
          connect_control_plane(launched(server.path(), r, size), Deadline::after(seconds(10))));
    }
    for (int r = 0; r < 2; ++r) threads_.emplace_back([this, r] { work(r); });
  }
  ~HonestRanks() { finish(); }

  /// Both are still served: some more rounds pass.
  void expect_unaffected() {
    int const before = rounds_.load();
    Deadline const deadline = Deadline::after(seconds(20));
    while (rounds_.load() < before + 20 && !deadline.expired()) std::this_thread::sleep_for(milliseconds(1));
    EXPECT_GE(rounds_.load(), before + 20) << "honest ranks were held up";
    std::lock_guard const lock(mutex_);
    EXPECT_EQ(trouble_, "");
    EXPECT_LT(slowest_, seconds(5)) << "one round took too long";
  }

 private:
  void work(int r) {
    std::vector<Rank> const both{Rank{0}, Rank{1}};
    try {
      for (int round = 0;; ++round) {
        auto const start = std::chrono::steady_clock::now();
        // The last round is agreed on, so that none waits for one that has stopped.
        auto const values = planes_[static_cast<std::size_t>(r)]->all_gather(
            "honest", text(round, stop_ ? " stop" : ""), both, Deadline::after(seconds(30)));
        if (r == 0) ++rounds_;
        for (auto const& value : values) {
          if (value.ends_with("stop")) return;
          if (value != text(round)) throw std::runtime_error("round " + text(round) + " got " + value);
        }
        std::lock_guard const lock(mutex_);
        slowest_ = std::max(slowest_, std::chrono::steady_clock::now() - start);
      }
    } catch (std::exception const& error) {
      std::lock_guard const lock(mutex_);
      trouble_ = error.what();
    }
  }
  void finish() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
  }

  std::vector<std::shared_ptr<ControlPlane>> planes_;
  std::atomic<int> rounds_{0};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::string trouble_;
  std::chrono::steady_clock::duration slowest_{0};
  std::vector<std::thread> threads_;
};

class ControlServerFaults : public ::testing::Test {
 protected:
  /// As rank 2, once the server has seen the end of the one before it. Null after 10 s.
  std::unique_ptr<RawSocket> join_when_possible() {
    for (Deadline const deadline = Deadline::after(seconds(10)); !deadline.expired();) {
      auto socket = std::make_unique<RawSocket>(server_.path());
      socket->send({wire::Type::join, 1, {}, wire::encode_join({Rank{2}, 3})});
      auto const answer = socket->receive();
      if (answer && answer->type == wire::Type::done) return socket;
    }
    return nullptr;
  }

  // Ranks 0 and 1 are honest; what a test needs beyond them is rank 2.
  TemporaryFolder folder_;
  ServerThread server_{{.size = 3, .path = folder_.path() / "control", .frame_deadline = kFrameDeadline}};
  HonestRanks honest_{server_, 3};
};

inline std::string random_bytes(std::size_t size, unsigned seed) {
  std::mt19937 random(seed);
  std::string bytes(size, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random() & 0xffU);
  return bytes;
}

inline std::string header_of(wire::Type type, std::uint32_t key_length, std::uint32_t value_length) {
  std::string bytes = wire::encode_header(type, 1, 0, 0).substr(0, 16);
  wire::append_u32(bytes, key_length);
  wire::append_u32(bytes, value_length);
  return bytes;
}

}  // namespace ddp::testing
