// ToyModel with its tensors on the world's device.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "ddp/device/memory.hpp"
#include "ddp/device/tensor_ops.hpp"
#include "support/models/toy_model.hpp"

namespace ddp::testing {

/// Parameters of type T. Everything that the host reads or writes goes over the world's compute stream.
template <class T = float>
class DeviceToy {
 public:
  DeviceToy(World const& world, std::vector<std::size_t> const& counts, std::string prefix = "p")
      : world_(world), prefix_(std::move(prefix)) {
    for (std::size_t const count : counts) {
      values_.push_back(zeros(Shape{count}, dtype_of<T>, world.device()));
      own_.push_back(zeros(Shape{count}, dtype_of<T>, world.device()));
      gradients_.push_back(own_.back().view());
      std::vector<T> initial(count);
      for (std::size_t i = 0; i < count; ++i) {
        initial[i] = T(ToyModel::initial(world.rank().value() % 2, i));
      }
      write(values_.back(), initial);
    }
  }
  DeviceToy(DeviceToy const&) = delete;
  DeviceToy& operator=(DeviceToy const&) = delete;

  [[nodiscard]] std::vector<Parameter> parameters() {
    std::vector<Parameter> list;
    for (std::size_t p = 0; p < values_.size(); ++p) {
      list.push_back({prefix_ + std::to_string(p), values_[p],
                      [this, p](TensorView const& view) { gradients_[p] = view; }, own_[p]});
    }
    return list;
  }
  /// Without a word of host synchronisation afterwards: the copy is on the compute stream, as a kernel would
  /// be.
  void write_gradient(std::size_t p, std::vector<T> const& elements) { write(gradients_[p], elements); }
  /// ToyModel's gradient.
  void fill_gradient(std::size_t p, int rank) {
    std::vector<T> elements(gradients_[p].count());
    for (std::size_t i = 0; i < elements.size(); ++i) elements[i] = T(ToyModel::gradient(p, i, rank));
    write_gradient(p, elements);
  }
  void fill_gradients(int rank) {
    for (std::size_t p = 0; p < values_.size(); ++p) fill_gradient(p, rank);
  }
  [[nodiscard]] std::vector<T> gradient(std::size_t p) const { return read(gradients_[p]); }
  [[nodiscard]] std::vector<T> value(std::size_t p) const { return read(values_[p]); }
  [[nodiscard]] TensorView const& gradient_view(std::size_t p) const { return gradients_[p]; }

 private:
  void write(TensorView const& to, std::vector<T> elements) {
    copy_elements(to, view_of(std::span(elements)), world_.stream());
  }
  [[nodiscard]] std::vector<T> read(TensorView const& from) const {
    std::vector<T> elements(from.count());
    copy_elements(view_of(std::span(elements)), from, world_.stream());
    world_.stream().synchronize();
    return elements;
  }

  World world_;
  std::string prefix_;
  std::vector<Tensor> values_;
  std::vector<Tensor> own_;
  std::vector<TensorView> gradients_;
};

}  // namespace ddp::testing
