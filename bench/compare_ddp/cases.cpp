#include "compare_ddp/cases.hpp"

#include <ATen/autocast_mode.h>

#include <cmath>
#include <stdexcept>

#include "libtorch/models.hpp"

namespace compare {
namespace {

// `count` numbers of 32 bits that depend on `stream` only: exact integer arithmetic, on any device and in
// Python alike.
torch::Tensor hashed(std::int64_t count, std::int64_t stream, torch::Device device) {
  constexpr std::int64_t kMask = 0xffffffff;
  torch::Tensor x = torch::arange(count, torch::dtype(torch::kInt64).device(device));
  x.add_(stream * 1000003).mul_(0x9e3779b1).bitwise_and_(kMask);
  x.bitwise_xor_(x.bitwise_right_shift(16)).mul_(0x21f0aaad).bitwise_and_(kMask);
  x.bitwise_xor_(x.bitwise_right_shift(15)).mul_(0x735a2d97).bitwise_and_(kMask);
  return x.bitwise_xor_(x.bitwise_right_shift(15));
}

// From -1 to 1.
torch::Tensor uniform(torch::IntArrayRef shape, std::int64_t stream, torch::Device device) {
  auto const count = c10::multiply_integers(shape);
  return hashed(count, stream, device).to(torch::kFloat64).mul_(1 / 2147483648.0).sub_(1.0).view(shape);
}

// Matrices and kernels with this standard deviation, He's for 0; biases 0, other vectors 1.
void initialise(torch::nn::Module& net, double deviation) {
  torch::NoGradGuard const no_grad;
  std::int64_t stream = 0;
  for (auto& item : net.named_parameters()) {
    torch::Tensor& parameter = item.value();
    ++stream;
    if (parameter.dim() < 2) {
      parameter.fill_(item.key().find("bias") == std::string::npos ? 1.0 : 0.0);
      continue;
    }
    auto const fan_in = static_cast<double>(parameter.numel() / parameter.size(0));
    double const used = deviation > 0 ? deviation : std::sqrt(2.0 / fan_in);
    parameter.copy_(uniform(parameter.sizes(), stream, parameter.device()).mul_(used * std::sqrt(3.0)));
  }
}

std::int64_t data_stream(int rank) { return 100000 + 10 * rank; }

Case make_gpt2(std::string const& dtype, bool medium, bool tiny, int rank, torch::Device device) {
  models::Gpt2Sizes sizes;
  if (medium) sizes = {.layers = 24, .heads = 16, .width = 1024};
  if (tiny) sizes = {.layers = 2, .heads = 2, .width = 32, .context = 16, .vocabulary = 257};
  std::int64_t const sequences = tiny ? 2 : 8;
  models::Gpt2 net(sizes);
  net->to(device, dtype == "bf16" ? torch::kBFloat16 : torch::kFloat32);
  initialise(*net, 0.02);
  auto const tokens = hashed(sequences * (sizes.context + 1), data_stream(rank), device)
                          .remainder(sizes.vocabulary)
                          .view({sequences, sizes.context + 1});
  torch::Tensor const inputs = tokens.slice(1, 0, -1).contiguous();
  torch::Tensor const targets = tokens.slice(1, 1).contiguous();
  auto const heads = torch::empty(
      {sequences, sizes.heads, sizes.context, sizes.width / sizes.heads},
      torch::dtype(dtype == "fp32" ? torch::kFloat32 : torch::kBFloat16).device(device).requires_grad(true));
  auto const choice = at::_fused_sdp_choice(heads, heads, heads, {}, 0.0, /*is_causal=*/true);
  return {net.ptr(), [net, inputs, targets]() mutable { return net->loss(inputs, targets); }, dtype == "amp",
          3e-4, std::to_string(choice)};
}

// GPT-2 in which each rank leaves the last block out in every other step, as a model that drops layers.
Case make_dropping_gpt2(bool tiny, int rank, torch::Device device) {
  Case made = make_gpt2("amp", false, tiny, rank, device);
  auto const net = std::dynamic_pointer_cast<models::Gpt2Impl>(made.net);
  made.loss = [net, whole = made.loss, rank, calls = 0]() mutable {
    auto const blocks = net->h;
    if ((calls++ + rank) % 2 == 0) return whole();
    net->h = torch::nn::ModuleList();
    for (std::size_t b = 0; b + 1 < blocks->size(); ++b) net->h->push_back(blocks->ptr(b));
    torch::Tensor loss = whole();
    net->h = blocks;
    return loss;
  };
  return made;
}

Case make_resnet50(bool channels_last, bool tiny, int rank, torch::Device device) {
  std::int64_t const images = tiny ? 4 : 64;
  std::int64_t const side = tiny ? 32 : 224;
  auto const format = channels_last ? torch::MemoryFormat::ChannelsLast : torch::MemoryFormat::Contiguous;
  models::ResNet50 net;
  net->to(device);
  for (auto& parameter : net->parameters()) {
    torch::NoGradGuard const no_grad;
    if (parameter.dim() == 4) parameter.set_data(parameter.clone(format));
  }
  initialise(*net, 0);
  torch::Tensor const inputs =
      uniform({images, 3, side, side}, data_stream(rank), device).to(torch::kFloat32).contiguous(format);
  torch::Tensor const labels = hashed(images, data_stream(rank) + 1, device).remainder(1000);
  return {net.ptr(),
          [net, inputs, labels]() mutable { return torch::cross_entropy_loss(net(inputs), labels); },
          false,
          1e-5,
          {}};
}

struct ResidualLayersImpl : torch::nn::Module {
  ResidualLayersImpl(std::int64_t count, std::int64_t width) {
    for (std::int64_t i = 0; i < count; ++i)
      layers.push_back(register_module("layer" + std::to_string(i), torch::nn::Linear(width, width)));
  }
  torch::Tensor forward(torch::Tensor x) {
    for (auto& layer : layers) x = x + torch::relu(models::linear(layer, x));
    return x;
  }
  std::vector<torch::nn::Linear> layers;
};
TORCH_MODULE(ResidualLayers);

Case make_layers(bool tiny, int rank, torch::Device device) {
  std::int64_t const width = 128;
  ResidualLayers net(tiny ? 16 : 512, width);
  net->to(device);
  initialise(*net, 0.001);
  torch::Tensor const inputs = uniform({width, width}, data_stream(rank), device).to(torch::kFloat32);
  torch::Tensor const targets = uniform({width, width}, data_stream(rank) + 1, device).to(torch::kFloat32);
  return {net.ptr(),
          [net, inputs, targets]() mutable { return torch::mse_loss(net(inputs), targets); },
          false,
          tiny ? 1e-3 : 1e-5,
          {}};
}

// Products alone, with the matrices of GPT-2: few launches for what they take.
struct ChainImpl : torch::nn::Module {
  ChainImpl(std::int64_t count, std::int64_t width, std::int64_t vocabulary) {
    auto const matrix = [this](std::string const& name, std::int64_t out, std::int64_t in) {
      matrices.push_back(register_parameter(name, torch::empty({out, in})));
    };
    matrix("head", vocabulary, width);
    for (std::int64_t i = 0; i < count; ++i) {
      auto const prefix = "block" + std::to_string(i) + "_";
      matrix(prefix + "attn", 3 * width, width);
      matrix(prefix + "proj", width, width);
      matrix(prefix + "fc", 4 * width, width);
      matrix(prefix + "out", width, 4 * width);
    }
  }
  torch::Tensor forward(torch::Tensor x) {
    for (std::size_t m = 1; m < matrices.size(); m += 4) {
      x = torch::linear(x, matrices[m]).unflatten(1, {3, -1}).sum(1);
      for (std::size_t more = 1; more < 4; ++more) x = torch::linear(x, matrices[m + more]);
    }
    return torch::linear(x, matrices[0]).to(torch::kFloat32).square().mean();
  }
  std::vector<torch::Tensor> matrices;
};
TORCH_MODULE(Chain);

Case make_chain(bool tiny, int rank, torch::Device device) {
  Chain net(tiny ? 2 : 12, tiny ? 32 : 768, tiny ? 257 : 50257);
  net->to(device);
  for (std::size_t m = 0; m < net->matrices.size(); ++m) net->matrices[m] = net->parameters()[m];
  initialise(*net, tiny ? 0.15 : 0.03);
  torch::Tensor const inputs =
      uniform({tiny ? 32 : 8192, tiny ? 32 : 768}, data_stream(rank), device).to(torch::kFloat32);
  return {net.ptr(), [net, inputs]() mutable { return net(inputs); }, true, 1e-5, {}};
}

}  // namespace

std::vector<std::string> case_names() {
  return {"gpt2-amp",        "gpt2-bf16",    "gpt2-fp32",
          "gpt2-medium-amp", "gpt2-clipped", "gpt2-accumulated",
          "gpt2-dropping",   "resnet50",     "resnet50-channels-last",
          "layers512",       "chain"};
}

Case make_case(std::string const& name, bool tiny, int rank, torch::Device device) {
  if (name == "gpt2-fp32" || name == "gpt2-amp" || name == "gpt2-bf16") {
    return make_gpt2(name.substr(5), false, tiny, rank, device);
  }
  if (name == "gpt2-medium-amp") return make_gpt2("amp", true, tiny, rank, device);
  if (name == "gpt2-clipped" || name == "gpt2-accumulated") {
    Case made = make_gpt2("amp", false, tiny, rank, device);
    if (name == "gpt2-clipped") made.clip_norm = 1;
    if (name == "gpt2-accumulated") made.micro_steps = 4;
    return made;
  }
  if (name == "gpt2-dropping") return make_dropping_gpt2(tiny, rank, device);
  if (name == "resnet50" || name == "resnet50-channels-last") {
    return make_resnet50(name != "resnet50", tiny, rank, device);
  }
  if (name == "chain") return make_chain(tiny, rank, device);
  if (name == "layers512") return make_layers(tiny, rank, device);
  throw std::invalid_argument("there is no case \"" + name + '"');
}

std::uint64_t digest(torch::nn::Module const& net) {
  std::uint64_t all = 0;
  std::uint64_t place = 0;
  for (auto const& parameter : net.parameters()) {
    auto const bits = parameter.detach().view(parameter.element_size() == 2 ? torch::kInt16 : torch::kInt32);
    all += ++place * static_cast<std::uint64_t>(bits.to(torch::kInt64).sum().item<std::int64_t>());
  }
  return all;
}

}  // namespace compare
