// The oracle's model with its parameters and gradients on a device: it computes on the host and copies.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

#include "ddp/device/memory.hpp"
#include "ddp/device/tensor_ops.hpp"
#include "support/models/tiny_mlp.hpp"

namespace ddp::testing {

/// TinyMlp<T> whose device has elements of type `Stored`: T itself, or a narrower one, to which values and
/// gradients are rounded. The same interface as TinyMlp.
template <class T, class Stored = T>
class DeviceMlp {
 public:
  DeviceMlp(double seed, World const& world) : DeviceMlp(seed, world, world.device()) {}
  /// The first layer lies on a device of its own, as an embedding may (D15).
  DeviceMlp(double seed, World const& world, Device first_layer) : host_(seed), world_(world) {
    for (std::size_t p = 0; p < host_.parameter_count(); ++p) {
      std::size_t const count = host_.value(p).size();
      Device const device = p < 2 ? first_layer : world.device();
      values_.push_back(zeros(Shape{count}, dtype_of<Stored>, device));
      own_gradients_.push_back(zeros(Shape{count}, dtype_of<Stored>, device));
      gradients_.push_back(own_gradients_.back().view());
      push(std::span<T const>(host_.value(p)), values_.back());
    }
  }
  DeviceMlp(DeviceMlp const&) = delete;
  DeviceMlp& operator=(DeviceMlp const&) = delete;

  [[nodiscard]] std::size_t parameter_count() const { return host_.parameter_count(); }
  [[nodiscard]] std::vector<Parameter> parameters() {
    std::vector<Parameter> list = host_.parameters();
    for (std::size_t p = 0; p < list.size(); ++p) {
      Shape const shape = list[p].value.shape;
      list[p].value = shaped(values_[p], shape);
      list[p].gradient = shaped(own_gradients_[p], shape);
      list[p].bind_gradient = [this, p](TensorView const& view) { gradients_[p] = view; };
      list[p].bind_value = [this, p](Tensor const& place) { values_[p] = place; };
    }
    return list;
  }
  /// After DistributedDataParallel was made, rank 0's values; after a sharded step, those of all ranks.
  void take_values() {
    for (std::size_t p = 0; p < values_.size(); ++p) pull(values_[p], std::span(host_.value(p)));
  }

  void backward(
      std::span<std::size_t const> samples, T scale,
      std::function<void(std::size_t)> const& ready = [](std::size_t) {}) {
    host_.backward(samples, scale, [&](std::size_t p) {
      push(std::span<T const>(host_.gradient(p)), gradients_[p]);
      ready(p);
    });
  }
  void step(T rate) {
    for (std::size_t p = 0; p < values_.size(); ++p) pull(gradients_[p], host_.gradient(p));
    host_.step(rate);
  }
  /// Of a sharded optimizer: elements that this rank updates, where they are.
  void step(Slice const& slice, T rate, Stream& stream) {
    std::vector<T> values(slice.values.count());
    std::vector<T> slopes(values.size());
    stream.synchronize();
    pull(slice.values, values);
    pull(slice.gradient, slopes);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] -= rate * slopes[i];
    push(values, slice.values);
  }
  /// Those that the next backward pass adds to.
  void clear_gradients() { host_.step(0); }
  [[nodiscard]] std::vector<T> flat() const { return host_.flat(); }

 private:
  static TensorView shaped(TensorView view, Shape const& shape) {
    view.shape = shape;
    return view;
  }
  static TensorView flattened(TensorView view) {
    view.shape = Shape{view.count()};
    return view;
  }
  // Gradients of a CPU are written by the calling thread.
  [[nodiscard]] Stream& stream_of(TensorView const& view) {
    return view.device.kind == DeviceKind::cpu ? *host_stream_ : world_.stream();
  }
  void push(std::span<T const> elements, TensorView const& to) {
    std::vector<Stored> stored(elements.size());
    for (std::size_t i = 0; i < stored.size(); ++i) stored[i] = Stored(elements[i]);
    copy_elements(flattened(to), view_of(std::span(stored)), stream_of(to));
    stream_of(to).synchronize();
  }
  void pull(TensorView const& from, std::span<T> elements) {
    std::vector<Stored> stored(elements.size());
    copy_elements(view_of(std::span(stored)), flattened(from), stream_of(from));
    stream_of(from).synchronize();
    for (std::size_t i = 0; i < stored.size(); ++i) elements[i] = static_cast<T>(stored[i]);
  }

  TinyMlp<T> host_;
  World world_;
  std::unique_ptr<Stream> host_stream_ = HostStream::inline_stream();
  std::vector<Tensor> values_;
  std::vector<Tensor> own_gradients_;
  std::vector<TensorView> gradients_;
};

}  // namespace ddp::testing
