// What docs/guide.md says around its snippets: names that its text or an earlier snippet declares, as
// declarations only. Its snippets are compiled inside this namespace.
#pragma once

#include <ddp/ddp.hpp>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <span>
#include <vector>

// cuBLAS, for builds without it.
using cublasHandle_t = struct cublasContext*;
int cublasSetStream(cublasHandle_t handle, struct CUstream_st* stream);
int cublasSetSmCountTarget(cublasHandle_t handle, int sms);

namespace guide {

struct Net {
  void forward(ddp::Batch const& batch);
  void backward(std::function<void(std::size_t parameter)> const& ready);
  std::vector<ddp::Parameter> parameters();
  std::vector<ddp::NamedTensor> buffers();
  void add_and_remove_parameters();
};
struct Optimizer {
  void step();
};
struct SliceState {
  explicit SliceState(ddp::Slice const& slice);
  void update(ddp::Slice const& slice, ddp::Stream& stream);
};

extern ddp::World world;
extern Net net;
extern Optimizer optimizer;
extern ddp::DistributedDataParallel ddp;
extern ddp::DistributedSampler sampler;
extern ddp::Checkpoint checkpoint;
extern ddp::TrainingPosition position;
extern ddp::Batch batch;
extern std::vector<int> dataset;
extern std::vector<double> mine;
extern ddp::Tensor weights;
extern ddp::Tensor momentum;
extern ddp::TensorView view_of_fresh_gradient;
extern std::shared_ptr<void> owner;
extern float* pointer;
extern float* host_pointer;
extern ddp::Stream& other_stream;
extern cublasHandle_t handle;
extern std::uint64_t epochs;
extern std::uint64_t epoch;
extern std::uint64_t steps_done;
extern std::uint64_t samples_of_this_epoch;
extern std::size_t samples;
extern double loss_sum;
extern int micro_steps;
extern bool well;
void micro_step();
void train_on(ddp::Batch const& batch);
void load(ddp::Batch const& batch);
::CUstream_st* my_stream_of(ddp::Device device);

}  // namespace guide
