// GPT-2 and ResNet-50, with the parameter names of PyTorch's usual implementations.
#pragma once

#include <torch/torch.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

namespace models {

/// x Wᵀ + b in one kernel. torch::nn::Linear adds the bias of inputs with three dimensions in a second
/// kernel, where PyTorch's Python modules do not.
inline torch::Tensor linear(torch::nn::Linear const& layer, torch::Tensor const& x) {
  return torch::linear(x, layer->weight, layer->bias);
}

/// 124 million parameters as they stand.
struct Gpt2Sizes {
  std::int64_t layers = 12;
  std::int64_t heads = 12;
  std::int64_t width = 768;
  std::int64_t context = 1024;  ///< the most tokens of a sequence
  std::int64_t vocabulary = 50257;
};

struct Gpt2BlockImpl : torch::nn::Module {
  explicit Gpt2BlockImpl(Gpt2Sizes const& sizes)
      : heads(sizes.heads),
        ln_1(register_module("ln_1", torch::nn::LayerNorm(normalized(sizes.width)))),
        c_attn(register_module("c_attn", torch::nn::Linear(sizes.width, 3 * sizes.width))),
        c_proj(register_module("c_proj", torch::nn::Linear(sizes.width, sizes.width))),
        ln_2(register_module("ln_2", torch::nn::LayerNorm(normalized(sizes.width)))),
        mlp_fc(register_module("mlp_fc", torch::nn::Linear(sizes.width, 4 * sizes.width))),
        mlp_proj(register_module("mlp_proj", torch::nn::Linear(4 * sizes.width, sizes.width))) {}

  torch::Tensor forward(torch::Tensor x) {
    auto const sequences = x.size(0);
    auto const tokens = x.size(1);
    auto const width = x.size(2);
    auto const parts = linear(c_attn, ln_1(x)).split(width, 2);
    auto const by_head = [&](torch::Tensor const& part) {
      return part.view({sequences, tokens, heads, width / heads}).transpose(1, 2);
    };
    auto const attended = at::scaled_dot_product_attention(by_head(parts[0]), by_head(parts[1]),
                                                           by_head(parts[2]), {}, 0.0, /*is_causal=*/true);
    x = x + linear(c_proj, attended.transpose(1, 2).contiguous().view({sequences, tokens, width}));
    return x + linear(mlp_proj, torch::gelu(linear(mlp_fc, ln_2(x)), "tanh"));
  }

  static torch::nn::LayerNormOptions normalized(std::int64_t width) {
    return torch::nn::LayerNormOptions({width});
  }

  std::int64_t heads;
  torch::nn::LayerNorm ln_1;
  torch::nn::Linear c_attn;
  torch::nn::Linear c_proj;
  torch::nn::LayerNorm ln_2;
  torch::nn::Linear mlp_fc;
  torch::nn::Linear mlp_proj;
};
TORCH_MODULE(Gpt2Block);

struct Gpt2Impl : torch::nn::Module {
  explicit Gpt2Impl(Gpt2Sizes const& sizes = {})
      : wte(register_module("wte", torch::nn::Embedding(sizes.vocabulary, sizes.width))),
        wpe(register_module("wpe", torch::nn::Embedding(sizes.context, sizes.width))),
        h(register_module("h", torch::nn::ModuleList())),
        ln_f(register_module("ln_f", torch::nn::LayerNorm(Gpt2BlockImpl::normalized(sizes.width)))) {
    for (std::int64_t i = 0; i < sizes.layers; ++i) h->push_back(Gpt2Block(sizes));
    torch::NoGradGuard const no_grad;
    for (auto& item : named_parameters()) {
      bool const residual = item.key().find("_proj.weight") != std::string::npos;
      double const scale = residual ? 1 / std::sqrt(2.0 * static_cast<double>(sizes.layers)) : 1.0;
      if (item.value().dim() > 1) item.value().normal_(0.0, 0.02 * scale);
      if (item.key().find("bias") != std::string::npos) item.value().zero_();
    }
  }

  /// i64[sequences, tokens] to logits[sequences, tokens, vocabulary], by the embedding's own weight.
  torch::Tensor forward(torch::Tensor const& tokens) {
    torch::Tensor x = wte(tokens) + wpe(torch::arange(tokens.size(1), tokens.options()));
    for (auto const& block : *h) x = block->as<Gpt2Block>()->forward(x);
    return torch::linear(ln_f(x), wte->weight);
  }

