// A rank that trains on a GPU, and goes on when another is lost (R26). "rebuild_rank HOW STEP RANKS": rank 1
// kills itself after so many of 200 steps, with its host ahead of its GPU; the others train until there are
// RANKS. HOW: "skip", where the update looks at uncommitted(); "await", where the host waits for each step;
// "graph", where steps are replayed. Weights are whole numbers below 2^24, so that each rank knows what they
// must be.
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "ddp/core/text.hpp"
#include "ddp/ddp.hpp"
#include "ddp/device/cuda_stream.hpp"
#include "ddp/device/memory.hpp"
#include "ddp/device/tensor_ops.hpp"

namespace {

constexpr int kSteps = 200;
constexpr int kMore = 20;               // with a new membership
constexpr long long kCycles = 200'000;  // of a gradient: longer than the host takes for a step
std::vector<std::size_t> const kCounts{300, 70'000, std::size_t{1} << 20};

__global__ void write(float* to, float number) { *to = number; }

__global__ void backward(float* gradient, std::size_t count, float const* number) {
  long long const begin = clock64();
  while (clock64() - begin < kCycles) {
  }
  std::size_t const stride = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    gradient[i] = *number;
  }
}

__global__ void update(float* value, float const* gradient, std::size_t count, float const* skip) {
  if (skip != nullptr && *skip != 0) return;
  std::size_t const stride = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    value[i] += gradient[i];
  }
}

float* words(ddp::TensorView const& tensor) { return static_cast<float*>(tensor.data); }

// What rank `rank` of the job gives in step `step`.
float gradient_of(ddp::Rank rank, int step) {
  return static_cast<float>((step % 5 + 1) * (rank.value() + 1));
}

struct Position {
  int step = 0;
  float expected = 0;  // every weight
};

class Training {
 public:
  Training(ddp::World& world, std::string const& how) : world_(world), number_(tensor(1)) {
    gradients_.resize(kCounts.size());
    std::vector<ddp::Parameter> parameters;
    for (std::size_t p = 0; p < kCounts.size(); ++p) {
      values_.push_back(tensor(kCounts[p]));
      parameters.push_back({ddp::text("p", p),
                            values_.back(),
                            [this, p](ddp::TensorView const& place) { gradients_[p] = place; },
                            {}});
    }
    ddp::DistributedDataParallelOptions options;
    options.bucket_bytes = options.first_bucket_bytes = ddp::Bytes{200'000};
    options.reduction = ddp::DistributedDataParallelOptions::Reduction::sum;
    options.await_commit = how == "await";
    ddp_.emplace(world, parameters, options);
    if (how != "await") skip_ = ddp_->uncommitted();
    if (how == "graph") graph_.emplace(*ddp_, [this] { once(); });
  }

  void step(Position& position) {
    ddp::Rank const me = world_.members()[world_.rank().index()];
    write<<<1, 1, 0, stream()>>>(words(number_), gradient_of(me, position.step));
    graph_ ? graph_->run() : once();
    for (ddp::Rank const rank : world_.members()) position.expected += gradient_of(rank, position.step);
    ++position.step;
  }

  /// Throws if a weight is another one.
  void check(Position const& position) {
    for (ddp::Tensor const& value : values_) {
      std::vector<float> found(value.view().count());
      copy_elements(ddp::view_of(std::span(found)), value, world_.stream());
      world_.stream().synchronize();
      for (float const each : found) {
        if (each == position.expected) continue;
        throw ddp::Error(ddp::ErrorCode::invalid_state,
                         ddp::text("after ", position.step, " steps a weight is ", each, ", expected ",
                                   position.expected));
      }
    }
    if (ddp_->steps() == static_cast<std::uint64_t>(position.step)) return;
    throw ddp::Error(ddp::ErrorCode::invalid_state,
                     ddp::text(ddp_->steps(), " steps, and the position is ", position.step));
  }
  [[nodiscard]] bool has_graph() const { return graph_ && graph_->is_recorded(); }

 private:
  [[nodiscard]] CUstream_st* stream() const { return ddp::cuda_stream(world_.stream()).handle(); }
  [[nodiscard]] ddp::Tensor tensor(std::size_t count) const {
    return ddp::zeros(ddp::Shape{count}, ddp::DType::f32, world_.device());
  }
  void once() {
    for (std::size_t p = kCounts.size(); p-- > 0;) {
      backward<<<64, 256, 0, stream()>>>(words(gradients_[p]), kCounts[p], words(number_));
      ddp_->gradient_ready(p);
    }
    ddp_->synchronize();
    for (std::size_t p = 0; p < kCounts.size(); ++p) {
      update<<<64, 256, 0, stream()>>>(words(values_[p]), words(gradients_[p]), kCounts[p], words(skip_));
    }
  }

  ddp::World& world_;
  ddp::Tensor number_;
  std::vector<ddp::Tensor> values_;
  std::vector<ddp::TensorView> gradients_;
  ddp::TensorView skip_;
  std::optional<ddp::DistributedDataParallel> ddp_;
  std::optional<ddp::StepGraph> graph_;
};

int train(std::string const& how, int killed_after, int ranks) {
  ddp::World world = ddp::World::init();
  Training training(world, how);
  Position position;
  bool const dies = world.rank() == 1 && !world.is_newcomer();
  ddp::Replicated alike(world, {&position});
  for (int last = std::max(kSteps, position.step + kMore);;) {
    try {
      while (position.step < last || world.size() < ranks) {
        training.step(position);
        if (dies && position.step == killed_after) ::kill(::getpid(), SIGKILL);
      }
      world.stream().synchronize();
      break;
    } catch (ddp::CommError const& error) {
      world.rebuild(error, alike);
      training.check(position);
      last = std::max(last, position.step + kMore);
      std::cout << ddp::text("goes on after step ", position.step, " with ", world.communicator().backend(),
                             " and ", world.size(), " ranks\n")
                << std::flush;
    }
  }
  training.check(position);
  if (how == "graph" && world.communicator().backend() != "staged" && !training.has_graph()) {
    throw ddp::Error(ddp::ErrorCode::invalid_state, "the last steps were not replayed");
  }
  std::cout << "all weights are right\n";
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 64;
  try {
    return train(argv[1], std::stoi(argv[2]), std::stoi(argv[3]));
  } catch (ddp::Error const& error) {
    std::cerr << ddp::text(to_string(error.code()), ": ", error.what(), '\n');  // in one piece
    return 3;
  }
}
