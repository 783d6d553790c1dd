// R11, R15 and R17: steps that are not finite change neither weights nor anything in an optimizer, on ranks
// with and without data, beside one process whose optimizer never sees such a step.
#include <algorithm>
#include <cmath>
#include <vector>

#include "ddp/core/text.hpp"
#include "ddp/libtorch.hpp"
#include "libtorch/models.hpp"

namespace ddp::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr int kSteps = 6;

// Which steps are spoilt, the first, two in a row, or the last.
using Spoilt = std::vector<int>;
bool is_in(Spoilt const& spoilt, int step) { return std::ranges::find(spoilt, step) != spoilt.end(); }

torch::Tensor batch_of(int rank, int step) {
  return random_rows(4, 6, static_cast<std::uint64_t>(100 * rank + step));
}

// torch::optim::AdamW, which shares nothing with the optimizer below, on all batches of the steps that count.
std::vector<torch::Tensor> train_alone(TwoLayers& net, Spoilt const& spoilt, int (*steps_of)(int rank)) {
  torch::optim::AdamW optimizer(net.parameters(), torch::optim::AdamWOptions(0.05).weight_decay(0.01));
  for (int step = 0; step < kSteps; ++step) {
    if (is_in(spoilt, step)) continue;
    std::vector<torch::Tensor> live;
    for (int r = 0; r < world().size(); ++r) {
      if (step < steps_of(r)) live.push_back(batch_of(r, step));
    }
    net.zero_grad();
    loss_of(net.forward(torch::cat(live))).backward();
    optimizer.step();
  }
  return values_of(net);
}

// The last rank's batch of a spoilt step has a NaN.
std::vector<torch::Tensor> train_together(TwoLayers& net, Spoilt const& spoilt, int (*steps_of)(int rank),
                                          bool per_bucket, bool clips) {
  Wrapped::Options options = small_buckets();
  options.runtime.nonfinite = ddp::DistributedDataParallelOptions::Nonfinite::flag;
  options.runtime.uneven = ddp::DistributedDataParallelOptions::Uneven::divide_by_live;
  if (clips) options.runtime.clip_norm = 1e6;  // which nothing finite reaches
  Wrapped wrapped(world(), net, options);
  libtorch::AdamW optimizer(net.parameters(), torch::optim::AdamWOptions(0.05));
  if (per_bucket) {
    wrapped.on_bucket_ready([&](auto const& parameters) {
      optimizer.skip_where(wrapped.found_nonfinite());
      optimizer.update(parameters);
    });
  }
  int step = 0;
  auto const update = [&] {
    optimizer.skip_where(wrapped.found_nonfinite());
    if (!per_bucket) optimizer.step();
    EXPECT_EQ(wrapped.found_nonfinite().item<float>(), is_in(spoilt, step) ? 1.0F : 0.0F) << "step " << step;
    EXPECT_EQ(wrapped.runtime().nonfinite_gradients().empty(), !is_in(spoilt, step)) << "step " << step;
    ++step;
  };
  while (step < steps_of(world().rank().value())) {
    net.zero_grad(step % 3 == 0);
    auto rows = batch_of(world().rank().value(), step);
    if (is_in(spoilt, step) && world().rank().value() == world().size() - 1) rows[1][2] = std::nan("");
    loss_of(net.forward(rows)).backward();
    update();
  }
  wrapped.join(update);
  EXPECT_EQ(step, kSteps);
  return values_of(net);
}

void expect_as_alone(int (*steps_of)(int rank)) {
  for (Spoilt const& spoilt : {Spoilt{0}, Spoilt{2, 3}, Spoilt{0, 1, 4, kSteps - 1}}) {
    for (bool const per_bucket : {false, true}) {
      for (bool const clips : {false, true}) {
        torch::manual_seed(21);
        auto net = on_device(std::make_shared<TwoLayers>());
        auto whole = copy_of(*net);
        auto const found = train_together(*net, spoilt, steps_of, per_bucket, clips);
        auto const expected = train_alone(*whole, spoilt, steps_of);
        expect_equal_on_ranks(net->parameters());
        for (std::size_t p = 0; p < expected.size(); ++p) {
          // A step more or less in the correction of the averages would move weights by 1e-2.
          EXPECT_TRUE(torch::allclose(found[p], expected[p], 1e-3, 1e-4))
              << "parameter " << p << ", first spoilt " << spoilt[0] << ", per bucket " << per_bucket
              << ", clips " << clips << '\n'
              << found[p] - expected[p];
        }
      }
    }
  }
}

TEST(LibtorchSkippedSteps, R15R17LeaveNoTraceInAnOptimizer) {
  expect_as_alone([](int) { return kSteps; });
}

TEST(LibtorchSkippedSteps, R11R15R17NorOnRanksThatHaveNoDataForThem) {
  expect_as_alone([](int rank) { return rank == world().size() - 1 ? kSteps : rank; });
}

TEST(LibtorchSkippedSteps, R11R17WithErrorARankWithoutDataIsToldTooAndLeavesJoin) {
  auto net = on_device(std::make_shared<TwoLayers>());
  Wrapped::Options options = small_buckets();
  options.runtime.nonfinite = ddp::DistributedDataParallelOptions::Nonfinite::error;
  options.runtime.uneven = ddp::DistributedDataParallelOptions::Uneven::divide_by_all;
  Wrapped wrapped(world(), *net, options);
  int const odd = world().size() - 1;
  int updates = 0;
  auto const messages = messages_of([&] {
    for (int step = 0; world().rank().value() == odd && step < 3; ++step, ++updates) {
      net->zero_grad();
      auto rows = batch_of(odd, step);
      if (step == 2) rows[1][2] = std::nan("");
      loss_of(net->forward(rows)).backward();
    }
    wrapped.join([&] { ++updates; });
  });
  EXPECT_THAT(messages, Each(AllOf(HasSubstr("NaN or infinity in synchronised step 2"),
                                   HasSubstr(text("\"first.weight\" on rank ", odd)))));
  EXPECT_EQ(updates, 2);
}

}  // namespace
}  // namespace ddp::testing
