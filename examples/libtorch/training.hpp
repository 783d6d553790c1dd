// What the libtorch examples and the comparison share beside their models.
#pragma once

#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include <chrono>
#include <cstdint>
#include <iomanip>
#include <iostream>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ddp/parallel/world.hpp"

namespace training {

/// AdamW in one kernel for all parameters, as torch.optim.AdamW(fused=True) in Python. torch::optim::AdamW
/// launches a dozen kernels for each parameter.
class FusedAdamW {
 public:
  FusedAdamW(std::vector<torch::Tensor> parameters, double learning_rate, double weight_decay = 0.01)
      : parameters_(std::move(parameters)), learning_rate_(learning_rate), weight_decay_(weight_decay) {
    for (torch::Tensor const& parameter : parameters_) {
      places_.emplace(parameter.unsafeGetTensorImpl(), places_.size());
      averages_.push_back(torch::zeros_like(parameter));
      squares_.push_back(torch::zeros_like(parameter));
      steps_.push_back(torch::zeros({}, parameter.options().dtype(torch::kFloat32)));
    }
  }

  /// Parameters without a gradient stay as they are. `skip`: where this f32 of theirs is 1, all of them do.
  void step(torch::Tensor const& skip = {}) { update(parameters_, skip); }

  /// The same for some of them, as ddp::libtorch::BucketReady wants it.
  void update(std::vector<torch::Tensor> const& chosen, torch::Tensor const& skip = {}) const {
    torch::NoGradGuard const no_grad;
    std::vector<torch::Tensor> parameters, gradients, averages, squares, steps;
    for (auto* list : {&parameters, &gradients, &averages, &squares, &steps}) list->reserve(chosen.size());
    for (torch::Tensor const& parameter : chosen) {
      if (!parameter.grad().defined()) continue;
      std::size_t const i = places_.at(parameter.unsafeGetTensorImpl());
      parameters.push_back(parameter);
      gradients.push_back(parameter.grad());
      averages.push_back(averages_[i]);
      squares.push_back(squares_[i]);
      steps.push_back(steps_[i]);
    }
    if (parameters.empty()) return;
    at::_foreach_add_(steps, 1);
    if (skip.defined()) at::_foreach_sub_(steps, std::vector<torch::Tensor>(steps.size(), skip));
    std::optional<torch::Tensor> const found = skip.defined() ? std::optional(skip) : std::nullopt;
    at::_fused_adamw_(parameters, gradients, averages, squares, {}, steps, learning_rate_, 0.9, 0.999,
                      weight_decay_, 1e-8, /*amsgrad=*/false, /*maximize=*/false, /*grad_scale=*/{}, found);
  }

 private:
  std::vector<torch::Tensor> parameters_, averages_, squares_, steps_;
  std::unordered_map<torch::TensorImpl*, std::size_t> places_;
  double learning_rate_;
  double weight_decay_;
};

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
