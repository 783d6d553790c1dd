// What docs/surviving.md says around its snippets: names that its text declares.
#pragma once

#include <ddp/ddp.hpp>
#include <vector>

namespace surviving {

struct Optimizer {
  std::vector<ddp::NamedTensor> state();
};
struct Position {
  int step;
};
extern ddp::World world;
extern Optimizer optimizer;
extern Position position;
extern int last;
void train_one_step();

}  // namespace surviving
