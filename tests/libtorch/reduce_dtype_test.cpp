// R14 with a wrapped module: gradients of 16 bits that are added up in f32, beside one process that does so.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "ddp/libtorch.hpp"
#include "libtorch/models.hpp"

namespace ddp::testing {
namespace {

// As with mixed precision by hand: layers of 16 bits, and a norm and an output of 32.
struct MixedLayers : torch::nn::Module {
  torch::nn::Linear first = register_module("first", torch::nn::Linear(6, 40));
  torch::nn::LayerNorm norm =
      register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({40})));
  torch::nn::Linear second = register_module("second", torch::nn::Linear(40, 24));
  torch::nn::Linear unused = register_module("unused", torch::nn::Linear(3, 3));
  torch::nn::Linear last = register_module("last", torch::nn::Linear(24, 3));
  torch::Tensor forward(torch::Tensor const& x) {
    auto const narrow = first->weight.scalar_type();
    auto const hidden = norm(torch::relu(first(x.to(narrow))).to(torch::kFloat));
    return last(second(hidden.to(narrow)).to(torch::kFloat));
  }
};

std::shared_ptr<MixedLayers> mixed(torch::ScalarType narrow) {
  auto net = on_device(std::make_shared<MixedLayers>());
  for (torch::nn::Linear layer : {net->first, net->second, net->unused}) layer->to(narrow);
  return net;
}

std::vector<torch::ScalarType> narrow_types() {
  if (world().device().kind == DeviceKind::cuda) return {torch::kBFloat16, torch::kHalf};
  return {torch::kBFloat16};
}

torch::Tensor rows_of(int rank, int step) {
  return random_rows(8, 6, static_cast<std::uint64_t>(50 * rank + step));
}

double weight_of(int rank) { return 1 << rank; }

// Each rank's gradients as they are, then their average in f32, or the sum of what each was multiplied with
// in f32, rounded once.
std::vector<torch::Tensor> averages(MixedLayers& net, int step, bool weighted) {
  double weights = 0;
  for (int r = 0; r < world().size(); ++r) weights += weight_of(r);
  std::vector<torch::Tensor> sums;
  for (int r = 0; r < world().size(); ++r) {
    net.zero_grad();
    loss_of(net.forward(rows_of(r, step))).backward();
    auto const parameters = net.parameters();
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      auto const& gradient = parameters[p].grad();
      auto part = gradient.defined() ? gradient.to(torch::kFloat, false, /*copy=*/true) : torch::Tensor();
      if (part.defined() && weighted) part *= weight_of(r) / weights;
      if (r == 0) sums.push_back(part);
      if (r != 0 && part.defined()) sums[p] += part;
    }
  }
  for (std::size_t p = 0; p < sums.size(); ++p) {
    if (!sums[p].defined()) continue;
    if (!weighted) sums[p] /= world().size();
    sums[p] = sums[p].to(net.parameters()[p].scalar_type());
  }
  return sums;
}

struct WideWay {
  bool hook = false;
  bool weighted = false;
  bool clips = false;
  bool micro = false;  // behind a micro-step whose gradients are zeros
};

