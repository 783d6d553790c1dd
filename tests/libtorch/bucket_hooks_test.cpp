// R13 and R15 with a wrapped module: hooks on buckets, and optimizers that update a bucket at a time.
#include "ddp/libtorch.hpp"
#include "libtorch/models.hpp"

namespace ddp::testing {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

// Weights after some steps of AdamW, which has a state of its own for each parameter.
std::vector<torch::Tensor> train(bool per_bucket, bool zeros, bool skip_unused) {
  torch::manual_seed(3);
  auto net = on_device(std::make_shared<Branches>());
  Wrapped::Options options = small_buckets();
  options.skip_unused = skip_unused;
  Wrapped wrapped(world(), *net, options);
  libtorch::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(0.05));
  std::size_t updated = 0;
  std::size_t calls = 0;
  if (per_bucket) {
    wrapped.on_bucket_ready([&](std::vector<torch::Tensor> const& parameters) {
      EXPECT_FALSE(torch::GradMode::is_enabled());
      updated += parameters.size();
      ++calls;
      optimizer.update(parameters);
    });
  }
  for (std::uint64_t step = 0; step < 5; ++step) {
    net->zero_grad(!zeros);
    bool const both = step % 2 == 0 || world().rank() == 0;
    auto const loss = [&](std::uint64_t micro) {
      return loss_of(net->forward(shard(random_rows(4 * world().size(), 6, 10 * step + micro)), both));
    };
    {
      auto const guard = wrapped.no_sync();
      loss(0).backward();
    }
    loss(1).backward();
    if (per_bucket) {
      world().barrier();  // on a CPU the updates ran in another thread
      EXPECT_EQ(updated, skip_unused ? 6U : 8U) << "each parameter once, those that no rank used as asked";
      EXPECT_GT(calls, 2U);
      updated = calls = 0;
    } else {
      optimizer.step();
    }
  }
  return values_of(*net);
}

TEST(LibtorchBucketHooks, R15AnOptimizerPerBucketGivesTheSameWeights) {
  for (bool const zeros : {false, true}) {
    for (bool const skip_unused : {true, false}) {
      // Where gradients are kept as zeros, a parameter that nobody used has one, if it ever was defined.
      auto const plain = train(false, zeros, skip_unused);
      auto const per_bucket = train(true, zeros, skip_unused);
      ASSERT_EQ(plain.size(), per_bucket.size());
      for (std::size_t p = 0; p < plain.size(); ++p) {
        EXPECT_TRUE(torch::equal(plain[p], per_bucket[p]))
            << "parameter " << p << ", zeros " << zeros << ", skip_unused " << skip_unused;
      }
    }
  }
}

TEST(LibtorchBucketHooks, R13AHookOfPyTorchsOperationsReducesInItsOwnWay) {
  torch::manual_seed(4);
  auto net = on_device(std::make_shared<TwoLayers>());
  Wrapped wrapped(world(), *net, small_buckets());
  auto whole = copy_of(*net);
  wrapped.set_comm_hook({"half", [](libtorch::GradientBucket const& bucket) {
                           auto const narrow = bucket.gradients().to(torch::kFloat16);
                           bucket.all_reduce(narrow);
                           bucket.gradients().copy_(narrow);
                         }});
  for (std::uint64_t step = 0; step < 3; ++step) {
    net->zero_grad();
    whole->zero_grad();
    auto const rows = random_rows(4 * world().size(), 6, step);
    loss_of(net->forward(shard(rows))).backward();
    loss_of(whole->forward(rows)).backward();
    bool exact = true;
    for (std::size_t p = 0; p < net->parameters().size(); ++p) {
      auto const found = net->parameters()[p].grad();
      auto const expected = whole->parameters()[p].grad();
      EXPECT_TRUE(torch::allclose(found, expected, 2e-3, 1e-4)) << found << expected;
      EXPECT_TRUE(torch::equal(found, found.to(torch::kFloat16).to(torch::kFloat32)));
      exact = exact && torch::equal(found, expected);
    }
    EXPECT_FALSE(exact) << "nothing was rounded";
  }
}

