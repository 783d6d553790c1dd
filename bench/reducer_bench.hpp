// What the host pays for each gradient.
#pragma once

#include <vector>

#include "options.hpp"
#include "report.hpp"

namespace ddp::bench {

/// Times Reducer::gradient_ready() and Reducer::synchronize() over a communicator that moves nothing, in
/// steady state: gradients in the arena, buckets rebuilt, parameters ready in reverse order. Prints, and
/// writes the JSON file.
///
/// The calls of one step are timed together, since reading the clock costs about as much as a call; the
/// median over steps is reported.
void run_reducer(ReducerBenchOptions const& options);

/// One row of it.
[[nodiscard]] ReducerRow measure_reducer(std::size_t parameters, std::size_t elements, std::size_t steps);

}  // namespace ddp::bench
