#include "nn/mlp.hpp"

#include "ddp/core/text.hpp"
#include "nn/floating.hpp"
#include "nn/relu.hpp"

namespace nn {

Mlp::Mlp(std::vector<std::size_t> const& widths, Context const& context, Options options)
    : dtype_(options.dtype), context_(context), loss_(context) {
  ddp::require(widths.size() >= 2, "nn::Mlp: at least the widths of input and output are needed");
  for (std::size_t const width : widths) ddp::require(width > 0, "nn::Mlp: a layer's width must not be 0");
  for (std::size_t i = 0; i + 1 < widths.size(); ++i) {
    Linear& layer = layers_.emplace_back(ddp::text("fc", i + 1), widths[i], widths[i + 1], dtype_, context_);
    layer.initialize(Random(options.seed, i));
  }
}

std::vector<Weight*> Mlp::weights() {
  std::vector<Weight*> all;
  for (Linear& layer : layers_) {
    all.push_back(&layer.weight);
    all.push_back(&layer.bias);
  }
  return all;
}

std::vector<ddp::Parameter> Mlp::parameters() {
  std::vector<ddp::Parameter> all;
  for (Weight* const weight : weights()) all.push_back(weight->parameter());
  return all;
}

void Mlp::reserve(std::size_t samples) {
  if (samples <= capacity_ && !activations_.empty()) return;
  capacity_ = samples;
  activations_.clear();
  slopes_.clear();
  for (Linear const& layer : layers_) {
    activations_.push_back(context_.zeros({capacity_, layer.out()}, dtype_));
    slopes_.push_back(context_.zeros({capacity_, layer.out()}, dtype_));
  }
}

ddp::TensorView Mlp::rows(ddp::Tensor const& whole) const {
  ddp::TensorView view = whole.view();
  view.shape = {samples_, whole.view().shape[1]};
  return view;
}

void Mlp::forward(Samples const& samples) {
  ddp::require(samples.inputs.shape.dimensions() == 2 && samples.inputs.shape[1] == layers_.front().in(),
               "nn::Mlp::forward: inputs must be [samples, width of the first layer]");
  input_ = samples;
  samples_ = samples.inputs.shape[0];
  reserve(samples_);
  ddp::TensorView x = input_.inputs;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    ddp::TensorView const y = rows(activations_[i]);
    layers_[i].forward(x, y);
    if (i + 1 < layers_.size()) relu_forward(context_, y);
    x = y;
  }
  loss_.forward(logits(), input_.labels, rows(slopes_.back()));
}

void Mlp::backward(GradientReady const& ready, Announce announce) {
  ddp::require(!slopes_.empty(), "nn::Mlp::backward: forward() comes first");
  for (std::size_t i = layers_.size(); i-- > 0;) {
    ddp::TensorView const dy = rows(slopes_[i]);
    ddp::TensorView const x = i == 0 ? input_.inputs : rows(activations_[i - 1]);
    auto const say = [&] {
      if (!ready) return;
      ready(2 * i + 1);
      ready(2 * i);
    };
    // Weights first: their gradients can travel while the layer's input gradient is computed.
    layers_[i].backward_weights(x, dy);
    if (announce == Announce::at_once) say();
    if (i > 0) {
      layers_[i].backward_input(dy, rows(slopes_[i - 1]));
      relu_backward(context_, x, rows(slopes_[i - 1]));
    }
    if (announce == Announce::when_weights_read) say();
  }
}

}  // namespace nn
