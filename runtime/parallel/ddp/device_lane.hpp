// The communicator and streams of one device of a DistributedDataParallel.
#pragma once

#include <memory>
#include <string>

#include "ddp/parallel/world.hpp"
#include "parallel/world/world_state.hpp"
#include "reducer/lane.hpp"

namespace ddp {

/// Connecting GPUs takes 0.1 s and some 100 MiB of each, so when a model is gone, the World keeps its
/// communicator for the next one (WorldState::spares). Two that live share none: their gradients may come in
/// another order on another rank. One thread at a time.
class DeviceLane {
 public:
  /// none: for a lane that is made in a step. Steps of two models may end in two threads.
  enum class Spares { used, none };
  /// Collective over the World. `name`: of the object, equal on every rank. Without `compute`, a compute
  /// stream of its own. Throws what connecting ranks throws.
  DeviceLane(World const& world, std::string const& name, Device device, Stream* compute, bool in_rank_order,
             Spares spares = Spares::used);
  DeviceLane(DeviceLane const&) = delete;
  DeviceLane& operator=(DeviceLane const&) = delete;
  /// When nothing runs on its streams. A communicator that has failed is not kept.
  ~DeviceLane();

  [[nodiscard]] ReducerLane const& lane() const noexcept { return lane_; }

 private:
  World world_;
  Spares spares_;
  SpareLane kept_;  // for the next one
  std::unique_ptr<Stream> compute_stream_;
  ReducerLane lane_;
};

}  // namespace ddp