void expect_averages(WideWay const& way, torch::ScalarType narrow) {
  SCOPED_TRACE(::testing::Message() << narrow << ", hook " << way.hook << ", weighted " << way.weighted
                                    << ", clips " << way.clips << ", micro " << way.micro);
  torch::manual_seed(31);
  auto net = mixed(narrow);
  auto whole = mixed(narrow);
  {
    torch::NoGradGuard const no_graph;
    for (std::size_t p = 0; p < net->parameters().size(); ++p) {
      whole->parameters()[p].copy_(net->parameters()[p]);
    }
  }
  Wrapped::Options options = small_buckets();
  options.runtime.reduce_dtype = DType::f32;
  constexpr double kSmallNorm = 0.01;
  if (way.clips) options.runtime.clip_norm = kSmallNorm;
  Wrapped wrapped(world(), *net, options);
  std::size_t buckets = 0;
  if (way.hook) {
    wrapped.set_comm_hook({"look", [&](libtorch::GradientBucket const& bucket) {
                             EXPECT_EQ(bucket.gradients().scalar_type(), torch::kFloat);
                             ++buckets;
                             bucket.all_reduce(bucket.gradients());
                           }});
  }
  for (int step = 0; step < 3; ++step) {
    net->zero_grad(step % 2 == 0);
    if (way.weighted) wrapped.set_weight(weight_of(world().rank().value()));
    if (way.micro) {
      auto const guard = wrapped.no_sync();
      (loss_of(net->forward(rows_of(world().rank().value(), step))) * 0.0F).backward();
    }
    loss_of(net->forward(rows_of(world().rank().value(), step))).backward();
    auto const expected = averages(*whole, step, way.weighted);
    double norm = 0;
    for (auto const& each : expected) {
      if (each.defined()) norm += each.to(torch::kDouble).square().sum().item<double>();
    }
    norm = std::sqrt(norm);
    double const factor = way.clips ? std::min(1.0, kSmallNorm / (norm + 1e-6)) : 1.0;
    if (way.clips) {
      EXPECT_LT(factor, 1) << "nothing is clipped";
      double const rounding = way.weighted && libtorch::device(world()).is_cuda() ? 1e-4 : 1e-5;
      EXPECT_NEAR(wrapped.gradient_norm().item<double>(), norm, rounding * norm);
    }
    for (std::size_t p = 0; p < expected.size(); ++p) {
      SCOPED_TRACE(net->named_parameters()[p].key());
      auto const& found = net->parameters()[p].grad();
      ASSERT_EQ(found.defined(), expected[p].defined());
      if (!found.defined()) continue;
      ASSERT_EQ(found.scalar_type(), net->parameters()[p].scalar_type());
      EXPECT_GT(found.abs().sum().item<double>(), 0);
      // Clipping rounds once more, and a GPU each rank's part of a weighted mean.
      if (way.clips || (way.weighted && found.is_cuda())) {
        double const rounding = found.scalar_type() == torch::kFloat ? 1e-5 : 0x1p-7;
        torch::Tensor const wanted = factor * expected[p].to(torch::kDouble);
        double const largest = wanted.abs().max().item<double>();
        EXPECT_TRUE(torch::allclose(found.to(torch::kDouble), wanted, rounding, 1e-5 * largest + 1e-7));
      } else {
        EXPECT_TRUE(torch::equal(found, expected[p]))
            << (found - expected[p]).abs().max().item<double>() << " off";
      }
    }
  }
  if (way.hook) {
    EXPECT_GT(buckets, 6U);
  }
}

TEST(LibtorchReduceDtype, R14GradientsOf16BitsAreAddedUpInF32AndRoundedOnce) {
  for (auto const narrow : narrow_types()) {
    for (unsigned bits = 0; bits < 16; ++bits) {
      WideWay const way{(bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0, (bits & 8) != 0};
      expect_averages(way, narrow);
    }
  }
}

// 256 + 1 needs nine bits, one more than bf16 has; with f16 the sum of two is infinite.
TEST(LibtorchReduceDtype, R14SumsThatNeedMoreThan16BitsFitAgainWhenTheyAreAverages) {
  for (auto const narrow : narrow_types()) {
    torch::nn::Linear net(4, 5);
    net->to(libtorch::device(world()));
    net->to(narrow);
    Wrapped::Options options = small_buckets();
    options.runtime.reduce_dtype = DType::f32;
    options.runtime.nonfinite = ddp::DistributedDataParallelOptions::Nonfinite::flag;
    Wrapped wrapped(world(), *net, options);
    wrapped.set_comm_hook({"sum", [](libtorch::GradientBucket const& bucket) {
                             bucket.gradients().mul_(world().size());  // the average is what the sum was
                             bucket.all_reduce(bucket.gradients());
                             bucket.gradients().div_(world().size());
                           }});
    double const large = narrow == torch::kHalf ? 60000 : 256;
    double const mine = narrow == torch::kHalf || world().rank() == 0 ? large : 1;
    (net->weight.sum() * mine + net->bias.sum() * mine).backward();
    double const mean = narrow == torch::kHalf ? large : (large + world().size() - 1) / world().size();
    auto const expected = torch::full({5}, mean, torch::kFloat).to(narrow);
    EXPECT_TRUE(torch::equal(net->bias.grad().cpu(), expected)) << net->bias.grad();
    EXPECT_EQ(wrapped.found_nonfinite().item<float>(), 0);
  }
}

}  // namespace
}  // namespace ddp::testing
