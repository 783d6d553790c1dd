// Where gradients of one device are reduced.
#pragma once

#include <algorithm>
#include <memory>
#include <span>

#include "comm/communicator_backend.hpp"
#include "comm/step_commits.hpp"
#include "ddp/core/tensor.hpp"
#include "ddp/core/text.hpp"
#include "ddp/device/stream.hpp"

namespace ddp {

/// Communicator and streams must outlive what uses the lane.
struct ReducerLane {
  Device device;                                ///< of the parameters
  CommunicatorBackend* communicator = nullptr;  ///< used by one Reducer alone, on `comm_stream` alone
  Stream* compute_stream = nullptr;             ///< where the program writes gradients
  Stream* comm_stream = nullptr;                ///< where collectives run
  std::shared_ptr<StepCommits> commits{};       ///< of the World, if a GPU's steps are committed (R26)
  Tensor skip{};  ///< f32[1]: 1 where an optimizer is to skip the step; one for all Reducers of a model
};

/// A barrier of the ranks. Throws the communicator's failure.
inline void meet(ReducerLane const& lane) {
  lane.comm_stream->expect_wait();
  lane.communicator->barrier(*lane.comm_stream);
  lane.comm_stream->synchronize();
}

/// The lane of a device. Throws Error(invalid_argument) if there is none.
[[nodiscard]] inline ReducerLane const& lane_of(std::span<ReducerLane const> lanes, Device device) {
  auto const found = std::ranges::find(lanes, device, &ReducerLane::device);
  require(found != lanes.end(),
          [&] { return text("a parameter lies on ", device, ", and there is no communicator for it"); });
  return *found;
}

}  // namespace ddp
