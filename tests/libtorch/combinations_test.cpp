// R6, R7, R11, R13, R15 and R17 together: accumulation, unused parameters, ranks without data, gradients that
// travel as bf16, clipping, and an optimizer per bucket, beside one process that trains on all of the data.
#include <cmath>

#include "ddp/core/text.hpp"
#include "ddp/libtorch.hpp"
#include "libtorch/models.hpp"

namespace ddp::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr double kRate = 0.5;
constexpr double kClip = 0.02;

enum class Wire { as_it_is, bf16, hook };

struct Combination {
  Wire wire = Wire::as_it_is;
  bool per_bucket = false;
  bool clips = false;
};

int batches_of(int rank) { return 2 * rank + 3; }

void descend(std::vector<torch::Tensor> const& parameters) {
  torch::NoGradGuard const no_graph;
  for (torch::Tensor parameter : parameters) {
    if (parameter.grad().defined()) parameter.sub_(kRate * parameter.grad());
  }
}

// Of both halves of a rank's batch. Only rank 0 uses a branch in every step.
torch::Tensor loss_of_half(Branches& net, int rank, int step, int half) {
  auto const rows = random_rows(4, 6, static_cast<std::uint64_t>(100 * rank + 2 * step + half));
  return loss_of(net.forward(rows, step % 2 == 0 || rank == 0));
}

void train_alone(Branches& net, bool clips) {
  for (int step = 0; step < batches_of(world().size() - 1); ++step) {
    int live = 0;
    for (int r = 0; r < world().size(); ++r) live += step < batches_of(r) ? 1 : 0;
    net.zero_grad();
    for (int r = 0; r < world().size(); ++r) {
      if (step >= batches_of(r)) continue;
      for (int half : {0, 1}) (loss_of_half(net, r, step, half) / live).backward();
    }
    if (clips) torch::nn::utils::clip_grad_norm_(net.parameters(), kClip);
    descend(net.parameters());
  }
}

void train_together(Branches& net, Combination const& how) {
  Wrapped::Options options = small_buckets();
  options.runtime.uneven = ddp::DistributedDataParallelOptions::Uneven::divide_by_live;
  options.runtime.statistics = how.per_bucket;
  options.runtime.nonfinite = ddp::DistributedDataParallelOptions::Nonfinite::flag;
  if (how.clips) options.runtime.clip_norm = kClip;
  if (how.wire == Wire::bf16) options.runtime.reduce_dtype = DType::bf16;
  Wrapped wrapped(world(), net, options);
  if (how.wire == Wire::hook) {
    wrapped.set_comm_hook({"half", [](libtorch::GradientBucket const& bucket) {
                             auto const narrow = bucket.gradients().to(torch::kFloat16);
                             bucket.all_reduce(narrow);
                             bucket.gradients().copy_(narrow);
                           }});
  }
  if (how.per_bucket) wrapped.on_bucket_ready(descend);
  auto const update = [&] {
    if (!how.per_bucket) descend(net.parameters());
  };
  int const mine = world().rank().value();
  int step = 0;
  for (; step < batches_of(mine); ++step) {
    net.zero_grad();
    {
      auto const guard = wrapped.no_sync();
      loss_of_half(net, mine, step, 0).backward();
    }
    loss_of_half(net, mine, step, 1).backward();
    update();
  }
  wrapped.join([&] {
    ++step;
    update();
  });
  EXPECT_EQ(step, batches_of(world().size() - 1));
  EXPECT_EQ(wrapped.found_nonfinite().item<float>(), 0);
  if (how.per_bucket) {
    EXPECT_TRUE(wrapped.runtime().statistics().has_value());
  }
}

TEST(LibtorchCombinations, R6R7R11R13R15R17GiveWhatOneProcessWouldCompute) {
  for (Wire const wire : {Wire::as_it_is, Wire::bf16, Wire::hook}) {
    for (bool const per_bucket : {false, true}) {
      for (bool const clips : {false, true}) {
        torch::manual_seed(11);
        auto net = on_device(std::make_shared<Branches>());
        auto whole = copy_of(*net);
        auto const before = values_of(*whole);
        train_together(*net, {wire, per_bucket, clips});
        train_alone(*whole, clips);
        expect_equal_on_ranks(net->parameters());
        double const tolerance = wire == Wire::as_it_is ? 1e-4 : 2e-2;
        for (std::size_t p = 0; p < before.size(); ++p) {
          auto const moved = whole->parameters()[p].detach() - before[p];
          auto const found = net->parameters()[p].detach() - before[p];
          double const size = moved.norm().item<double>();
          EXPECT_LE((found - moved).norm().item<double>(), tolerance * size + 1e-6)
              << "parameter " << p << ", wire " << static_cast<int>(wire) << ", per bucket " << per_bucket
              << ", clips " << clips;
          bool const used = whole->named_parameters()[p].key().find("never") == std::string::npos;
          EXPECT_EQ(size > 0, used) << "parameter " << p;
        }
      }
    }
  }
}

// ---- bad input, where several of them meet

TEST(LibtorchCombinations, R13AHookThatThrowsOnOneRankEndsBackwardOnAll) {
  auto net = on_device(std::make_shared<TwoLayers>());
  Wrapped wrapped(world(), *net, small_buckets());
  wrapped.set_comm_hook({"broken", [](libtorch::GradientBucket const& bucket) {
                           if (world().rank().value() == world().size() - 1) {
                             throw std::runtime_error("no room for the copy");
                           }
                           bucket.all_reduce(bucket.gradients());
                         }});
  auto const messages = messages_of([&] {
    loss_of(net->forward(random_rows(4, 6, 1))).backward();
    wrapped.runtime().synchronize();
  });
  EXPECT_THAT(messages, Each(HasSubstr("no room for the copy")));
}

