// Which of two versions is older.
#pragma once

#include <string>
#include <vector>

namespace ddp::launcher {

/// The numbers of "2.28.3+cuda13.0" up to the first that is none: 2, 28, 3.
[[nodiscard]] std::vector<int> version_parts(std::string const& version);

/// Whether `one` is older than `other`, compared as far as both have numbers: "13.0" is not older than
/// "13.0.88".
[[nodiscard]] bool is_older(std::string const& one, std::string const& other);

}  // namespace ddp::launcher
