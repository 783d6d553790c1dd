// A network of three layers in plain loops: the oracle's model. Slow, obvious, and in any floating type.
#pragma once

#include <cmath>
#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "ddp/parallel/distributed_data_parallel.hpp"

namespace ddp::testing {

/// Values of a sample and its target, made from its index: the same on every rank.
template <class T>
struct TinyData {
  static constexpr std::size_t kInputs = 7;
  static constexpr std::size_t kOutputs = 3;
  static T input(std::size_t sample, std::size_t i) {
    return static_cast<T>(std::sin(static_cast<double>(sample * 13 + i * 7 + 1)));
  }
  static T target(std::size_t sample, std::size_t i) {
    return static_cast<T>(std::cos(static_cast<double>(sample * 5 + i * 3)));
  }
};

/// tanh layers 7 → 40 → 30 → 3, loss = half the squared error, summed over outputs. Gradients add into their
/// views.
template <class T>
class TinyMlp {
 public:
  static constexpr std::size_t kLayers = 3;
  static constexpr std::size_t kWidths[kLayers + 1] = {TinyData<T>::kInputs, 40, 30, TinyData<T>::kOutputs};

  explicit TinyMlp(double seed = 0.0) {
    for (std::size_t layer = 0; layer < kLayers; ++layer) {
      for (std::size_t const count : {kWidths[layer + 1] * kWidths[layer], kWidths[layer + 1]}) {
        std::vector<T> value(count);
        for (std::size_t i = 0; i < count; ++i) {
          value[i] = static_cast<T>(0.5 * std::sin(seed + static_cast<double>(values_.size() * 100 + i)));
        }
        values_.push_back(std::move(value));
        own_gradients_.emplace_back(count);
      }
    }
    for (auto& gradient : own_gradients_) gradients_.push_back(gradient.data());
  }
  TinyMlp(TinyMlp const&) = delete;
  TinyMlp& operator=(TinyMlp const&) = delete;

  [[nodiscard]] std::size_t parameter_count() const { return values_.size(); }
  [[nodiscard]] std::vector<T>& value(std::size_t p) { return values_[p]; }
  [[nodiscard]] std::span<T> gradient(std::size_t p) { return {gradients_[p], values_[p].size()}; }
  /// All parameters, one behind another.
  [[nodiscard]] std::vector<T> flat() const {
    std::vector<T> all;
    for (auto const& value : values_) all.insert(all.end(), value.begin(), value.end());
    return all;
  }

  [[nodiscard]] std::vector<Parameter> parameters() {
    std::vector<Parameter> list;
    for (std::size_t p = 0; p < values_.size(); ++p) {
      Shape const shape = p % 2 == 0 ? Shape{kWidths[p / 2 + 1], kWidths[p / 2]} : Shape{kWidths[p / 2 + 1]};
      TensorView const value{values_[p].data(), shape, dtype_of<T>, {}};
      TensorView const gradient{own_gradients_[p].data(), shape, dtype_of<T>, {}};
      auto bind = [this, p](TensorView const& view) { gradients_[p] = view.as<T>().data(); };
      list.push_back(
          {"layer" + std::to_string(p / 2) + (p % 2 == 0 ? ".weight" : ".bias"), value, bind, gradient});
    }
    return list;
  }

  /// After DistributedDataParallel was made, which writes rank 0's values where the parameters are: here.
  void take_values() {}

  /// Adds `scale` × the gradient of the loss of these samples; calls ready(p) as each is complete, last layer
  /// first.
  void backward(
      std::span<std::size_t const> samples, T scale,
      std::function<void(std::size_t)> const& ready = [](std::size_t) {}) {
    std::vector<std::vector<T>> activations;  // per layer: samples × width
    activations.emplace_back();
    for (std::size_t const sample : samples) {
      for (std::size_t i = 0; i < kWidths[0]; ++i) activations[0].push_back(TinyData<T>::input(sample, i));
    }
    for (std::size_t layer = 0; layer < kLayers; ++layer)
      activations.push_back(forward(layer, activations[layer], samples.size()));
    std::vector<T> delta(samples.size() * kWidths[kLayers]);
    for (std::size_t s = 0; s < samples.size(); ++s) {
      for (std::size_t i = 0; i < kWidths[kLayers]; ++i) {
        std::size_t const at = s * kWidths[kLayers] + i;
        delta[at] = scale * (activations[kLayers][at] - TinyData<T>::target(samples[s], i));
      }
    }
    for (std::size_t layer = kLayers; layer-- > 0;) {
      delta = backward_layer(layer, activations[layer], activations[layer + 1], delta, samples.size());
      ready(2 * layer + 1);
      ready(2 * layer);
    }
  }

  /// Plain gradient descent; leaves gradients zero.
  void step(T rate) {
    for (std::size_t p = 0; p < values_.size(); ++p) {
      for (std::size_t i = 0; i < values_[p].size(); ++i) {
        values_[p][i] -= rate * gradients_[p][i];
        gradients_[p][i] = 0;
      }
    }
  }

 private:
  std::vector<T> forward(std::size_t layer, std::vector<T> const& in, std::size_t samples) const {
    std::size_t const from = kWidths[layer];
    std::size_t const to = kWidths[layer + 1];
    std::vector<T> out(samples * to);
    for (std::size_t s = 0; s < samples; ++s) {
      for (std::size_t o = 0; o < to; ++o) {
        T sum = values_[2 * layer + 1][o];
        for (std::size_t i = 0; i < from; ++i) sum += values_[2 * layer][o * from + i] * in[s * from + i];
        out[s * to + o] = std::tanh(sum);
      }
    }
    return out;
  }

  std::vector<T> backward_layer(std::size_t layer, std::vector<T> const& in, std::vector<T> const& out,
                                std::vector<T> const& delta, std::size_t samples) {
    std::size_t const from = kWidths[layer];
    std::size_t const to = kWidths[layer + 1];
    std::vector<T> in_delta(samples * from);
    for (std::size_t s = 0; s < samples; ++s) {
      for (std::size_t o = 0; o < to; ++o) {
        T const y = out[s * to + o];
        T const d = delta[s * to + o] * (1 - y * y);
        gradients_[2 * layer + 1][o] += d;
        for (std::size_t i = 0; i < from; ++i) {
          gradients_[2 * layer][o * from + i] += d * in[s * from + i];
          in_delta[s * from + i] += d * values_[2 * layer][o * from + i];
        }
      }
    }
    return in_delta;
  }

  std::vector<std::vector<T>> values_;
  std::vector<std::vector<T>> own_gradients_;
  std::vector<T*> gradients_;
};

}  // namespace ddp::testing
