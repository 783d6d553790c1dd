// The layers as modules that DataParallel can replicate.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ddp/data_parallel/module.hpp"
#include "nn/context.hpp"
#include "nn/linear.hpp"

namespace nn {

/// A tensor with room for the most rows so far, written anew in every step.
class Rows {
 public:
  /// The first `rows` rows of `width` elements. What they hold is what was there.
  [[nodiscard]] ddp::TensorView take(Context const& context, std::size_t rows, std::size_t width,
                                     ddp::DType dtype);

 private:
  ddp::Tensor memory_;
};

/// A module that shares its context with others of its network: with it they share what matrix products need.
class LayerModule : public ddp::Module {
 public:
  /// `context`: of the stream.
  LayerModule(std::shared_ptr<ddp::Stream> const& stream, Context context)
      : Module(stream), context_(std::move(context)) {}
  [[nodiscard]] Context const& context() const noexcept { return context_; }
  /// One of the same structure elsewhere.
  [[nodiscard]] virtual std::shared_ptr<ddp::Module> clone_with(std::shared_ptr<ddp::Stream> const& stream,
                                                                Context const& context) = 0;

 protected:
  [[nodiscard]] std::shared_ptr<ddp::Module> do_clone(std::shared_ptr<ddp::Stream> stream) override {
    return clone_with(stream, Context(*stream));
  }

 private:
  Context context_;
};

/// nn::Linear: inputs [n,in], outputs [n,out].
class LinearModule final : public LayerModule {
 public:
  /// All values are zero until layer().initialize(). `input_gradient`: whether backward() computes and
  /// returns it, which a network's first layer need not.
  LinearModule(std::shared_ptr<ddp::Stream> const& stream, Context const& context, std::string const& name,
               std::size_t in, std::size_t out, ddp::DType dtype = ddp::DType::f32,
               bool input_gradient = true);

  [[nodiscard]] std::vector<ddp::Parameter> parameters() override;
  [[nodiscard]] Linear& layer() noexcept { return layer_; }
  [[nodiscard]] std::shared_ptr<ddp::Module> clone_with(std::shared_ptr<ddp::Stream> const& stream,
                                                        Context const& context) override;

 protected:
  ddp::Value do_forward(ddp::Value const& input) override;
  ddp::Value do_backward(ddp::Value const& output_gradient, ddp::GradientReady const& ready) override;

 private:
  std::string name_;
  bool has_input_gradient_;
  Linear layer_;
  ddp::Value input_;
  Rows output_;
  Rows input_gradient_;
};

/// The rectifier. It changes its input and its output's gradient in place, as nothing else reads them.
class ReluModule final : public LayerModule {
 public:
  using LayerModule::LayerModule;

  [[nodiscard]] std::vector<ddp::Parameter> parameters() override { return {}; }
  [[nodiscard]] std::shared_ptr<ddp::Module> clone_with(std::shared_ptr<ddp::Stream> const& stream,
                                                        Context const& context) override;

 protected:
  ddp::Value do_forward(ddp::Value const& input) override;
  ddp::Value do_backward(ddp::Value const& output_gradient, ddp::GradientReady const& ready) override;

 private:
  ddp::Value output_;
};

/// Modules one behind another.
class Sequential final : public ddp::Module {
 public:
  Sequential(std::shared_ptr<ddp::Stream> const& stream, std::vector<std::shared_ptr<ddp::Module>> modules);

  [[nodiscard]] std::vector<ddp::Parameter> parameters() override;
  [[nodiscard]] std::vector<ddp::NamedTensor> buffers() override;
  [[nodiscard]] std::vector<Child> children() override;
  /// Those of all layers with weights, for an optimizer.
  [[nodiscard]] std::vector<Weight*> weights();

 protected:
  ddp::Value do_forward(ddp::Value const& input) override;
  ddp::Value do_backward(ddp::Value const& output_gradient, ddp::GradientReady const& ready) override;
  [[nodiscard]] std::shared_ptr<ddp::Module> do_clone(std::shared_ptr<ddp::Stream> stream) override;

 private:
  std::vector<std::shared_ptr<ddp::Module>> modules_;
};

struct MlpModuleOptions {
  ddp::DType dtype = ddp::DType::f32;  ///< or f64
  std::uint64_t seed = 1;              ///< of the initial values, as MlpOptions::seed
  bool final_relu = false;             ///< whether one stands behind the last layer too
  bool input_gradient = false;         ///< whether backward() returns that of the network's input
};

/// The layers of nn::Mlp, with the same names and initial values, without the loss: logits for inputs.
[[nodiscard]] std::shared_ptr<Sequential> make_mlp_module(std::vector<std::size_t> const& widths,
                                                          std::shared_ptr<ddp::Stream> const& stream,
                                                          MlpModuleOptions const& options = {});

}  // namespace nn
