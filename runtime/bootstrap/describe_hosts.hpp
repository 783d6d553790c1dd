// Hosts in messages about ranks.
#pragma once

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "ddp/core/ids.hpp"
#include "ddp/core/text.hpp"

namespace ddp {

/// "; rank 9 runs on node7", for those at `places` of `ranks`, whose hosts' names are `names`; empty where
/// all ranks are on one host.
[[nodiscard]] inline std::string describe_hosts(std::span<Rank const> ranks,
                                                std::span<std::size_t const> places,
                                                std::span<std::string const> names) {
  std::string words;
  if (std::ranges::all_of(names, [&](std::string const& name) { return name == names[0]; })) return words;
  for (std::size_t const place : places) words += text("; rank ", ranks[place], " runs on ", names[place]);
  return words;
}

}  // namespace ddp
