// What a shim is while its rank runs: the rank's parent, which ends what a killed mpirun would leave behind,
// and tells ddp-launch how the rank has ended.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "bootstrap/wire.hpp"
#include "ddp/core/device.hpp"
#include "launcher/report/oom_kills.hpp"

namespace ddp::launcher {

/// How a rank that mpirun started has ended.
struct RankEnd {
  enum class Why { by_itself, told_to, without_mpirun };  ///< without: its daemon on that host has ended
  int status = 0;                                         ///< as of waitpid()
  Why why = Why::by_itself;
  Device device{};
  std::string gpu{};  ///< UUID, or empty
  std::optional<OomWatch> oom{};
};
/// For the frame wire::Type::ended; without `oom` if that is too long.
[[nodiscard]] std::string encode_rank_end(RankEnd const& end);
/// Throws Error(protocol).
[[nodiscard]] RankEnd decode_rank_end(std::string const& words);

/// A rank before it starts.
struct GuardedRank {
  std::string program;
  std::vector<std::string> command;  ///< argv
  std::vector<int> cpus;             ///< that it is to keep to
  wire::Join who;                    ///< without its process
  Device device;
  std::string gpu;
  std::string invitation;  ///< DDP_INVITATION
  pid_t daemon;            ///< mpirun's on this host, the parent of this process
};

/// Runs it as a child in this process's group, and returns its exit code (128 and the signal) when ddp-launch
/// lets this process go: so mpirun does not end other ranks before they know why. When mpirun's daemon, this
/// process's parent, has ended, or has told its ranks to end and would kill all that is left: ends the group,
/// and removes what a killed daemon leaves. Ends a daemon that the network has cut off from ddp-launch for a
/// minute, since it would try for a quarter of an hour to report the rank's end.
[[nodiscard]] int run_guarded(GuardedRank const& rank);

}  // namespace ddp::launcher
