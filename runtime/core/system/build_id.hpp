// Which program and which library this process runs, for ranks to compare.
#pragma once

#include <string>

namespace ddp {

/// "0.1.0".
[[nodiscard]] std::string library_version();

/// The GNU build id of the program, and of this library if that is a file of its own, in hexadecimal digits:
/// equal where the same files run. "-" for files that were linked without (--build-id=none).
[[nodiscard]] std::string build_id();

}  // namespace ddp
