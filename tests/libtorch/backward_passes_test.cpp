// Backward passes that reach several wrapped modules, or none before they fail.
#include <memory>
#include <string>
#include <vector>

#include "ddp/core/text.hpp"
#include "libtorch/models.hpp"
#include "parallel/ddp/reducer_access.hpp"

namespace ddp::testing {
namespace {

using ::testing::HasSubstr;

// Its steps wait for the other ranks: for what they have not used, and for their buffers.
struct Part : torch::nn::Module {
  torch::nn::Linear used = register_module("used", torch::nn::Linear(6, 6));
  torch::nn::Linear unused = register_module("unused", torch::nn::Linear(6, 6));
  torch::nn::BatchNorm1d norm = register_module("norm", torch::nn::BatchNorm1d(6));
  torch::Tensor forward(torch::Tensor const& x) { return norm(torch::tanh(used(x))); }
};

// a(b(c(x))) on one rank, b(c(a(x))) on the next one, and so on: autograd begins with the outermost.
torch::Tensor loss_in_order_of(int rank, std::vector<std::shared_ptr<Part>> const& parts) {
  torch::Tensor x = random_rows(8, 6, static_cast<std::uint64_t>(rank));
  for (std::size_t i = 0; i < parts.size(); ++i) {
    x = parts[(i + static_cast<std::size_t>(rank)) % parts.size()]->forward(x);
  }
  return loss_of(x);
}

// On GPUs in the same order: CUDA may make one module's messages wait for the other's, as where it loads a
// kernel.
TEST(LibtorchBackwardPasses, R22ModulesThatRanksReachInAnotherOrderInOnePassEndTheirSteps) {
  for (std::size_t const count : {2, 3}) {
    std::vector<std::shared_ptr<Part>> parts;
    std::vector<std::shared_ptr<Part>> whole;
    std::vector<Wrapped> wrapped;
    for (std::size_t p = 0; p < count; ++p) {
      parts.push_back(on_device(std::make_shared<Part>()));
      wrapped.emplace_back(world(), *parts.back(), small_buckets());
      whole.push_back(copy_of(*parts.back()));
    }
    for (int step = 0; step < 5; ++step) {
      for (auto const& part : parts) part->zero_grad();
      for (auto const& part : whole) part->zero_grad();
      bool const on_gpus = world().device().kind == DeviceKind::cuda;
      auto const order = [&](int rank) { return step + (on_gpus ? 0 : rank); };
      loss_in_order_of(order(world().rank().value()), parts).backward();
      for (int r = 0; r < world().size(); ++r)
        (loss_in_order_of(order(r), whole) / world().size()).backward();
      for (std::size_t p = 0; p < count; ++p) {
        expect_same_gradients(*parts[p], *whole[p]);
        EXPECT_EQ(wrapped[p].runtime().steps(), static_cast<std::uint64_t>(step + 1));
      }
    }
  }
}

// The error of one of them is that of the whole pass, also for a module whose gradients are sent.
TEST(LibtorchBackwardPasses, R22AnErrorAtTheEndOfOneModulesStepReachesAllRanks) {
  auto a = on_device(std::make_shared<TwoLayers>());
  auto b = on_device(std::make_shared<TwoLayers>());
  Wrapped first(world(), *a, small_buckets());
  Wrapped second(world(), *b, small_buckets());
  if (world().rank() == 0) b->register_parameter("late", torch::zeros({2}));
  auto const messages = messages_of([&] {
    auto const rows = random_rows(4, 6, 1);
    (loss_of(a->forward(rows)) + loss_of(b->forward(rows))).backward();
  });
  EXPECT_THAT(messages, ::testing::Each(HasSubstr("the module had 4 parameters when it was wrapped")));
}

// ---- a pass that fails before it reaches the module

// Throws in front of the module's gradients.
void fail_before_the_first_gradient(TwoLayers& net) {
  EXPECT_ANY_THROW(loss_of(Throws::apply(net.forward(random_rows(4, 6, 1)))).backward());
}

TEST(LibtorchBackwardPasses, R22OneThatFailsBeforeTheFirstGradientIsNoStepAndTheNextOneIs) {
  auto net = on_device(std::make_shared<TwoLayers>());
  Wrapped wrapped(world(), *net, small_buckets());
  auto whole = copy_of(*net);
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  torch::optim::SGD expected(whole->parameters(), 0.1);
  for (std::uint64_t step = 0; step < 4; ++step) {
    if (world().rank().value() == static_cast<int>(step) % world().size()) {
      optimizer.zero_grad();
      fail_before_the_first_gradient(*net);  // a batch that is left out
    }
    step_both(*net, *whole, random_rows(4 * world().size(), 6, step));
    optimizer.step();
    expected.step();
  }
  EXPECT_EQ(wrapped.runtime().steps(), 4U);
}

TEST(LibtorchBackwardPasses, R22OneThatFailsBeforeTheFirstGradientCanBeToldToTheOthers) {
  auto net = on_device(std::make_shared<TwoLayers>());
  Wrapped wrapped(world(), *net, small_buckets());
  int const last = world().size() - 1;
  auto const messages = messages_of([&] {
    try {
      auto y = net->forward(random_rows(4, 6, 1));
      if (world().rank() == last) y = Throws::apply(y);
      loss_of(y).backward();
    } catch (std::exception const& error) {
      reducer_of(wrapped.runtime()).abandon_step(error.what(), true);
      throw;
    }
  });
  EXPECT_THAT(messages, ::testing::Each(HasSubstr("the data of this rank is broken")));
  for (int r = 0; r < last; ++r) {
    EXPECT_THAT(messages[static_cast<std::size_t>(r)], HasSubstr(text("rank ", last)));
  }
}

}  // namespace
}  // namespace ddp::testing
