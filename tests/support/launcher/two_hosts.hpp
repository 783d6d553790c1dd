// Two hosts that are none: an agent that stands in for ssh runs both of mpirun's daemons here.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "support/launcher/launched_job.hpp"

namespace ddp::testing {

/// Two daemons of mpirun on one host must not both write what this host looks like into the same file.
[[nodiscard]] inline LaunchedJob::Settings two_hosts(std::vector<std::string> variables = {}) {
  variables.emplace_back("OMPI_MCA_plm_rsh_agent=" DDP_LOCAL_AGENT);
  variables.emplace_back("PRTE_MCA_plm_ssh_agent=" DDP_LOCAL_AGENT);  // the same for Open MPI 5
  variables.emplace_back("OMPI_MCA_rtc=^hwloc");
  return {.environment = std::move(variables)};
}

/// What ddp-launch is started with for a rank on each.
[[nodiscard]] inline std::vector<std::string> on_two_hosts(std::vector<std::string> const& command,
                                                           std::vector<std::string> const& options = {}) {
  std::vector<std::string> words{"--host", "node-a:1,node-b:1", "--no-log-files"};
  words.insert(words.end(), options.begin(), options.end());
  words.emplace_back("--");
  words.insert(words.end(), command.begin(), command.end());
  return words;
}

}  // namespace ddp::testing
