// What the libtorch examples and the comparison share beside their models.
#pragma once

#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include <chrono>
#include <cstdint>
#include <iomanip>
#include <iostream>
#include <utility>

#include "ddp/parallel/world.hpp"

namespace training {

/// bf16 where autocast deems it safe, as `with torch.autocast(..., torch.bfloat16)` in Python: for the
/// forward pass and the loss only. At its end the cast copies of weights go: those of the next step are made
/// of the new weights.
class Autocast {
 public:
  explicit Autocast(torch::Device device, bool enabled = true)
      : kind_(device.type()),
        was_enabled_(at::autocast::is_autocast_enabled(kind_)),
        dtype_(at::autocast::get_autocast_dtype(kind_)) {
    at::autocast::increment_nesting();
    at::autocast::set_autocast_enabled(kind_, enabled);
    at::autocast::set_autocast_dtype(kind_, at::kBFloat16);
  }
  ~Autocast() {
    at::autocast::set_autocast_dtype(kind_, dtype_);
    at::autocast::set_autocast_enabled(kind_, was_enabled_);
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  }
  Autocast(Autocast const&) = delete;
  Autocast& operator=(Autocast const&) = delete;

 private:
  at::DeviceType kind_;
  bool was_enabled_;
  at::ScalarType dtype_;
};

/// TF32 products and convolutions, and cuDNN's fastest algorithm for each shape.
inline void use_fast_kernels() {
  at::globalContext().setAllowTF32CuBLAS(true);
  at::globalContext().setAllowTF32CuDNN(true);
  at::globalContext().setBenchmarkCuDNN(true);
}

/// Rank 0 writes the mean of all ranks' losses, and how fast steps were, after every `every` steps and after
/// the last.
class Report {
 public:
  Report(ddp::World const& world, std::int64_t every, std::int64_t last)
      : world_(world), every_(every), last_(last) {}

  /// After each step, on every rank. `speed(seconds)` writes what a step's mean time amounts to.
  template <class Speed>
  void after(std::int64_t step, torch::Tensor const& loss, Speed const& speed) {
    if (step % every_ != 0 && step != last_) return;
    double const mean = world_.all_reduce_scalar(loss.item<double>()) / world_.size();
    auto const now = std::chrono::steady_clock::now();
    double const seconds = std::chrono::duration<double>(now - std::exchange(begin_, now)).count();
    auto const steps = static_cast<double>(step - std::exchange(reported_, step));
    if (world_.rank() != 0) return;
    std::cout << "step " << step << ": loss " << std::fixed << std::setprecision(6) << mean << ", ";
    speed(seconds / steps);
    std::cout << std::endl;
  }

 private:
  ddp::World world_;
  std::int64_t every_;
  std::int64_t last_;
  std::int64_t reported_ = 0;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace training