TEST(LibtorchBucketHooks, R13GradientsTravelAsBf16) {
  torch::manual_seed(4);
  auto net = on_device(std::make_shared<TwoLayers>());
  Wrapped::Options options = small_buckets();
  options.runtime.reduce_dtype = DType::bf16;
  Wrapped wrapped(world(), *net, options);
  auto whole = copy_of(*net);
  for (std::uint64_t step = 0; step < 3; ++step) {
    net->zero_grad();
    whole->zero_grad();
    auto const rows = random_rows(4 * world().size(), 6, step);
    loss_of(net->forward(shard(rows))).backward();
    loss_of(whole->forward(rows)).backward();
    for (std::size_t p = 0; p < net->parameters().size(); ++p) {
      auto const found = net->parameters()[p].grad();
      EXPECT_TRUE(torch::allclose(found, whole->parameters()[p].grad(), 2e-2, 1e-3));
      EXPECT_TRUE(torch::equal(found, found.to(torch::kBFloat16).to(torch::kFloat32)));
    }
  }
}

TEST(LibtorchBucketHooks, R15ClippingIsThatOfPyTorch) {
  torch::manual_seed(5);
  auto net = on_device(std::make_shared<TwoLayers>());
  Wrapped::Options options = small_buckets();
  options.runtime.clip_norm = 0.05;
  Wrapped wrapped(world(), *net, options);
  auto whole = copy_of(*net);
  for (std::uint64_t step = 0; step < 4; ++step) {
    net->zero_grad(step % 2 == 0);
    whole->zero_grad();
    auto const rows = random_rows(4 * world().size(), 6, step);
    float const scale = step < 2 ? 1.0F : 0.01F;  // at last nothing is clipped
    (loss_of(net->forward(shard(rows))) * scale).backward();
    (loss_of(whole->forward(rows)) * scale).backward();
    double const norm = torch::nn::utils::clip_grad_norm_(whole->parameters(), 0.05);
    EXPECT_EQ(norm > 0.05, step < 2);
    EXPECT_NEAR(wrapped.gradient_norm().item<double>(), norm, 1e-5 * norm);
    expect_same_gradients(*net, *whole);
  }
}

TEST(LibtorchBucketHooks, R17AStepThatIsNotFiniteIsSkippedByAFusedOptimizer) {
  torch::manual_seed(6);
  auto net = on_device(std::make_shared<TwoLayers>());
  Wrapped::Options options = small_buckets();
  options.runtime.nonfinite = ddp::DistributedDataParallelOptions::Nonfinite::flag;
  Wrapped wrapped(world(), *net, options);
  libtorch::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(0.05));
  for (int step = 0; step < 4; ++step) {
    auto const before = values_of(*net);
    bool const odd = step == 1;
    net->zero_grad();
    auto rows = random_rows(4, 6, 10 * static_cast<std::uint64_t>(step));
    if (odd && world().rank().value() == world().size() - 1) rows[1][2] = std::nan("");
    loss_of(net->forward(rows)).backward();
    optimizer.skip_where(wrapped.found_nonfinite());
    optimizer.step();
    auto const after = values_of(*net);
    for (std::size_t p = 0; p < before.size(); ++p) {
      EXPECT_EQ(torch::equal(before[p], after[p]), odd) << "step " << step << ", parameter " << p;
    }
    EXPECT_EQ(wrapped.runtime().nonfinite_gradients().empty(), !odd);
  }
  expect_equal_on_ranks(net->parameters());
}

TEST(LibtorchBucketHooks, R15AnUpdateThatThrowsOnOneRankEndsBackwardOnAll) {
  auto net = on_device(std::make_shared<TwoLayers>());
  Wrapped wrapped(world(), *net, small_buckets());
  wrapped.on_bucket_ready([](std::vector<torch::Tensor> const&) {
    if (world().rank().value() == world().size() - 1) throw std::runtime_error("no optimizer");
  });
  world().barrier();  // as soon as one rank is in its step, the others cannot register
  auto const messages = gathered(message_of([&] {
    loss_of(net->forward(random_rows(4, 6, 1))).backward();
    wrapped.runtime().synchronize();
  }));
  EXPECT_THAT(messages, Each(HasSubstr("no optimizer")));
}

TEST(LibtorchBucketHooks, R15WithRepeatedGradientsIsRefused) {
  auto net = on_device(std::make_shared<TwoLayers>());
  Wrapped::Options options;
  options.runtime.allow_repeated_ready = true;
  Wrapped wrapped(world(), *net, options);
  EXPECT_THAT(message_of([&] { wrapped.on_bucket_ready([](std::vector<torch::Tensor> const&) {}); }),
              HasSubstr("on_bucket_ready(): with Options::runtime.allow_repeated_ready"));
}

}  // namespace
}  // namespace ddp::testing
