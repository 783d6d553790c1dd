// Environment variables that look like ones that are read, and are not.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace ddp {

/// A sentence for each of `names` that is not read and differs by a letter or two from a variable that CUDA
/// or this library reads (D7): "CUDA_VISIBLE_DIVICES is set, and CUDA does not read it; did you mean
/// CUDA_VISIBLE_DEVICES?".
[[nodiscard]] std::vector<std::string> misspelt_variables(std::span<std::string const> names);

/// The names of this process's environment.
[[nodiscard]] std::vector<std::string> variable_names();

/// Logs them as warnings, once in this process; not in a rank of ddp-launch, which has said them already. Any
/// thread.
void warn_of_misspelt_variables();

}  // namespace ddp
