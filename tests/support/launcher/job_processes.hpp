// The processes of a job and what they have made, as /proc shows them.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <set>
#include <string>
#include <vector>

namespace ddp::testing {

/// A process that belongs to a job.
struct JobProcess {
  pid_t pid;
  pid_t parent;
  std::string name;
  char state = '?';  ///< as ps shows it: 'T' for stopped
};

/// Living processes that have each of `variables`, "NAME=value", in the environment that they started with.
[[nodiscard]] std::vector<JobProcess> processes_with(std::vector<std::string> const& variables);

/// True as soon as none of them lives, false after `timeout`.
[[nodiscard]] bool gone_within(std::chrono::milliseconds timeout, std::vector<std::string> const& variables);

/// Files of /dev/shm that these processes have mapped.
[[nodiscard]] std::set<std::string> shared_memory_of(std::vector<JobProcess> const& processes);

/// Local addresses of sockets on which these processes listen, as /proc/net/tcp and tcp6 write them.
[[nodiscard]] std::set<std::string> listening_addresses(std::vector<JobProcess> const& processes);

}  // namespace ddp::testing
