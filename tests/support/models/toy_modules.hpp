// Modules in plain loops: they compute on the host and copy, so that they run on any device. Slow and
// obvious.
#pragma once

#include <cmath>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "ddp/core/text.hpp"
#include "ddp/data_parallel/module.hpp"
#include "support/devices/test_devices.hpp"

namespace ddp::testing {

/// What toy modules share: memory on the module's device, read and written by the host.
template <class T>
class ToyModule : public Module {
 public:
  using Module::Module;

 protected:
  [[nodiscard]] Tensor allocate(Shape const& shape) { return zeros(shape, dtype_of<T>, device()); }
  [[nodiscard]] std::vector<T> pull(TensorView const& from) { return elements_of<T>(from, stream()); }
  void push(std::vector<T> elements, TensorView to) {
    to.shape = Shape{to.count()};
    copy_elements(to, view_of(std::span(elements)), stream());
    stream().synchronize();
  }
  /// `kept` with these elements; its memory is the same in every step.
  [[nodiscard]] Value keep(Tensor& kept, Shape const& shape, std::vector<T> const& elements) {
    if (kept.view().shape != shape || kept.view().data == nullptr) kept = allocate(shape);
    push(elements, kept);
    return kept;
  }
};

/// y[n,out] = tanh(x[n,in] · weight[out,in]ᵀ + bias[out]).
template <class T>
class TanhLayer final : public ToyModule<T> {
 public:
  TanhLayer(std::shared_ptr<Stream> stream, std::size_t in, std::size_t out, double seed = 0,
            bool bindable = true)
      : ToyModule<T>(std::move(stream)), in_(in), out_(out), bindable_(bindable) {
    for (Shape const& shape : {Shape{out, in}, Shape{out}}) {
      values_.push_back(this->allocate(shape));
      own_.push_back(this->allocate(shape));
      gradients_.push_back(own_.back().view());
      std::vector<T> initial(shape.count());
      for (std::size_t i = 0; i < initial.size(); ++i)
        initial[i] = static_cast<T>(0.5 * std::sin(seed + static_cast<double>(values_.size() * 100 + i)));
      this->push(initial, values_.back());
    }
  }

  [[nodiscard]] std::vector<Parameter> parameters() override {
    std::vector<Parameter> all;
    for (std::size_t p = 0; p < 2; ++p) {
      auto bind = [this, p](TensorView const& view) { gradients_[p] = view; };
      all.push_back({p == 0 ? "weight" : "bias", values_[p],
                     bindable_ ? std::function<void(TensorView const&)>(bind) : nullptr, gradients_[p]});
    }
    return all;
  }

 protected:
  Value do_forward(Value const& input) override {
    rows_ = input.view().shape[0];
    x_ = this->pull(input.view());
    auto const weight = this->pull(values_[0]);
    auto const bias = this->pull(values_[1]);
    y_.assign(rows_ * out_, T(0));
    for (std::size_t r = 0; r < rows_; ++r) {
      for (std::size_t o = 0; o < out_; ++o) {
        T sum = bias[o];
        for (std::size_t i = 0; i < in_; ++i) sum += weight[o * in_ + i] * x_[r * in_ + i];
        y_[r * out_ + o] = std::tanh(sum);
      }
    }
    return this->keep(output_, {rows_, out_}, y_);
  }

  Value do_backward(Value const& output_gradient, GradientReady const& ready) override {
    auto const dy = this->pull(output_gradient.view());
    auto const weight = this->pull(values_[0]);
    auto weight_gradient = this->pull(gradients_[0]);
    auto bias_gradient = this->pull(gradients_[1]);
    std::vector<T> dx(rows_ * in_);
    for (std::size_t r = 0; r < rows_; ++r) {
      for (std::size_t o = 0; o < out_; ++o) {
        T const y = y_[r * out_ + o];
        T const d = dy[r * out_ + o] * (1 - y * y);
        bias_gradient[o] += d;
        for (std::size_t i = 0; i < in_; ++i) {
          weight_gradient[o * in_ + i] += d * x_[r * in_ + i];
          dx[r * in_ + i] += d * weight[o * in_ + i];
        }
      }
    }
    this->push(bias_gradient, gradients_[1]);
    ready(1);
    this->push(weight_gradient, gradients_[0]);
    ready(0);
    return this->keep(input_gradient_, {rows_, in_}, dx);
  }

  [[nodiscard]] std::shared_ptr<Module> do_clone(std::shared_ptr<Stream> stream) override {
    return std::make_shared<TanhLayer>(std::move(stream), in_, out_, 77.0, bindable_);
  }

