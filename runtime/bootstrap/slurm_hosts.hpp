// Hosts as Slurm writes them.
#pragma once

#include <string>

namespace ddp {

/// The first host of a list such as SLURM_JOB_NODELIST: gpu007 of "gpu[007-009,12],login"; empty for none.
[[nodiscard]] inline std::string first_of_nodelist(std::string const& list) {
  std::string first;
  for (std::size_t at = 0; at < list.size() && list[at] != ','; ++at) {
    if (list[at] != '[') {
      first += list[at];
      continue;
    }
    std::size_t const end = list.find(']', at);
    first += list.substr(at + 1, list.find_first_of("-,]", at) - at - 1);
    if (end == std::string::npos) break;
    at = end;
  }
  return first;
}

}  // namespace ddp
