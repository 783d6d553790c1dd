// The training itself: the same for one rank and for many.
#pragma once

#include <variant>

#include "data/image_set.hpp"
#include "ddp/parallel/world.hpp"
#include "train_mlp/options.hpp"
#include "train_mlp/progress.hpp"
#include "train_mlp/recovery.hpp"
#include "train_mlp/run_log.hpp"

namespace train_mlp {

/// A finished training, or why it is not.
using End = std::variant<FinalRecord, EarlyEnd>;

/// Trains on `set` and evaluates after each epoch. Collective: every rank with the same options and data.
/// Each step's batch is split over the ranks, and each shard weighs as many samples as it has, so that the
/// result does not depend on the number of ranks, but for rounding. Shows and records on rank 0.
/// With Options::survive it goes on when a rank is lost, from the step that broke.
/// With Options::checkpoint it can be ended and go on in another process, on a CPU with the same bits.
[[nodiscard]] End train(ddp::World world, data::DataSet const& set, Options const& options,
                        Progress& progress, RunLog& log);

}  // namespace train_mlp
