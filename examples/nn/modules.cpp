#include "nn/modules.hpp"

#include <utility>

#include "ddp/core/text.hpp"
#include "nn/relu.hpp"

namespace nn {

ddp::TensorView Rows::take(Context const& context, std::size_t rows, std::size_t width, ddp::DType dtype) {
  ddp::TensorView view = memory_.view();
  if (view.data == nullptr || view.shape[0] < rows || view.shape[1] != width) {
    memory_ = context.zeros({rows, width}, dtype);
    view = memory_.view();
  }
  view.shape = {rows, width};
  return view;
}

LinearModule::LinearModule(std::shared_ptr<ddp::Stream> const& stream, Context const& context,
                           std::string const& name, std::size_t in, std::size_t out, ddp::DType dtype,
                           bool input_gradient)
    : LayerModule(stream, context),
      name_(name),
      has_input_gradient_(input_gradient),
      layer_(name, in, out, dtype, context) {}

std::vector<ddp::Parameter> LinearModule::parameters() {
  std::vector<ddp::Parameter> all;
  for (Weight* const weight : {&layer_.weight, &layer_.bias}) {
    ddp::Parameter& each = all.emplace_back(weight->parameter());
    each.gradient = weight->gradient();
  }
  return all;
}

ddp::Value LinearModule::do_forward(ddp::Value const& input) {
  ddp::TensorView const& x = input.view();
  ddp::require(x.shape.dimensions() == 2 && x.shape[1] == layer_.in(), [&] {
    return ddp::text(name_, ": expected inputs [n,", layer_.in(), "], found ", ddp::describe(x));
  });
  input_ = input;
  ddp::TensorView const y = output_.take(context(), x.shape[0], layer_.out(), x.dtype);
  layer_.forward(x, y);
  return y;
}

ddp::Value LinearModule::do_backward(ddp::Value const& output_gradient, ddp::GradientReady const& ready) {
  ddp::TensorView const& x = input_.view();
  ddp::TensorView const& dy = output_gradient.view();
  layer_.backward_weights(x, dy);
  ready(1);
  ready(0);
  if (!has_input_gradient_) return {};
  ddp::TensorView const dx = input_gradient_.take(context(), x.shape[0], layer_.in(), x.dtype);
  layer_.backward_input(dy, dx);
  return dx;
}

std::shared_ptr<ddp::Module> LinearModule::clone_with(std::shared_ptr<ddp::Stream> const& stream,
                                                      Context const& context) {
  return std::make_shared<LinearModule>(stream, context, name_, layer_.in(), layer_.out(),
                                        layer_.weight.value().dtype, has_input_gradient_);
}

ddp::Value ReluModule::do_forward(ddp::Value const& input) {
  relu_forward(context(), input.view());
  output_ = input;
  return input;
}

ddp::Value ReluModule::do_backward(ddp::Value const& output_gradient, ddp::GradientReady const& /*ready*/) {
  relu_backward(context(), output_.view(), output_gradient.view());
  return output_gradient;
}

std::shared_ptr<ddp::Module> ReluModule::clone_with(std::shared_ptr<ddp::Stream> const& stream,
                                                    Context const& context) {
  return std::make_shared<ReluModule>(stream, context);
}

Sequential::Sequential(std::shared_ptr<ddp::Stream> const& stream,
                       std::vector<std::shared_ptr<ddp::Module>> modules)
    : Module(stream), modules_(std::move(modules)) {}

std::vector<ddp::Parameter> Sequential::parameters() {
  std::vector<ddp::Parameter> all;
  for (auto const& module : modules_) {
    for (ddp::Parameter& each : module->parameters()) all.push_back(std::move(each));
  }
  return all;
}

std::vector<ddp::NamedTensor> Sequential::buffers() {
  std::vector<ddp::NamedTensor> all;
  for (auto const& module : modules_) {
    for (ddp::NamedTensor& each : module->buffers()) all.push_back(std::move(each));
  }
  return all;
}

std::vector<ddp::Module::Child> Sequential::children() {
  std::vector<Child> all;
  for (std::size_t i = 0; i < modules_.size(); ++i) all.push_back({std::to_string(i), modules_[i].get()});
  return all;
}

std::vector<Weight*> Sequential::weights() {
  std::vector<Weight*> all;
  for (auto const& module : modules_) {
    auto* const linear = dynamic_cast<LinearModule*>(module.get());
    if (linear == nullptr) continue;
    all.push_back(&linear->layer().weight);
    all.push_back(&linear->layer().bias);
  }
  return all;
}

ddp::Value Sequential::do_forward(ddp::Value const& input) {
  ddp::Value value = input;
  for (auto const& module : modules_) value = module->forward(value);
  return value;
}

ddp::Value Sequential::do_backward(ddp::Value const& output_gradient, ddp::GradientReady const& ready) {
  ddp::Value gradient = output_gradient;
  std::size_t first = parameters().size();
  for (std::size_t m = modules_.size(); m-- > 0;) {
    first -= modules_[m]->parameters().size();
    gradient = modules_[m]->backward(gradient, [&](std::size_t parameter) { ready(first + parameter); });
  }
  return gradient;
}

std::shared_ptr<ddp::Module> Sequential::do_clone(std::shared_ptr<ddp::Stream> stream) {
  Context const context(*stream);
  std::vector<std::shared_ptr<ddp::Module>> clones;
  for (auto const& module : modules_) {
    auto* const layer = dynamic_cast<LayerModule*>(module.get());
    clones.push_back(layer != nullptr ? layer->clone_with(stream, context) : module->clone_to(stream));
  }
  return std::make_shared<Sequential>(stream, std::move(clones));
}

std::shared_ptr<Sequential> make_mlp_module(std::vector<std::size_t> const& widths,
                                            std::shared_ptr<ddp::Stream> const& stream,
                                            MlpModuleOptions const& options) {
  ddp::require(widths.size() >= 2, "make_mlp_module: at least the widths of input and output are needed");
  Context const context(*stream);
  std::vector<std::shared_ptr<ddp::Module>> modules;
  for (std::size_t i = 0; i + 1 < widths.size(); ++i) {
    auto const linear =
        std::make_shared<LinearModule>(stream, context, ddp::text("fc", i + 1), widths[i], widths[i + 1],
                                       options.dtype, i > 0 || options.input_gradient);
    linear->layer().initialize(Random(options.seed, i));
    modules.push_back(linear);
    if (options.final_relu || i + 2 < widths.size())
      modules.push_back(std::make_shared<ReluModule>(stream, context));
  }
  return std::make_shared<Sequential>(stream, std::move(modules));
}

}  // namespace nn
