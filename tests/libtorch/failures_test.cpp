// What wrapped modules refuse, and what ranks hear of each other's failures.
#include <sstream>
#include <stdexcept>

#include "ddp/core/text.hpp"
#include "libtorch/models.hpp"

namespace ddp::testing {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

// Between the layers: the second one's gradients are sent already.
TEST(LibtorchFailures, R22AnExceptionInBackwardReachesEveryRankWithItsReason) {
  auto net = on_device(std::make_shared<TwoLayers>());
  Wrapped wrapped(world(), *net, small_buckets());
  int const last = world().size() - 1;
  auto const messages = messages_of([&] {
    auto hidden = torch::relu(net->first(random_rows(4, 6, 1)));
    if (world().rank() == last) hidden = Throws::apply(hidden);
    loss_of(net->second(hidden)).backward();
  });
  EXPECT_THAT(messages, Each(HasSubstr("the data of this rank is broken")));
  for (int r = 0; r < last; ++r) {
    EXPECT_THAT(messages[static_cast<std::size_t>(r)], HasSubstr(text("rank ", last)));
  }
  auto const later = messages_of([&] { loss_of(net->forward(random_rows(4, 6, 1))).backward(); });
  EXPECT_THAT(later, Each(HasSubstr("cannot be used any more")));
}

TEST(LibtorchFailures, R22AnExceptionInAMicroStepIsThatRanksOwn) {
  auto net = on_device(std::make_shared<TwoLayers>());
  Wrapped wrapped(world(), *net, small_buckets());
  auto whole = copy_of(*net);
  if (world().rank() == 0) {
    auto const guard = wrapped.no_sync();
    EXPECT_ANY_THROW(loss_of(Throws::apply(net->forward(random_rows(4, 6, 1)))).backward());
  }
  step_both(*net, *whole, random_rows(2 * world().size(), 6, 2));
}

TEST(LibtorchFailures, R22AModuleWithoutParametersIsRefused) {
  auto const messages = messages_of([&] {
    torch::nn::ReLU relu;
    Wrapped const wrapped(world(), *relu);
  });
  EXPECT_THAT(messages, Each(HasSubstr("no parameter that requires a gradient")));
}

TEST(LibtorchFailures, R22WhatOneRankRefusesIsAnErrorOnEveryRank) {
  torch::nn::Linear net(2, 2);
  net->to(libtorch::device(world()));
  if (world().rank() == 0) {
    for (auto& parameter : net->parameters()) parameter.requires_grad_(false);
  }
  auto const messages = messages_of([&] { Wrapped const wrapped(world(), *net); });
  EXPECT_THAT(messages, Each(HasSubstr("no parameter that requires a gradient (and 2 that are frozen)")));
  torch::nn::Linear whole(2, 2);
  whole->to(libtorch::device(world()));
  Wrapped const wrapped(world(), *whole);  // the group is as it was
}

TEST(LibtorchFailures, R22ASecondWrapOfAModuleIsRefused) {
  auto net = on_device(std::make_shared<TwoLayers>());
  auto whole = copy_of(*net);
  {
    Wrapped wrapped(world(), *net, small_buckets());
    auto const messages = messages_of([&] { Wrapped const again(world(), *net); });
    EXPECT_THAT(messages, Each(HasSubstr("parameter \"first.weight\" belongs to a DistributedDataParallel")));
  }
  Wrapped again(world(), *net, small_buckets());
  auto fresh = copy_of(*net);
  step_both(*net, *fresh, random_rows(2 * world().size(), 6, 2));
}

TEST(LibtorchFailures, R22ALayerThatTwoModulesShareBelongsToOneWrapper) {
  auto net = on_device(std::make_shared<TwoLayers>());
  torch::nn::Sequential other(net->second, torch::nn::ReLU());
  Wrapped wrapped(world(), *net);
  auto const messages = messages_of([&] { Wrapped const again(world(), *other); });
  EXPECT_THAT(messages, Each(HasSubstr("parameter \"0.weight\" belongs to a DistributedDataParallel")));
}

TEST(LibtorchFailures, R22ModelsThatDifferAreAnErrorOnEveryRank) {
  if (world().size() == 1) GTEST_SKIP() << "takes two ranks";
  torch::nn::Linear net(4, world().rank() == 1 ? 5 : 6);
  net->to(libtorch::device(world()));
  auto const messages = messages_of([&] { Wrapped const wrapped(world(), *net); });
  EXPECT_THAT(messages, Each(HasSubstr("parameter 0 \"weight\" is f32[5,4]")));
}

// Equal shapes, other order of elements.
TEST(LibtorchFailures, R22LayoutsThatDifferAreAnErrorOnEveryRank) {
  if (world().size() == 1) GTEST_SKIP() << "takes two ranks";
  torch::nn::Linear net(4, 4);
  net->to(libtorch::device(world()));
  torch::NoGradGuard const no_graph;
  if (world().rank() == 1) net->weight.set_data(net->weight.t());
  auto const messages = messages_of([&] { Wrapped const wrapped(world(), *net); });
  EXPECT_THAT(messages, Each(HasSubstr("strides")));
}

// ---- changed after wrapping

TEST(LibtorchFailures, R22AParameterThatIsUnfrozenLaterIsAnError) {
  auto net = on_device(std::make_shared<TwoLayers>());
  net->first->weight.requires_grad_(false);
  Wrapped wrapped(world(), *net);
  net->first->weight.requires_grad_(true);
  auto const messages = messages_of([&] { loss_of(net->forward(random_rows(4, 6, 1))).backward(); });
  EXPECT_THAT(messages, Each(HasSubstr("parameter \"first.weight\" did not require a gradient")));
}

TEST(LibtorchFailures, R22AParameterThatIsFrozenLaterIsUnused) {
  auto net = on_device(std::make_shared<TwoLayers>());
  Wrapped wrapped(world(), *net);
  net->first->weight.requires_grad_(false);
  auto whole = copy_of(*net);
  whole->first->weight.requires_grad_(false);
  step_both(*net, *whole, random_rows(2 * world().size(), 6, 2));
}

TEST(LibtorchFailures, R22AParameterThatIsAddedLaterIsAnError) {
  auto net = on_device(std::make_shared<TwoLayers>());
  Wrapped wrapped(world(), *net);
  net->register_parameter("late", torch::zeros({2}));
  auto const messages = messages_of([&] { loss_of(net->forward(random_rows(4, 6, 1))).backward(); });
  EXPECT_THAT(messages, Each(HasSubstr("the module had 4 parameters when it was wrapped, and has 5 now")));
}

TEST(LibtorchFailures, R22AnotherTypeAfterWrappingIsAnError) {
  for (bool const after_a_step : {false, true}) {
    auto net = on_device(std::make_shared<TwoLayers>());
    Wrapped wrapped(world(), *net);
    if (after_a_step) loss_of(net->forward(random_rows(4, 6, 1))).backward();
    net->to(torch::kDouble);
    net->zero_grad();
    auto const messages =
        messages_of([&] { loss_of(net->forward(random_rows(4, 6, 1).to(torch::kDouble))).backward(); });
    EXPECT_THAT(messages[0], HasSubstr("was Float"));
    EXPECT_THAT(messages[0], HasSubstr("Double"));
    EXPECT_THAT(messages[0], HasSubstr("before it is wrapped"));
  }
}

// As torch::load() does.
TEST(LibtorchFailures, R22NewMemoryOfParametersIsFollowed) {
  auto net = on_device(std::make_shared<TwoLayers>());
  Wrapped wrapped(world(), *net, small_buckets());
  torch::manual_seed(5);
  std::stringstream archive;
  torch::save(on_device(std::make_shared<TwoLayers>())->parameters(), archive);
  std::vector<torch::Tensor> loaded;
  torch::load(loaded, archive);
  for (std::size_t p = 0; p < loaded.size(); ++p) net->parameters()[p].set_data(loaded[p]);
  auto whole = copy_of(*net);
  step_both(*net, *whole, random_rows(2 * world().size(), 6, 2));
  for (std::size_t p = 0; p < loaded.size(); ++p) {
    EXPECT_EQ(wrapped.runtime().parameters()[p].value.data, net->parameters()[p].data_ptr());
  }
}

// ---- ends

TEST(LibtorchFailures, R22GradientsOutliveTheWrapperAndHooksDoNot) {
  auto net = on_device(std::make_shared<TwoLayers>());
  auto const rows = random_rows(4, 6, 1);
  torch::Tensor kept;
  {
    Wrapped wrapped(world(), *net, small_buckets());
    loss_of(net->forward(rows)).backward();
    kept = net->first->weight.grad().clone();
  }
  EXPECT_TRUE(torch::equal(net->first->weight.grad(), kept));
  if (world().rank() == 0) {  // alone: nothing is sent
    loss_of(net->forward(rows)).backward();
    expect_near(net->first->weight.grad(), 2 * kept);
    net->zero_grad();
    loss_of(net->forward(rows)).backward();
    expect_near(net->first->weight.grad(), kept);
  }
}

TEST(LibtorchFailures, R22AWrapperMoves) {
  auto net = on_device(std::make_shared<TwoLayers>());
  auto other = on_device(std::make_shared<TwoLayers>());
  Wrapped first(world(), *net, small_buckets());
  Wrapped second(std::move(first));
  Wrapped third(world(), *other, small_buckets());
  third = std::move(second);
  auto whole = copy_of(*net);
  step_both(*net, *whole, random_rows(2 * world().size(), 6, 2));
  Wrapped again(world(), *other);  // its hooks went when another was moved into its wrapper
}

// The wrapper keeps what a shared_ptr owned.
TEST(LibtorchFailures, R22AModuleMayGoFirst) {
  auto net = on_device(std::make_shared<TwoLayers>());
  Wrapped wrapped(world(), *net, small_buckets());
  auto const loss = loss_of(net->forward(random_rows(4, 6, 1)));
  net.reset();
  loss.backward();
  EXPECT_EQ(wrapped.runtime().steps(), 1U);
}

}  // namespace
}  // namespace ddp::testing
