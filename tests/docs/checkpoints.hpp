// What docs/checkpoints.md says around its snippets.
#pragma once

#include <algorithm>
#include <ddp/ddp.hpp>
#include <iterator>
#include <vector>

namespace checkpoints {

extern ddp::World world;
extern ddp::DistributedDataParallel ddp;
extern std::vector<ddp::TensorView> first_moments;
extern std::vector<ddp::TensorView> second_moments;
extern ddp::TensorView step;

}  // namespace checkpoints