TEST(LibtorchCombinations, R13AHookThatSendsAnotherSizeIsAnErrorOnEveryRank) {
  if (world().size() == 1) GTEST_SKIP() << "takes two ranks";
  auto net = on_device(std::make_shared<TwoLayers>());
  Wrapped wrapped(world(), *net, small_buckets());
  wrapped.set_comm_hook({"cut", [](libtorch::GradientBucket const& bucket) {
                           auto const all = bucket.gradients();
                           bucket.all_reduce(all.slice(0, 0, all.numel() - (world().rank() == 1 ? 1 : 0)));
                         }});
  auto const messages = messages_of([&] {
    loss_of(net->forward(random_rows(4, 6, 1))).backward();
    world().stream().synchronize();
    loss_of(net->forward(random_rows(4, 6, 1))).backward();
  });
  EXPECT_THAT(messages, Each(AllOf(HasSubstr("all_reduce"), HasSubstr("rank 1"))));
}

// The first layer's gradients are the last to arrive, and in the last bucket since the first step.
TEST(LibtorchCombinations, R17F11ANanInTheLastBucketIsNamedBeforeWeightsChange) {
  auto net = on_device(std::make_shared<TwoLayers>());
  Wrapped::Options options = small_buckets();
  options.runtime.nonfinite = ddp::DistributedDataParallelOptions::Nonfinite::error;
  Wrapped wrapped(world(), *net, options);
  auto const step = [&] {
    net->zero_grad();
    loss_of(net->forward(random_rows(4, 6, 1))).backward();
    descend(net->parameters());
  };
  step();
  auto const before = bytes_of_all(net->parameters());
  int const odd = world().size() - 1;
  if (world().rank().value() == odd) {
    net->first->weight.register_hook([](torch::Tensor const& gradient) {
      auto spoilt = gradient.clone();
      spoilt[3][2] = std::nan("");
      return spoilt;
    });
  }
  EXPECT_THAT(messages_of(step), Each(HasSubstr(text("\"first.weight\" on rank ", odd))));
  EXPECT_EQ(bytes_of_all(net->parameters()), before);
}

TEST(LibtorchCombinations, R17F12AWeightThatDiffersIsNamedWithItsRank) {
  if (world().size() == 1) GTEST_SKIP() << "takes two ranks";
  auto net = on_device(std::make_shared<TwoLayers>());
  Wrapped::Options options = small_buckets();
  options.runtime.verify_every = 1;
  Wrapped wrapped(world(), *net, options);
  loss_of(net->forward(random_rows(4, 6, 1))).backward();
  int const odd = world().size() - 1;
  // Through data(), of whose writes PyTorch does not know: no program writes to one rank's weights only.
  if (world().rank().value() == odd) net->second->weight.data()[1][2] += 1;
  auto const messages = messages_of([&] { loss_of(net->forward(random_rows(4, 6, 1))).backward(); });
  EXPECT_THAT(messages, Each(AllOf(HasSubstr("second.weight"), HasSubstr(text("rank ", odd)))));
}

// Ranks that did not use a parameter update it later than the others do.
TEST(LibtorchCombinations, R7R15R17WeightsAreComparedWhereBucketsAreUpdatedOneByOne) {
  for (std::uint64_t const every : {1, 2}) {
    auto net = on_device(std::make_shared<Branches>());
    Wrapped::Options options = small_buckets();
    options.runtime.verify_every = every;
    Wrapped wrapped(world(), *net, options);
    wrapped.on_bucket_ready(descend);
    for (int step = 0; step < 4; ++step) {
      auto const before = values_of(*net);
      net->zero_grad();
      loss_of_half(*net, world().rank().value(), 2 * step + 1, 0).backward();
      for (std::size_t p = 0; p < before.size(); ++p) {
        bool const used = net->named_parameters()[p].key().find("never") == std::string::npos;
        EXPECT_EQ(torch::equal(net->parameters()[p], before[p]), !used) << "step " << step << ", " << p;
      }
    }
    expect_equal_on_ranks(net->parameters());
  }
}

TEST(LibtorchCombinations, R15R17WhatContradictsAnUpdatePerBucketIsRefused) {
  auto net = on_device(std::make_shared<TwoLayers>());
  Wrapped::Options options;
  options.runtime.uneven = ddp::DistributedDataParallelOptions::Uneven::error;
  Wrapped wrapped(world(), *net, options);
  EXPECT_THAT(message_of([&] { wrapped.on_bucket_ready(descend); }), HasSubstr("uneven = error"));
}

struct Normalises : torch::nn::Module {
  torch::nn::Linear first = register_module("first", torch::nn::Linear(6, 8));
  libtorch::SyncBatchNorm norm = register_module("norm", libtorch::SyncBatchNorm(world(), 8));
};

TEST(LibtorchCombinations, R11AModuleWithSyncBatchNormIsRefused) {
  auto net = on_device(std::make_shared<Normalises>());
  Wrapped::Options options;
  options.runtime.uneven = ddp::DistributedDataParallelOptions::Uneven::divide_by_all;
  EXPECT_THAT(messages_of([&] { Wrapped const wrapped(world(), *net, options); }),
              Each(HasSubstr("uneven with a SyncBatchNorm")));
  Wrapped const wrapped(world(), *net);
}

}  // namespace
}  // namespace ddp::testing
