// A rank that trains on a GPU, and goes on when another is lost (R26). "rebuild_rank HOW STEP RANKS FOLDER":
// rank 1 kills itself after so many of 200 steps, with its host ahead of its GPU; the others train until
// there are RANKS. HOW, words with commas between them: "skip", where the update looks at uncommitted();
// "await", where the host waits for each step; "graph", where steps are replayed; "join", where the first
// rank has no data for some steps; "buckets" and "slices", where updates run in the backward pass, of slices
// with a state of their own, and ranks may go back to a checkpoint in FOLDER. Weights are whole numbers below
// 2^24, so that each rank knows what they must be.
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <functional>
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
constexpr int kMore = 20;   // with a new membership, and between checkpoints
constexpr int kEpoch = 10;  // steps, of which with "join" the first rank has data for kHalf
constexpr int kHalf = 6;
constexpr long long kCycles = 200'000;  // of a gradient: longer than the host takes for a step
std::vector<std::size_t> const kCounts{300, 70'000, std::size_t{1} << 20};

struct Numbers {
  float gradient;
  float weight;  // what it should be
};

__global__ void write(Numbers* to, Numbers numbers) { *to = numbers; }

// Of a weight that is not what it should be, the gradient is another one on this rank.
__global__ void backward(float* gradient, float const* value, std::size_t count, Numbers const* numbers) {
  long long const begin = clock64();
  while (clock64() - begin < kCycles) {
  }
  std::size_t const stride = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    auto const times = static_cast<float>(1 + i % 7);
    gradient[i] = numbers->gradient * times + (value[i] - numbers->weight * times);
  }
}

__global__ void update(float* value, float const* gradient, std::size_t count, float const* skip) {
  if (skip != nullptr && *skip != 0) return;
  std::size_t const stride = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    value[i] += gradient[i];
  }
}

// A slice's values, and its state.
__global__ void update_slice(float* value, float* sum, float const* gradient, std::size_t count,
                             float const* skip) {
  if (*skip != 0) return;
  std::size_t const stride = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    sum[i] += gradient[i];
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
  int expected = 0;  // of every seventh weight; those between are its multiples
};

