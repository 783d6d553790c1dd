// R11 with a wrapped module: ranks that run out of data, or have none at all.
#include <algorithm>
#include <vector>

#include "ddp/core/text.hpp"
#include "ddp/libtorch.hpp"
#include "libtorch/models.hpp"

namespace ddp::testing {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

// How many batches a rank has.
using BatchesOf = int (*)(int rank);

int all_steps(BatchesOf batches) {
  int most = 0;
  for (int r = 0; r < world().size(); ++r) most = std::max(most, batches(r));
  return most;
}

torch::Tensor rows_of(int rank, int epoch, int step) {
  return random_rows(4, 6, static_cast<std::uint64_t>(1000 * epoch + 10 * rank + step));
}

// In each epoch, with an optimizer that has a state for each parameter; `whole` is trained by one process on
// the batches of all ranks that have one.
void expect_as_alone(std::vector<BatchesOf> const& epochs, Wrapped::Options options, bool per_bucket) {
  torch::manual_seed(7);
  auto net = on_device(std::make_shared<Branches>());
  options.runtime.uneven = ddp::DistributedDataParallelOptions::Uneven::divide_by_live;
  Wrapped wrapped(world(), *net, options);
  auto whole = copy_of(*net);
  libtorch::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(0.01));
  libtorch::AdamW expected(whole->parameters(), torch::optim::AdamWOptions(0.01));
  if (per_bucket) wrapped.on_bucket_ready([&](auto const& parameters) { optimizer.update(parameters); });
  auto const update = [&] {
    if (!per_bucket) optimizer.step();
  };
  for (std::size_t e = 0; e < epochs.size(); ++e) {
    int const epoch = static_cast<int>(e);
    int const steps = all_steps(epochs[e]);
    int step = 0;
    for (; step < epochs[e](world().rank().value()); ++step) {
      net->zero_grad(options.skip_unused);
      loss_of(net->forward(rows_of(world().rank().value(), epoch, step), step % 2 == 0)).backward();
      update();
    }
    {
      auto const guard = wrapped.no_sync();  // of an accumulation that has no end
      loss_of(net->forward(rows_of(world().rank().value(), 9, step), true)).backward();
    }
    wrapped.join([&] {
      ++step;
      update();
    });
    EXPECT_EQ(step, steps) << "epoch " << epoch;
    for (int s = 0; s < steps; ++s) {
      whole->zero_grad(options.skip_unused);
      std::vector<torch::Tensor> live;
      for (int r = 0; r < world().size(); ++r) {
        if (s < epochs[e](r)) live.push_back(rows_of(r, epoch, s));
      }
      loss_of(whole->forward(torch::cat(live), s % 2 == 0)).backward();
      for (auto& parameter :
           whole->parameters()) {  // as zeros, where those that nobody used are not left out
        if (!options.skip_unused && !parameter.grad().defined()) {
          parameter.mutable_grad() = torch::zeros_like(parameter);
        }
      }
      expected.step();
    }
  }
  expect_equal_on_ranks(net->parameters());
  for (std::size_t p = 0; p < net->parameters().size(); ++p) {
    EXPECT_TRUE(torch::allclose(net->parameters()[p], whole->parameters()[p], 1e-3, 1e-4))
        << "parameter " << p << ", per bucket " << per_bucket;
  }
}

int uneven(int rank) { return 2 * rank + 1; }
int only_last(int rank) { return rank == world().size() - 1 ? 3 : 0; }
int only_first(int rank) { return rank == 0 ? 3 : 0; }
int none(int /*rank*/) { return 0; }

// A branch that some steps use, and one that none does, are left out on every rank, or updated on every rank.
TEST(LibtorchJoin, R11R7TheOthersTrainAsIfTheyWereAlone) {
  for (bool const skip_unused : {true, false}) {
    for (bool const per_bucket : {false, true}) {
      Wrapped::Options options = small_buckets();
      options.skip_unused = skip_unused;
      expect_as_alone({uneven, uneven}, options, per_bucket);
    }
  }
}

// Also rank 0, whose order of arrival makes the buckets.
TEST(LibtorchJoin, R11ARankMayHaveNoDataFromTheFirstStepOn) {
  for (bool const per_bucket : {false, true}) {
    for (BatchesOf const first : {only_last, only_first, none}) {
      expect_as_alone({first, only_last, uneven, only_first}, small_buckets(), per_bucket);
    }
  }
  Wrapped::Options options = small_buckets();
  options.runtime.allow_repeated_ready = true;
  expect_as_alone({only_last, uneven, only_first}, options, false);
  options.runtime.allow_repeated_ready = false;
  options.runtime.rebuild_buckets = false;
  options.runtime.statistics = true;
  for (std::uint64_t const every : {1, 2}) {
    options.runtime.verify_every = every;
    expect_as_alone({only_last, uneven, only_first}, options, true);
  }
}

TEST(LibtorchJoin, R11R13ARankWithoutDataRunsTheHookToo) {
  auto net = on_device(std::make_shared<TwoLayers>());
  Wrapped::Options options = small_buckets();
  options.runtime.uneven = ddp::DistributedDataParallelOptions::Uneven::divide_by_all;
  Wrapped wrapped(world(), *net, options);
  wrapped.set_comm_hook(
      {"own", [](libtorch::GradientBucket const& bucket) { bucket.all_reduce(bucket.gradients()); }});
  auto whole = copy_of(*net);
  int const odd = world().size() - 1;
  int step = 0;
  auto const expect = [&] {
    whole->zero_grad();
    (loss_of(whole->forward(rows_of(odd, 0, step))) / world().size()).backward();
    expect_same_gradients(*net, *whole);
    net->zero_grad();
    ++step;
  };
  while (step < only_last(world().rank().value())) {
    loss_of(net->forward(rows_of(odd, 0, step))).backward();
    expect();
  }
  wrapped.join(expect);
  EXPECT_EQ(step, 3);
}

TEST(LibtorchJoin, R11WithErrorEveryRankIsToldWhoHasNoDataForTheFirstStep) {
  if (world().size() == 1) GTEST_SKIP() << "takes two ranks";
  auto net = on_device(std::make_shared<TwoLayers>());
  Wrapped::Options options = small_buckets();
  options.runtime.uneven = ddp::DistributedDataParallelOptions::Uneven::error;
  Wrapped wrapped(world(), *net, options);
  auto const messages = messages_of([&] {
    if (world().rank() == 0) {
      wrapped.join([] { ADD_FAILURE() << "there is no step to follow"; });
    } else {
      loss_of(net->forward(random_rows(4, 6, 1))).backward();
    }
  });
  EXPECT_THAT(messages, Each(HasSubstr("rank 0 called join() before synchronised step 0")));
}

TEST(LibtorchJoin, R11R10BuffersAreSentWhileARankHasNoData) {
  auto net = on_device(std::make_shared<torch::nn::BatchNorm1dImpl>(6));
  Wrapped::Options options;
  options.runtime.uneven = ddp::DistributedDataParallelOptions::Uneven::divide_by_all;
  Wrapped wrapped(world(), *net, options);
  int steps = 0;
  for (; steps < 2 * world().rank().value() + 1; ++steps) {
    net->zero_grad();
    loss_of(net->forward(random_rows(4, 6, 1))).backward();
  }
  wrapped.join([&] { ++steps; });
  EXPECT_EQ(steps, 2 * world().size() - 1);
  expect_equal_on_ranks(net->buffers());
}

}  // namespace
}  // namespace ddp::testing
