// Lines that many ranks write alike.
#pragma once

#include <cstddef>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>

#include "ddp/core/ids.hpp"

namespace ddp::launcher {

/// Finds lines that another rank has written before, apart from its own number. Memory is bounded: lines
/// beyond the first 1,024, and very long ones, never count as repeated.
class RepeatedLines {
 public:
  /// Whether a rank other than `rank` has written `line`; if so, counts it.
  [[nodiscard]] bool repeats(Rank rank, std::string_view line);
  /// "ranks 1-63: 189 lines of stderr …"; empty if no line was a repetition.
  [[nodiscard]] std::string summary() const;

 private:
  std::unordered_map<std::string, Rank> first_;  ///< who wrote it first
  std::set<Rank> repeating_;
  std::size_t count_ = 0;
};

}  // namespace ddp::launcher
