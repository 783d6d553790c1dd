// What docs/data-parallel-or-ddp.md takes from the examples that it shows, as declarations only.
#pragma once

#include <ddp/ddp.hpp>
#include <functional>
#include <vector>

namespace data_parallel_or_ddp {

struct Samples {
  ddp::TensorView inputs;
  ddp::TensorView labels;
};
struct Loader {
  Samples load(ddp::Batch const& batch);
};
struct Net {
  void forward(Samples const& samples);
  void backward(ddp::GradientReady const& ready);
  std::vector<ddp::Parameter> parameters();
};
struct Optimizer {
  void step();
};
struct Losses {
  ddp::ReplicaLoss operator()(ddp::Module& replica, ddp::Value const& output, ddp::Value const& target,
                              ddp::ReplicaShare const& share);
};

extern ddp::World world;
extern Net net;
extern ddp::Module& module;
extern std::vector<ddp::Device> devices;
extern Losses losses;
extern Loader train_images;
extern Optimizer optimizer;
extern ddp::Batch batch;
extern ddp::GradientReady gradient_ready;

}  // namespace data_parallel_or_ddp
