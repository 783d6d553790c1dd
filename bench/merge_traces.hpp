// The timelines of all ranks as one.
#pragma once

#include <filesystem>
#include <vector>

#include "ddp/core/ids.hpp"

namespace ddp::bench {

/// Puts the files of ChromeTrace of all ranks in `folder` into one timeline, aligned by the hosts' wall
/// clocks. Returns the ranks, ascending. Throws Error(not_found) if there is no rank's file,
/// Error(invalid_argument) for a file that no ChromeTrace wrote, Error(io).
std::vector<Rank> merge_traces(std::filesystem::path const& folder, std::filesystem::path const& merged);

}  // namespace ddp::bench
