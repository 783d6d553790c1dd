// Where the time from the command to the first all-reduce went.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>

#include "ddp/parallel/world.hpp"

namespace hello {

/// Makes its report on one rank. Made first in main(), and asked when the first all-reduce is done.
class StartReport {
 public:
  StartReport();

  /// "0.912 s from the command to the first all-reduce: launcher 0.030, control plane 0.001, cuda 0.281, nccl
  /// 0.507, all-reduce 0.093". The launcher's part reaches from ddp-launch's start (alone: from this
  /// process's) to main(), rounded up to the 10 ms in which the kernel counts starts.
  [[nodiscard]] std::string describe(ddp::World const& world) const;
  /// The same as a JSON object; times in seconds. False if `file` cannot be written.
  [[nodiscard]] bool write(ddp::World const& world, std::filesystem::path const& file) const;

  void first_all_reduce_is_done() { done_ = Clock::now(); }

 private:
  using Clock = std::chrono::steady_clock;
  struct Parts;
  [[nodiscard]] Parts parts(ddp::World const& world) const;
  double launcher_;
  Clock::time_point begin_;
  Clock::time_point done_;
};

}  // namespace hello
