// What the parts of a Reducer share.
#pragma once

#include <utility>
#include <vector>

#include "ddp/reducer/options.hpp"
#include "reducer/buckets/buckets.hpp"
#include "reducer/buckets/gradient_marks.hpp"
#include "reducer/memory/gradient_memory.hpp"
#include "reducer/ranks.hpp"
#include "reducer/step.hpp"

namespace ddp {

/// Only the Reducer changes it; its parts read it.
struct ReducerState {
  ReducerState(ReducerRanks group, std::vector<ReducerLane> on, std::vector<Parameter> model,
               DistributedDataParallelOptions const& options)
      : ranks(std::move(group)),
        lanes(std::move(on)),
        parameters(std::move(model)),
        buckets(parameters, lanes, {options.first_bucket_bytes, options.bucket_bytes},
                options.rebuild_buckets, options.sharding),
        marks(parameters, options.allow_repeated_ready),
        memory(ranks.name(), GradientMemory::Options(options), lanes, parameters) {}
  ReducerState(ReducerState const&) = delete;
  ReducerState& operator=(ReducerState const&) = delete;

  ReducerRanks ranks;
  std::vector<ReducerLane> lanes;
  std::vector<Parameter> parameters;
  Buckets buckets;
  GradientMarks marks;
  GradientMemory memory;
  Step step;
};

}  // namespace ddp
