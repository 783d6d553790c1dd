// The training of train_mlp in one process, over several devices.
#pragma once

#include <vector>

#include "data/image_set.hpp"
#include "ddp/core/device.hpp"
#include "train_mlp/options.hpp"
#include "train_mlp/progress.hpp"
#include "train_mlp/run_log.hpp"

namespace data_parallel {

/// Trains on `set` and evaluates after each epoch. Each step's batch is split over `devices`, with the loss
/// on the replicas; the result does not depend on how many there are, but for rounding.
[[nodiscard]] train_mlp::FinalRecord train(std::vector<ddp::Device> const& devices, data::DataSet const& set,
                                           train_mlp::Options const& options, train_mlp::Progress& progress,
                                           train_mlp::RunLog& log);

}  // namespace data_parallel
