// A file that is there whole or not at all.
#pragma once

#include <string>
#include <string_view>

namespace ddp {

/// Puts a file with `content` in the place of `path`, for its owner only: a reader finds the old content or
/// the new. Throws Error(io). Any thread.
void replace_file(std::string const& path, std::string_view content);

}  // namespace ddp