 private:
  std::size_t in_;
  std::size_t out_;
  bool bindable_;
  std::vector<Tensor> values_;
  std::vector<Tensor> own_;
  std::vector<TensorView> gradients_;
  std::size_t rows_ = 0;
  std::vector<T> x_;
  std::vector<T> y_;
  Tensor output_;
  Tensor input_gradient_;
};

/// One module behind another.
class Chain final : public Module {
 public:
  Chain(std::shared_ptr<Stream> stream, std::vector<std::shared_ptr<Module>> parts)
      : Module(std::move(stream)), parts_(std::move(parts)) {}

  [[nodiscard]] std::vector<Parameter> parameters() override {
    std::vector<Parameter> all;
    for (Child const& child : children()) {
      for (Parameter& each : child.module->parameters()) {
        each.name = child.name + "." + each.name;
        all.push_back(std::move(each));
      }
    }
    return all;
  }
  [[nodiscard]] std::vector<NamedTensor> buffers() override {
    std::vector<NamedTensor> all;
    for (Child const& child : children()) {
      for (NamedTensor& each : child.module->buffers())
        all.push_back({child.name + "." + each.name, each.value});
    }
    return all;
  }
  [[nodiscard]] std::vector<Child> children() override {
    std::vector<Child> all;
    for (std::size_t i = 0; i < parts_.size(); ++i) all.push_back({text("part", i), parts_[i].get()});
    return all;
  }

 protected:
  Value do_forward(Value const& input) override {
    Value value = input;
    for (auto const& part : parts_) value = part->forward(value);
    return value;
  }
  Value do_backward(Value const& output_gradient, GradientReady const& ready) override {
    Value gradient = output_gradient;
    std::size_t first = parameters().size();
    for (auto part = parts_.rbegin(); part != parts_.rend(); ++part) {
      first -= (*part)->parameters().size();
      gradient = (*part)->backward(gradient, [&](std::size_t p) { ready(first + p); });
    }
    return gradient;
  }
  [[nodiscard]] std::shared_ptr<Module> do_clone(std::shared_ptr<Stream> stream) override {
    std::vector<std::shared_ptr<Module>> parts;
    for (auto const& part : parts_) parts.push_back(part->clone_to(stream));
    return std::make_shared<Chain>(std::move(stream), std::move(parts));
  }

 private:
  std::vector<std::shared_ptr<Module>> parts_;
};

/// Whatever a function makes of the input; a buffer of one f32 that the function may write.
class FunctionModule final : public ToyModule<float> {
 public:
  using Function = std::function<Value(FunctionModule& self, Value const& input)>;
  FunctionModule(std::shared_ptr<Stream> stream, Function function)
      : ToyModule(std::move(stream)), function_(std::move(function)), buffer_(allocate(Shape{1})) {}

  [[nodiscard]] std::vector<Parameter> parameters() override { return {}; }
  [[nodiscard]] std::vector<NamedTensor> buffers() override { return {{"seen", buffer_}}; }
  [[nodiscard]] float seen() { return pull(buffer_)[0]; }
  void see(float value) { push({value}, buffer_); }

 protected:
  Value do_forward(Value const& input) override { return function_(*this, input); }
  Value do_backward(Value const& output_gradient, GradientReady const& /*ready*/) override {
    return output_gradient;
  }
  [[nodiscard]] std::shared_ptr<Module> do_clone(std::shared_ptr<Stream> stream) override {
    return std::make_shared<FunctionModule>(std::move(stream), function_);
  }

 private:
  Function function_;
  Tensor buffer_;
};

/// Layers 7 → 20 → 3, the same for the same seed.
template <class T>
[[nodiscard]] std::shared_ptr<Module> toy_net(Device device, double seed = 0, bool bindable = true) {
  std::shared_ptr<Stream> const stream = make_compute_stream(device);
  return std::make_shared<Chain>(stream,
                                 std::vector<std::shared_ptr<Module>>{
                                     std::make_shared<TanhLayer<T>>(stream, 7, 20, seed, bindable),
                                     std::make_shared<TanhLayer<T>>(stream, 20, 3, seed + 1, bindable)});
}

[[nodiscard]] inline std::shared_ptr<FunctionModule> function_module(Device device,
                                                                     FunctionModule::Function function) {
  return std::make_shared<FunctionModule>(make_compute_stream(device), std::move(function));
}

}  // namespace ddp::testing