class Training {
 public:
  Training(ddp::World& world, std::string how, std::filesystem::path folder)
      : world_(world), how_(std::move(how)), folder_(std::move(folder)), numbers_(tensor(2)) {
    gradients_.resize(kCounts.size());
    std::vector<ddp::Parameter> parameters;
    for (std::size_t p = 0; p < kCounts.size(); ++p) {
      values_.push_back(tensor(kCounts[p]));
      parameters.push_back({.name = ddp::text("p", p),
                            .value = values_.back(),
                            .bind_gradient = [this, p](ddp::Tensor const& place) { gradients_[p] = place; },
                            .bind_value = [this, p](ddp::Tensor const& place) { values_[p] = place; }});
    }
    using Options = ddp::DistributedDataParallelOptions;
    Options options;
    options.bucket_bytes = options.first_bucket_bytes = ddp::Bytes{200'000};
    options.reduction = Options::Reduction::sum;
    options.await_commit = is("await");
    if (is("join")) options.uneven = Options::Uneven::divide_by_live;
    if (is("slices")) options.sharding = ddp::Sharding::optimizer;
    ddp_.emplace(world, parameters, options);
    if (!is("await")) skip_ = ddp_->uncommitted();
    if (is("buckets")) {
      ddp_->on_bucket_ready([this](ddp::ReducedBucket const& bucket) {
        for (ddp::BucketSlice const& piece : bucket.slices) {
          add(piece.parameter, piece.parameter_offset, piece.count, words(skip_), bucket.stream);
        }
      });
    }
    if (is("slices")) {
      ddp_->on_slice_ready([this](ddp::Slice const& slice, ddp::Stream& stream) {
        update_slice<<<64, 256, 0, ddp::cuda_stream(stream).handle()>>>(
            words(slice.values), words(sums_[slice.index]), words(slice.gradient), slice.values.count(),
            words(skip_));
      });
    }
    if (may_go_back()) make_checkpoint();
    if (is("graph")) graph_.emplace(*ddp_, [this] { once(); });
  }

  [[nodiscard]] bool is(std::string const& word) const {
    return ("," + how_ + ",").find("," + word + ",") != std::string::npos;
  }
  [[nodiscard]] bool may_go_back() const { return is("buckets") || is("slices"); }
  [[nodiscard]] bool has_graph() const { return graph_ && graph_->is_recorded(); }
  [[nodiscard]] bool has_data(ddp::Rank rank, int step) const {
    return !is("join") || rank != 0 || world_.size() == 1 || step % kEpoch < kHalf;
  }

  /// Steps until this rank has no data, or one. Calls `after` after each.
  void go_on(Position& position, std::function<void()> const& after) {
    if (may_go_back() && position.step % kMore == 0) {
      save(position);
      if (position.step == 0) checkpoint_->wait();  // there must be one when a rank is lost
    }
    if (has_data(world_.rank(), position.step)) {
      ddp::Rank const me = world_.members()[world_.rank().index()];
      write<<<1, 1, 0, stream()>>>(numbers(), {gradient_of(me, position.step), float(position.expected)});
      graph_ ? graph_->run() : once();
      count(position);
      after();
    }
    if (!is("join") || (position.step % kEpoch != 0 && has_data(world_.rank(), position.step))) return;
    ddp_->join([&] {
      update_all();
      count(position);
      after();
    });
  }

  void go_back(Position& position) {
    checkpoint_.reset();
    make_checkpoint();
    auto const found = checkpoint_->restore();
    if (!found) throw ddp::Error(ddp::ErrorCode::invalid_state, "there is no checkpoint");
    position = {static_cast<int>(found->position.step), std::stoi(found->position.metadata.at("expected"))};
  }

  /// Throws if a weight, or what is kept of one, is another one.
  void check(Position const& position) {
    for (ddp::Tensor const& value : values_) {
      std::vector<float> const found = read(value);
      for (std::size_t i = 0; i < found.size(); ++i) {
        auto const expected = static_cast<float>(position.expected) * static_cast<float>(1 + i % 7);
        if (found[i] == expected) continue;
        throw ddp::Error(ddp::ErrorCode::invalid_state,
                         ddp::text("after ", position.step, " steps weight ", i, " of ", found.size(), " is ",
                                   found[i], ", expected ", expected));
      }
    }
    for (std::size_t s = 0; s < sums_.size(); ++s) {
      if (read(sums_[s]) == read(ddp_->slices()[s].values)) continue;
      throw ddp::Error(ddp::ErrorCode::invalid_state, ddp::text("the state of slice ", s, " is another one"));
    }
    auto const steps = static_cast<std::uint64_t>(position.step);
    if (ddp_->steps() == steps || (may_go_back() && ddp_->steps() > steps)) return;
    throw ddp::Error(ddp::ErrorCode::invalid_state,
                     ddp::text(ddp_->steps(), " steps, and the position is ", position.step));
  }

 private:
  void save(Position const& position) {
    ddp::TrainingPosition const here{.step = static_cast<std::uint64_t>(position.step),
                                     .metadata = {{"expected", ddp::text(position.expected)}}};
    try {
      checkpoint_->save(here);
    } catch (ddp::Error const& error) {
      if (error.code() != ddp::ErrorCode::io) throw;
      checkpoint_->save(here);  // one was being written when a rank was lost, which is said once
    }
  }
  [[nodiscard]] Numbers* numbers() const { return static_cast<Numbers*>(numbers_.view().data); }
  [[nodiscard]] CUstream_st* stream() const { return ddp::cuda_stream(world_.stream()).handle(); }
  [[nodiscard]] ddp::Tensor tensor(std::size_t count) const {
    return ddp::zeros(ddp::Shape{count}, ddp::DType::f32, world_.device());
  }
  [[nodiscard]] std::vector<float> read(ddp::TensorView const& from) const {
    std::vector<float> found(from.count());
    copy_elements(ddp::view_of(std::span(found)), from, world_.stream());
    world_.stream().synchronize();
    return found;
  }
  void make_checkpoint() {
    ddp::CheckpointTensors kept{.model = ddp::named_values(ddp_->parameters())};
    sums_.clear();
    if (is("slices")) {
      for (ddp::Slice const& slice : ddp_->slices()) sums_.push_back(tensor(slice.values.count()));
      std::vector<ddp::TensorView> const by_slice(sums_.begin(), sums_.end());
      kept.sharded_optimizer = ddp::sharded_states(*ddp_, "sum", by_slice);
    }
    checkpoint_.emplace(world_, folder_, std::move(kept));
  }
  void count(Position& position) const {
    for (std::size_t r = 0; r < world_.members().size(); ++r) {
      if (!has_data(ddp::Rank{static_cast<int>(r)}, position.step)) continue;
      position.expected += static_cast<int>(gradient_of(world_.members()[r], position.step));
    }
    ++position.step;
  }
  void add(std::size_t p, std::size_t first, std::size_t count, float const* skip, ddp::Stream& on) const {
    update<<<64, 256, 0, ddp::cuda_stream(on).handle()>>>(words(values_[p]) + first,
                                                          words(gradients_[p]) + first, count, skip);
  }
  void update_all() const {
    if (may_go_back()) return;  // the backward pass has done it
    for (std::size_t p = 0; p < kCounts.size(); ++p) add(p, 0, kCounts[p], words(skip_), world_.stream());
  }
  void once() {
    for (std::size_t p = kCounts.size(); p-- > 0;) {
      backward<<<64, 256, 0, stream()>>>(words(gradients_[p]), words(values_[p]), kCounts[p], numbers());
      ddp_->gradient_ready(p);
    }
    ddp_->synchronize();
    update_all();
  }

  ddp::World& world_;
  std::string how_;
  std::filesystem::path folder_;
  ddp::Tensor numbers_;
  std::vector<ddp::Tensor> values_;
  std::vector<ddp::TensorView> gradients_;
  ddp::TensorView skip_;
  std::vector<ddp::Tensor> sums_;  // by slice
  std::optional<ddp::DistributedDataParallel> ddp_;
  std::optional<ddp::Checkpoint> checkpoint_;
  std::optional<ddp::StepGraph> graph_;
};

int train(std::string const& how, int killed_after, int ranks, std::filesystem::path const& folder) {
  ddp::World world = ddp::World::init();
  Training training(world, how, folder);
  Position position;
  bool const dies = world.rank() == 1 && !world.is_newcomer();
  std::function<void()> go_back;
  if (training.may_go_back()) go_back = [&] { training.go_back(position); };
  ddp::Replicated alike(world, {&position}, go_back);
  auto const whole_epochs = [](int steps) { return (steps + kEpoch - 1) / kEpoch * kEpoch; };
  for (int last = std::max(kSteps, whole_epochs(position.step + kMore));;) {
    try {
      while (position.step < last || world.size() < ranks) {
        training.go_on(position, [&] {
          if (dies && position.step == killed_after) ::kill(::getpid(), SIGKILL);
        });
      }
      world.stream().synchronize();
      break;
    } catch (ddp::CommError const& error) {
      world.rebuild(error, alike);
      training.check(position);
      if (training.is("slices") && position.step % kMore != 0) {
        throw ddp::Error(ddp::ErrorCode::invalid_state, "expected to go back to a checkpoint");
      }
      last = std::max(last, whole_epochs(position.step + kMore));
      std::cout << ddp::text("goes on after step ", position.step, " with ", world.communicator().backend(),
                             " and ", world.size(), " ranks\n")
                << std::flush;
    }
  }
  training.check(position);
  if (training.is("graph") && world.communicator().backend() != "staged" && !training.has_graph()) {
    throw ddp::Error(ddp::ErrorCode::invalid_state, "the last steps were not replayed");
  }
  std::cout << "all weights are right\n";
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return 64;
  try {
    return train(argv[1], std::stoi(argv[2]), std::stoi(argv[3]), argv[4]);
  } catch (ddp::Error const& error) {
    std::cerr << ddp::text(to_string(error.code()), ": ", error.what(), '\n');  // in one piece
    return 3;
  }
}
