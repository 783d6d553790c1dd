#include "gemm_chain.hpp"

#include <cmath>

#include "ddp/core/text.hpp"
#include "ddp/device/memory.hpp"
#include "ddp/device/tensor_ops.hpp"

namespace ddp::bench {
namespace {

// Sebastiano Vigna's splitmix64.
std::uint64_t next_random(std::uint64_t& state) {
  state += 0x9e3779b97f4a7c15ULL;
  std::uint64_t z = state;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

}  // namespace

GemmChain::GemmChain(Sizes const& sizes, Device device, Rank rank, Stream& stream)
    : sizes_(sizes),
      device_(device),
      rank_(rank),
      stream_(&stream),
      gemm_(make_gemm(device, sizes.dtype)),
      gradients_(sizes.layers) {
  // Uniform numbers of variance 1 / width, so that what goes through a layer keeps its size.
  Tensor const first = random(sizes.width, std::sqrt(3.0 / static_cast<double>(sizes.width)), 0);
  for (std::size_t layer = 0; layer < sizes.layers; ++layer) {
    weights_.push_back(zeros(first.view().shape, sizes.dtype, device));
    copy_elements(weights_.back(), first, stream);
  }
  stream.synchronize();
}

// Uniform in ±limit.
Tensor GemmChain::random(std::size_t rows, double limit, std::uint64_t seed) const {
  Tensor const values = zeros(Shape{rows, sizes_.width}, sizes_.dtype, device_);
  Tensor const host = Tensor::zeros(values.view().shape, sizes_.dtype);
  dispatch(sizes_.dtype, [&](auto type) {
    using T = decltype(type);
    if constexpr (std::is_same_v<T, float> || std::is_same_v<T, bfloat16>) {
      for (T& value : host.as<T>()) {
        value = static_cast<T>(
            static_cast<float>((static_cast<double>(next_random(seed) >> 11) * 0x1p-52 - 1) * limit));
      }
    }
  });
  copy_elements(values, host, *stream_);
  stream_->synchronize();
  return values;
}

std::vector<Parameter> GemmChain::parameters() {
  std::vector<Parameter> parameters;
  for (std::size_t layer = 0; layer < sizes_.layers; ++layer) {
    parameters.push_back({text("layer", layer, ".weight"),
                          weights_[layer],
                          [this, layer](TensorView const& view) { gradients_[layer] = view; },
                          {}});
  }
  return parameters;
}

void GemmChain::move_to(Stream& stream, int multiprocessors) {
  stream.wait(*stream_);
  stream_ = &stream;
  gemm_->plan_for(multiprocessors);
}

void GemmChain::set_rows(std::size_t rows) {
  stream_->synchronize();
  std::uint64_t const seed = static_cast<std::uint64_t>(rank_.value()) * 2 + 1;
  inputs_.clear();
  inputs_.push_back(random(rows, 1, seed));
  while (inputs_.size() <= sizes_.layers) {
    inputs_.push_back(zeros(inputs_[0].view().shape, sizes_.dtype, device_));
  }
  loss_gradient_ = random(rows, 1, seed + 1);
  for (Tensor& gradient : between_) gradient = zeros(inputs_[0].view().shape, sizes_.dtype, device_);
  forward();
  stream_->synchronize();
}

void GemmChain::forward(SpanRecorder* recorder) {
  ScopedSpan const all(recorder, *stream_, {.what = "forward", .category = "compute"});
  for (std::size_t layer = 0; layer < sizes_.layers; ++layer) {
    ScopedSpan const one(recorder, *stream_, {.what = "layer", .index = layer, .category = "compute"});
    gemm_->multiply(Gemm::Transposed::second, inputs_[layer], weights_[layer], inputs_[layer + 1], *stream_);
  }
}

void GemmChain::backward(std::function<void(std::size_t)> const& ready, SpanRecorder* recorder) {
  ScopedSpan const all(recorder, *stream_, {.what = "backward", .category = "compute"});
  TensorView output = loss_gradient_;
  for (std::size_t layer = sizes_.layers; layer-- > 0;) {
    {
      ScopedSpan const one(recorder, *stream_,
                           {.what = "weights of layer", .index = layer, .category = "compute"});
      gemm_->multiply(Gemm::Transposed::first, output, inputs_[layer], gradients_[layer], *stream_);
    }
    ready(layer);
    if (layer == 0) break;
    ScopedSpan const one(recorder, *stream_,
                         {.what = "inputs of layer", .index = layer, .category = "compute"});
    TensorView const input = between_[layer % 2];
    gemm_->multiply(Gemm::Transposed::none, output, weights_[layer], input, *stream_);
    output = input;
  }
}

}  // namespace ddp::bench
