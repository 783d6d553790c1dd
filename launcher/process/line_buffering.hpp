// Lines of the ranks appear when they are printed, not when a buffer of 4 KiB is full or the program ends.
#pragma once

#include <filesystem>
#include <string>

#include "launcher/process/environment.hpp"

namespace ddp::launcher {

/// The path of `file` beside `launcher`, or in `installed`, a path from the launcher's folder. Empty if it is
/// in neither, or if its path has blanks or colons, which LD_PRELOAD cannot contain.
[[nodiscard]] std::string library_to_preload(std::filesystem::path const& launcher,
                                             std::filesystem::path const& installed, std::string const& file);

/// The library that makes C programs write whole lines, line_buffer.cpp.
inline constexpr char const* kLineBufferLibrary = "ddp_line_buffer.so";

/// Variables that make programs write whole lines: PYTHONUNBUFFERED where it is unset, and `library`, if any,
/// after other preloaded ones. AddressSanitizer refuses to start after a preloaded library unless told to.
[[nodiscard]] Variables line_buffering(std::string const& library, Lookup const& inherited);

/// "device:inode" of what `fd` leads to.
[[nodiscard]] std::string place_of(int fd);

}  // namespace ddp::launcher
