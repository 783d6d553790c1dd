// Several backward() between two zero_grad(): gradients that the program keeps, of parameters that the later
// ones do not use on some rank or on any.
#include "libtorch/models.hpp"

namespace ddp::testing {
namespace {

struct Parts : torch::nn::Module {
  torch::Tensor a = register_parameter("a", torch::ones({5}));
  torch::Tensor b = register_parameter("b", torch::ones({3, 7}));
  torch::Tensor c = register_parameter("c", torch::ones({2}));
};

double mine(double times) { return times * (world().rank().value() + 1); }
double mean_rank() { return (world().size() + 1) / 2.0; }

// A gradient all of whose elements are `value`.
void expect_all(torch::Tensor const& gradient, double value) {
  ASSERT_TRUE(gradient.defined());
  expect_near(gradient, torch::full_like(gradient, value));
}

TEST(LibtorchAccumulation, R22LossesOfDifferentPartsAddUpToTheGradientsOfTheirSum) {
  for (bool const to_none : {true, false}) {
    auto net = on_device(std::make_shared<Parts>());
    Wrapped wrapped(world(), *net, small_buckets());
    for (int step = 0; step < 3; ++step) {
      net->zero_grad(to_none);
      (net->a * mine(2)).sum().backward();
      (net->b * mine(3)).sum().backward();
      expect_all(net->a.grad(), 2 * mean_rank());
      (net->a * mine(4)).sum().backward();
      expect_all(net->a.grad(), 6 * mean_rank());
      expect_all(net->b.grad(), 3 * mean_rank());
      EXPECT_FALSE(net->c.grad().defined());
    }
    EXPECT_EQ(wrapped.runtime().steps(), 9U);
  }
}

// To the bit, with three ranks too, whose average of equal numbers may differ from them.
TEST(LibtorchAccumulation, R22AGradientOfAParameterThatNoRankUsesStaysAsItIs) {
  for (auto const reduction : {ddp::DistributedDataParallelOptions::Reduction::average,
                               ddp::DistributedDataParallelOptions::Reduction::sum}) {
    auto net = on_device(std::make_shared<Parts>());
    auto options = small_buckets();
    options.runtime.reduction = reduction;
    Wrapped wrapped(world(), *net, options);
    (net->a * mine(0.1)).sum().backward();
    torch::Tensor const before = net->a.grad().clone();
    net->c.mutable_grad() =
        torch::full_like(net->c, mine(7)).detach();  // of the program, on each rank another
    for (int step = 0; step < 3; ++step) {
      (net->b * mine(3)).sum().backward();
      EXPECT_TRUE(torch::equal(net->a.grad(), before)) << "step " << step << ": " << net->a.grad();
      expect_all(net->c.grad(), mine(7));
    }
  }
}

TEST(LibtorchAccumulation, R22ARankThatDoesNotUseAParameterGivesWhatItKept) {
  bool const last = world().rank().value() == world().size() - 1;
  for (bool const skip_unused : {true, false}) {
    auto net = on_device(std::make_shared<Parts>());
    auto options = small_buckets();
    options.skip_unused = skip_unused;
    Wrapped wrapped(world(), *net, options);
    for (int step = 0; step < 3; ++step) {
      net->zero_grad();
      (net->a * mine(2)).sum().backward();
      (last ? (net->a * 6 + net->b.sum()).sum() : net->b.sum()).backward();  // of `a` on one rank
      expect_all(net->a.grad(), 2 * mean_rank() + 6.0 / world().size());
      (net->b * 2).sum().backward();
      expect_all(net->a.grad(), 2 * mean_rank() + 6.0 / world().size());
      expect_all(net->b.grad(), 2 + (world().size() + 4.0) / world().size());  // 5 on one rank, 1 on others
    }
  }
}

TEST(LibtorchAccumulation, R22WeightsOfRanksCountForWhatIsAdded) {
  auto net = on_device(std::make_shared<Parts>());
  Wrapped wrapped(world(), *net, small_buckets());
  bool const last = world().rank().value() == world().size() - 1;
  int const others = world().size() - 1;
  (net->a * 2).sum().backward();
  wrapped.set_weight(last ? 3 : 1);
  (last ? (net->a * 6).sum() : net->b.sum()).backward();
  expect_all(net->a.grad(), 2 + 6 * 3.0 / (3 + others));
  if (others > 0) expect_all(net->b.grad(), 1.0 * others / (3 + others));
}

// Beside one process that clips all it has after each pass.
TEST(LibtorchAccumulation, R15GradientsThatWereKeptAreClippedWithTheOthers) {
  auto net = on_device(std::make_shared<Parts>());
  auto options = small_buckets();
  options.runtime.clip_norm = 5;
  Wrapped wrapped(world(), *net, options);
  auto whole = copy_of(*net);
  for (int step = 0; step < 3; ++step) {
    net->zero_grad();
    whole->zero_grad();
    (net->a * mine(0.5)).sum().backward();
    (whole->a * 0.5 * mean_rank()).sum().backward();
    torch::nn::utils::clip_grad_norm_(whole->parameters(), 5);
    (net->b * mine(3)).sum().backward();
    (whole->b * 3 * mean_rank()).sum().backward();
    double const norm = torch::nn::utils::clip_grad_norm_(whole->parameters(), 5);
    EXPECT_NEAR(wrapped.gradient_norm().item<double>(), norm, 1e-4);
    expect_same_gradients(*net, *whole);
  }
}

}  // namespace
}  // namespace ddp::testing
