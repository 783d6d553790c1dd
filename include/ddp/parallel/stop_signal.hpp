// Ranks that stop at the same step when they are told to end.
#pragma once

#include <chrono>
#include <csignal>
#include <cstdint>
#include <optional>
#include <vector>

#include "ddp/core/export.hpp"
#include "ddp/parallel/world.hpp"

namespace DDP_EXPORT ddp {

/// Turns signals that ask a program to end into a step at which all ranks stop together, so that they can
/// write a checkpoint. ddp-launch passes SIGTERM and SIGINT on to every rank, but each rank is somewhere
/// else then; it is enough if one of them gets it.
///
/// Ranks tell each other over the control plane, so no GPU is waited for; about every 0.1 s, counted in steps
/// that rank 0 chooses, so that it costs next to nothing. One object in a process at a time. A second SIGINT
/// ends the process as if this were not here.
class StopSignal {
 public:
  /// Collective. Throws Error(invalid_state) if there is one already.
  explicit StopSignal(World world, std::vector<int> const& signals = {SIGTERM, SIGINT});
  /// Puts back what was installed for these signals before.
  ~StopSignal();
  StopSignal(StopSignal const&) = delete;
  StopSignal& operator=(StopSignal const&) = delete;

  /// To be called by every rank once a step. Returns a signal that some rank got, on every rank in the same
  /// step; from then on always. Throws CommError(timeout) or CommError(peer_lost) if a rank does not come.
  [[nodiscard]] std::optional<int> after_step();

 private:
  struct Installed {
    int signal;
    struct sigaction before;
  };
  World world_;
  std::string name_;
  std::vector<Installed> installed_;
  std::optional<int> agreed_;
  std::uint64_t step_ = 0;        // calls
  std::uint64_t next_check_ = 1;  // the call at which ranks tell each other
  std::uint64_t interval_ = 1;
  std::chrono::steady_clock::time_point last_check_;
};

}  // namespace ddp
