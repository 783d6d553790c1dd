// What it costs to wrap a model, and a second one, and one after another is gone:
//   ddp-launch --gpus 0,1 -- start_wrappers [TENSORS [MIB]]     8 tensors of 4 MiB unless told
// Rank 0 prints milliseconds of the construction and of the first step, and on a GPU the memory that is gone
// after it, beside the gradients.
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "ddp/core/text.hpp"
#include "ddp/ddp.hpp"

namespace {

// With one decimal.
double round(double value) { return std::round(10 * value) / 10; }

double milliseconds_since(std::chrono::steady_clock::time_point begin) {
  return round(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count());
}

class Job {
 public:
  Job(std::size_t tensors, std::size_t mib) : tensors_(tensors), bytes_(mib << 20) {
    for (std::size_t t = 0; t < tensors_; ++t) values_.push_back(tensor());
    world_.stream().synchronize();
    say(ddp::text("World::init(): ", milliseconds_since(begin_), " ms", used_text(all_ - free_memory())));
  }

  // A wrapper that has done a step.
  std::unique_ptr<ddp::DistributedDataParallel> wrap(std::string const& what) {
    std::vector<ddp::Parameter> parameters;
    for (std::size_t t = 0; t < tensors_; ++t) {
      parameters.push_back({ddp::text("p", t), values_[t], [](ddp::TensorView const&) {}, {}});
    }
    world_.barrier();
    double const before = free_memory();
    auto const begin = std::chrono::steady_clock::now();
    auto made = std::make_unique<ddp::DistributedDataParallel>(world_, std::move(parameters));
    double const constructed = milliseconds_since(begin);
    world_.barrier();
    auto const step = std::chrono::steady_clock::now();
    for (std::size_t t = tensors_; t-- > 0;) made->gradient_ready(t);
    made->synchronize();
    world_.stream().synchronize();
    double const stepped = milliseconds_since(step);
    double const gradients = static_cast<double>(tensors_ * bytes_) / (1 << 20);
    say(ddp::text(what, ": construction ", constructed, " ms, first step ", stepped, " ms",
                  used_text(before - free_memory() - gradients)));
    return made;
  }

  // The communicator of the World, which a program may never use.
  void use_communicator() {
    ddp::Tensor const word = ddp::zeros({1}, ddp::DType::f32, world_.device());
    double const before = free_memory();
    auto const begin = std::chrono::steady_clock::now();
    world_.communicator().all_reduce(word, ddp::ReduceOp::sum(), world_.stream());
    world_.stream().synchronize();
    say(ddp::text("World::communicator(), first all-reduce: ", milliseconds_since(begin), " ms",
                  used_text(before - free_memory())));
  }

 private:
  [[nodiscard]] bool is_gpu() const { return world_.device().kind == ddp::DeviceKind::cuda; }
  [[nodiscard]] double free_memory() const {  // in MiB
    return is_gpu() ? static_cast<double>(ddp::memory_info(world_.device()).free.value) / (1 << 20) : 0.0;
  }
  [[nodiscard]] std::string used_text(double mib) const {
    return is_gpu() ? ddp::text(", ", round(mib), " MiB") : std::string();
  }
  [[nodiscard]] ddp::Tensor tensor() const {
    return ddp::zeros({bytes_ / sizeof(float)}, ddp::DType::f32, world_.device());
  }
  void say(std::string const& words) const {
    if (world_.rank() == 0) std::cout << words << std::endl;
  }

  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  ddp::World world_ = ddp::World::init();
  double all_ =
      is_gpu() ? static_cast<double>(ddp::memory_info(world_.device()).total.value) / (1 << 20) : 0.0;
  std::size_t tensors_;
  std::size_t bytes_;  // of each
  std::vector<ddp::Tensor> values_;
};

}  // namespace

int main(int argc, char** argv) {
  std::size_t const tensors = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 8;
  std::size_t const mib = argc > 2 ? std::strtoul(argv[2], nullptr, 10) : 4;
  if (tensors == 0 || mib == 0) {
    std::cerr << "start_wrappers: expected a number of tensors and of MiB, each 1 or more\n";
    return 64;
  }
  Job job(tensors, mib);
  auto first = job.wrap("first");
  auto second = job.wrap("second, beside it");
  second.reset();
  for (int i = 0; i < 3; ++i) second = job.wrap("in place of the second, made before that is gone");
  second.reset();
  for (int i = 0; i < 3; ++i) static_cast<void>(job.wrap("after one that is gone"));
  job.use_communicator();
  return 0;
}
