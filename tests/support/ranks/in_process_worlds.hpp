// Ranks that are threads, each with its World.
#pragma once

#include <gtest/gtest.h>

#include <chrono>

#include "ddp/parallel/distributed_data_parallel.hpp"
#include "support/errors.hpp"
#include "support/ranks/run_ranks.hpp"

namespace ddp::testing {

/// Calls body(world) on `size` ranks at once.
template <class Body>
void on_ranks(int size, Body body) {
  auto worlds = World::in_process(size, {.timeout = std::chrono::seconds(60)});
  run_ranks(size, [&](int rank) { body(worlds[static_cast<std::size_t>(rank)]); });
}

/// Marks every parameter, the last one first.
inline void mark_all(DistributedDataParallel& ddp) {
  for (std::size_t p = ddp.parameters().size(); p-- > 0;) ddp.gradient_ready(p);
}

/// A step with this rank's gradients of a ToyModel.
template <class Model>
void do_step(World const& world, Model& model, DistributedDataParallel& ddp) {
  model.clear_gradients();
  model.fill_gradients(world.rank().value());
  mark_all(ddp);
  ddp.synchronize();
}

}  // namespace ddp::testing
