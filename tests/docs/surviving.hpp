// What docs/surviving.md says around its snippets: names that its text declares.
#pragma once

#include <cstddef>
#include <ddp/ddp.hpp>
#include <optional>
#include <span>
#include <stdexcept>
#include <vector>

namespace surviving {

struct Optimizer {
  std::vector<ddp::NamedTensor> state();
  void step();
};
struct Position {
  int step;
};
struct SliceStates {
  explicit SliceStates(std::span<ddp::Slice const> slices);
  std::vector<ddp::ShardedTensor> tensors(ddp::DistributedDataParallel const& ddp);
};
extern ddp::World world;
extern ddp::DistributedDataParallel ddp;
extern SliceStates states;
extern std::optional<ddp::Checkpoint> checkpoint;
extern ddp::DistributedDataParallel model;
extern ddp::DistributedSampler sampler;
extern Optimizer optimizer;
extern Position position;
extern int last;
void train_one_step();
void add_up_gradients(ddp::Batch const& part, std::size_t samples);

}  // namespace surviving
