// Sizes as people write them on a command line.
#pragma once

#include <string_view>

#include "ddp/core/ids.hpp"

namespace ddp::bench {

/// "1024", "17 B", "1KiB", "64 MiB", "1GiB" (powers of 1024) as bytes. Throws Error(invalid_argument) for
/// anything else, "64MB" included: decimal units would be read as binary ones by half of the readers.
[[nodiscard]] Bytes parse_bytes(std::string_view written);

}  // namespace ddp::bench
