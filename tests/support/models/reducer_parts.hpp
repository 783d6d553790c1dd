// What a part of a Reducer needs around it: a model, a lane, and other ranks that are made up.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <numeric>
#include <vector>

#include "reducer/parts/step_parts.hpp"
#include "support/errors.hpp"
#include "support/fakes/fake_communicator.hpp"
#include "support/models/toy_model.hpp"

namespace ddp::testing {

/// Of the three parameters of ReducerParts.
inline constexpr std::array<std::uint8_t, 3> kAllUsed{1, 1, 1};

/// Rank 0 of `ranks`, with three parameters of 4, 6 and 2 elements in two buckets: {2, 1} and {0}.
class ReducerParts {
 public:
  explicit ReducerParts(int ranks = 2, DistributedDataParallelOptions options = {})
      : communicator(ranks), state(group(ranks), lanes(), model.parameters(), small(std::move(options))) {
    state.buckets.use(state.buckets.plan_for(reverse_order(3)));
    state.memory.plan_changed(state.buckets.plan(), true);
    state.marks.plan_changed(state.buckets.plan());
  }

  /// Begins `part` and sends its head, as the Reducer does.
  void begin(StepPart& part) {
    part.plan_changed();
    part.begin();
    state.step.state = StepState::open;
    part.head();
    comm_stream.synchronize();
  }
  void end(StepPart& part) {
    part.tail();
    part.after_tail();
    comm_stream.synchronize();
    part.end();
    part.verdict();
  }

  ToyModel model{{4, 6, 2}};
  FakeCommunicator communicator;  // outlives what is on the streams
  std::unique_ptr<HostStream> compute = HostStream::inline_stream();
  HostStream comm_stream;
  ReducerState state;

 private:
  std::vector<ReducerLane> lanes() { return {{Device{}, &communicator, compute.get(), &comm_stream}}; }
  // The others never answer: what waits for them ends at once.
  static ReducerRanks group(int ranks) {
    std::vector<Rank> all;
    for (int r = 0; r < ranks; ++r) all.emplace_back(r);
    return {"parts", make_in_process_control(ranks).front(), all, std::chrono::milliseconds(1)};
  }
  static DistributedDataParallelOptions small(DistributedDataParallelOptions options) {
    options.first_bucket_bytes = options.bucket_bytes = Bytes{32};
    return options;
  }
};

}  // namespace ddp::testing