  /// The mean cross-entropy. Nobody holds the logits while the backward pass runs.
  torch::Tensor loss(torch::Tensor const& tokens, torch::Tensor const& targets) {
    return torch::cross_entropy_loss(forward(tokens).view({-1, wte->weight.size(0)}), targets.reshape({-1}));
  }

  torch::nn::Embedding wte;
  torch::nn::Embedding wpe;
  torch::nn::ModuleList h;
  torch::nn::LayerNorm ln_f;
};
TORCH_MODULE(Gpt2);

inline torch::nn::Conv2d convolution(std::int64_t in, std::int64_t out, std::int64_t size,
                                     std::int64_t stride) {
  return torch::nn::Conv2d(
      torch::nn::Conv2dOptions(in, out, size).stride(stride).padding(size / 2).bias(false));
}

struct BottleneckImpl : torch::nn::Module {
  BottleneckImpl(std::int64_t in, std::int64_t width, std::int64_t stride)
      : conv1(register_module("conv1", convolution(in, width, 1, 1))),
        bn1(register_module("bn1", torch::nn::BatchNorm2d(width))),
        conv2(register_module("conv2", convolution(width, width, 3, stride))),
        bn2(register_module("bn2", torch::nn::BatchNorm2d(width))),
        conv3(register_module("conv3", convolution(width, 4 * width, 1, 1))),
        bn3(register_module("bn3", torch::nn::BatchNorm2d(4 * width))) {
    if (in == 4 * width && stride == 1) return;
    downsample = register_module("downsample", torch::nn::Sequential(convolution(in, 4 * width, 1, stride),
                                                                     torch::nn::BatchNorm2d(4 * width)));
  }

  torch::Tensor forward(torch::Tensor const& x) {
    torch::Tensor y = bn1(conv1(x)).relu_();
    y = bn2(conv2(y)).relu_();
    y = bn3(conv3(y));
    y += downsample.is_empty() ? x : downsample->forward(x);
    return y.relu_();
  }

  torch::nn::Conv2d conv1;
  torch::nn::BatchNorm2d bn1;
  torch::nn::Conv2d conv2;
  torch::nn::BatchNorm2d bn2;
  torch::nn::Conv2d conv3;
  torch::nn::BatchNorm2d bn3;
  torch::nn::Sequential downsample{nullptr};
};
TORCH_MODULE(Bottleneck);

struct ResNet50Impl : torch::nn::Module {
  explicit ResNet50Impl(std::int64_t classes = 1000)
      : conv1(register_module("conv1", convolution(3, 64, 7, 2))),
        bn1(register_module("bn1", torch::nn::BatchNorm2d(64))) {
    std::int64_t in = 64;
    std::int64_t const blocks[] = {3, 4, 6, 3};
    for (std::int64_t stage = 0; stage < 4; ++stage) {
      std::int64_t const width = 64 << stage;
      torch::nn::Sequential layer;
      for (std::int64_t i = 0; i < blocks[stage]; ++i, in = 4 * width) {
        layer->push_back(Bottleneck(in, width, i == 0 && stage > 0 ? 2 : 1));
      }
      layers.push_back(register_module("layer" + std::to_string(stage + 1), layer));
    }
    fc = register_module("fc", torch::nn::Linear(in, classes));
    torch::NoGradGuard const no_grad;
    for (auto& parameter : parameters()) {
      if (parameter.dim() == 4) torch::nn::init::kaiming_normal_(parameter, 0, torch::kFanOut, torch::kReLU);
    }
  }

  /// Images [n, 3, height, width] to logits[n, classes].
  torch::Tensor forward(torch::Tensor const& images) {
    torch::Tensor x = torch::max_pool2d(bn1(conv1(images)).relu_(), 3, 2, 1);
    for (auto& layer : layers) x = layer->forward(x);
    return linear(fc, torch::flatten(torch::adaptive_avg_pool2d(x, {1, 1}), 1));
  }

  torch::nn::Conv2d conv1;
  torch::nn::BatchNorm2d bn1;
  std::vector<torch::nn::Sequential> layers;
  torch::nn::Linear fc{nullptr};
};
TORCH_MODULE(ResNet50);

}  // namespace models
