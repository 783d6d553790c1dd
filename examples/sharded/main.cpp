// A bigram model in bf16 whose optimizer is sharded. Its arrays are pointers in a struct, as those of llm.c
// are.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <ddp/ddp.hpp>
#include <iomanip>
#include <iostream>
#include <string>
#include <vector>

namespace {

using ddp::bfloat16;

constexpr std::size_t kTokens = 61;
constexpr std::size_t kChannels = 16;
constexpr std::size_t kSizes[] = {kTokens * kChannels, kTokens* kChannels,
                                  kTokens};  // n need not divide them
constexpr std::size_t kParameters = kSizes[0] + kSizes[1] + kSizes[2];

struct Arrays {
  bfloat16* wte = nullptr;   // [token, channel]
  bfloat16* head = nullptr;  // [token, channel]
  bfloat16* bias = nullptr;  // [token]
};

float wide(bfloat16 value) { return static_cast<float>(value); }

std::size_t successor(std::size_t token) { return (5 * token + 3) % kTokens; }

// Logits of what comes behind `token`.
std::vector<float> forward(Arrays const& params, std::size_t token) {
  std::vector<float> logits(kTokens);
  for (std::size_t k = 0; k < kTokens; ++k) logits[k] = wide(params.bias[k]);
  for (std::size_t i = 0; i < kTokens * kChannels; ++i) {
    logits[i / kChannels] += wide(params.head[i]) * wide(params.wte[token * kChannels + i % kChannels]);
  }
  return logits;
}

// Adds the gradients of this token's part of the mean cross-entropy.
void backward(Arrays const& params, Arrays const& grads, std::size_t token, std::vector<float> logits) {
  auto const add = [](bfloat16& to, float slope) { to = bfloat16(wide(to) + slope); };
  float sum = 0;
  for (float& logit : logits) sum += logit = std::exp(logit);
  for (std::size_t k = 0; k < kTokens; ++k) {
    float const slope = (logits[k] / sum - (k == successor(token) ? 1.0F : 0.0F)) / kTokens;
    add(grads.bias[k], slope);
    for (std::size_t c = 0; c < kChannels; ++c) {
      add(grads.head[k * kChannels + c], slope * wide(params.wte[token * kChannels + c]));
      add(grads.wte[token * kChannels + c], slope * wide(params.head[k * kChannels + c]));
    }
  }
}

// AdamW of one slice: 12 bytes an element, on the rank that updates it.
struct SliceState {
  std::vector<float> master, mean, square;
  explicit SliceState(ddp::Slice const& slice) : mean(slice.values.count()), square(slice.values.count()) {
    for (bfloat16 const value : slice.values.as<bfloat16>()) master.push_back(wide(value));
  }
  void update(ddp::Slice const& slice, int step) {
    auto const values = slice.values.as<bfloat16>();
    auto const slopes = slice.gradient.as<bfloat16>();
    auto const steps = static_cast<float>(step);
    float const scale = std::sqrt(1 - std::pow(0.95F, steps)) / (1 - std::pow(0.9F, steps));
    for (std::size_t i = 0; i < master.size(); ++i) {
      float const slope = wide(slopes[i]);
      mean[i] += 0.1F * (slope - mean[i]);
      square[i] += 0.05F * (slope * slope - square[i]);
      master[i] -= 0.02F * (scale * mean[i] / (std::sqrt(square[i]) + 1e-8F) + 0.001F * master[i]);
      values[i] = bfloat16(master[i]);
    }
  }
};

}  // namespace

int main() {
  ddp::World world = ddp::World::init();
  std::vector<bfloat16> initial(kParameters);  // only until the runtime has made its own memory
  for (std::size_t i = 0; i < initial.size(); ++i) {
    initial[i] = bfloat16(i < 2 * kSizes[0] ? 0.5F * std::sin(static_cast<float>(i * i)) : 0.0F);
  }
  Arrays params;
  Arrays grads;
  std::vector<ddp::Parameter> parameters;
  bfloat16* next = initial.data();
  auto const add = [&](std::string name, ddp::Shape const& shape, bfloat16* Arrays::*array) {
    auto const points_to = [array](Arrays& arrays) {
      return [&arrays, array](ddp::Tensor const& place) { arrays.*array = place.as<bfloat16>().data(); };
    };
    parameters.push_back({.name = std::move(name),
                          .value = ddp::TensorView{next, shape, ddp::DType::bf16},
                          .bind_gradient = points_to(grads),
                          .bind_value = points_to(params)});
    next += shape.count();
  };
  add("wte", {kTokens, kChannels}, &Arrays::wte);
  add("head", {kTokens, kChannels}, &Arrays::head);
  add("bias", {kTokens}, &Arrays::bias);
  ddp::DistributedDataParallelOptions options;
  options.reduction = ddp::DistributedDataParallelOptions::Reduction::sum;
  options.sharding = ddp::Sharding::optimizer;
  ddp::DistributedDataParallel ddp(world, parameters, options);  // its memory is what the pointers lead to
  initial = std::vector<bfloat16>();
  std::vector<SliceState> states(ddp.slices().begin(), ddp.slices().end());

  auto const first = static_cast<std::size_t>(world.rank().value());
  auto const ranks = static_cast<std::size_t>(world.size());
  for (int step = 1; step <= 150; ++step) {
    ddp.zero_gradients();  // also those that other ranks have updated
    for (std::size_t token = first; token < kTokens; token += ranks) {
      backward(params, grads, token, forward(params, token));
    }
    for (std::size_t p = parameters.size(); p-- > 0;) ddp.gradient_ready(p);
    ddp.synchronize();  // the gradients of this rank's slices are sums over all ranks now
    ddp.update_slices(
        [&](ddp::Slice const& slice, ddp::Stream&) { states[slice.index].update(slice, step); });
  }

  std::size_t learnt = 0;
  for (std::size_t token = 0; token < kTokens; ++token) {
    std::vector<float> const logits = forward(params, token);
    if (logits.begin() + static_cast<std::ptrdiff_t>(successor(token)) == std::ranges::max_element(logits))
      ++learnt;
  }
  std::size_t own = 0;
  for (SliceState const& state : states) own += state.master.size();
  if (world.rank() == 0) {
    double const bytes = static_cast<double>(4 * kParameters + 12 * own) / kParameters;
    std::cout << std::fixed << std::setprecision(1) << "learnt " << learnt << " of " << kTokens << "; "
              << bytes << " bytes a parameter: 2 + 2 + 12/" << ranks << '\n';
  }
}
