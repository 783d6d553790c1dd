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
/// write a checkpoint. ddp-launch passes SIGTERM and SIGINT on to every rank, but they arrive at different
/// points of the loop. It is enough if one rank gets the signal.
///
/// Ranks exchange this over the control plane, without waiting for a GPU, about every 0.1 s; rank 0 chooses
/// the number of steps in between, so the cost is next to nothing. One object in a process at a time. A
/// second SIGINT ends the process as if this object did not exist.
class StopSignal {
 public:
  /// Collective. Throws Error(invalid_state) if there is one already.
  explicit StopSignal(World world, std::vector<int> const& signals = {SIGTERM, SIGINT});
  /// Restores the handlers that were installed for these signals before.
  ~StopSignal();
  StopSignal(StopSignal const&) = delete;
  StopSignal& operator=(StopSignal const&) = delete;

  /// To be called by every rank once a step. Returns a signal that some rank got, on every rank in the same
  /// step; from then on always. Throws CommError(timeout) or CommError(peer_lost) if a rank does not call it.
  [[nodiscard]] std::optional<int> after_step();

 private:
  struct Installed {
    int signal;
    struct sigaction before;
  };
  World world_;
  std::vector<Installed> installed_;
  std::optional<int> agreed_;
  int membership_ = 0;            // of the World, at the last call
  std::uint64_t step_ = 0;        // calls
  std::uint64_t next_check_ = 1;  // the call at which ranks tell each other
  std::uint64_t interval_ = 1;
  std::chrono::steady_clock::time_point last_check_;
};

}  // namespace ddp
