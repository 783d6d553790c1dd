// Optimizers that update many parameters at once, beside PyTorch's own.
#include <sstream>

#include "libtorch/ddp/gradient_hook.hpp"
#include "libtorch/models.hpp"

namespace ddp::testing {
namespace {

using ::testing::HasSubstr;
using torch::optim::AdamWOptions;
using torch::optim::OptimizerParamGroup;
using torch::optim::SGDOptions;

std::shared_ptr<TwoLayers> fresh_net() {
  torch::manual_seed(5);
  return on_device(std::make_shared<TwoLayers>());
}

// Steps of `optimizer`, whose parameters are those of `net`; without a gradient of one now and then.
template <class Step>
std::vector<torch::Tensor> train(TwoLayers& net, Step const& step, std::uint64_t steps = 5,
                                 std::uint64_t first = 0) {
  for (std::uint64_t s = first; s < first + steps; ++s) {
    net.zero_grad();
    loss_of(net.forward(random_rows(8, 6, s)) - 1).backward();
    if (s % 3 == 1) net.first->bias.mutable_grad().reset();
    step();
  }
  return values_of(net);
}

template <class Options>
std::vector<OptimizerParamGroup> groups_of(TwoLayers const& net, Options first, Options const& second) {
  std::vector<OptimizerParamGroup> groups;
  groups.emplace_back(net.first->parameters(), std::make_unique<Options>(std::move(first)));
  groups.emplace_back(net.second->parameters(), std::make_unique<Options>(second));
  return groups;
}

template <class Own, class Theirs, class Options>
void gives_the_numbers_of(char const* what, Options const& one, Options const& other) {
  SCOPED_TRACE(what);
  auto const own = fresh_net();
  Own optimizer(groups_of(*own, one, other), one);
  auto const theirs = fresh_net();
  Theirs expected(groups_of(*theirs, one, other), one);
  auto const found = train(*own, [&] { optimizer.step(); });
  auto const values = train(*theirs, [&] { expected.step(); });
  for (std::size_t p = 0; p < found.size(); ++p) expect_near(found[p], values[p], 2e-6);
}

TEST(LibtorchOptimizers, R22TheyGiveTheNumbersOfPyTorch) {
  gives_the_numbers_of<libtorch::AdamW, torch::optim::AdamW>("AdamW", AdamWOptions(0.05),
                                                             AdamWOptions(0.01).weight_decay(0.3));
  gives_the_numbers_of<libtorch::AdamW, torch::optim::AdamW>("amsgrad", AdamWOptions(0.05).amsgrad(true),
                                                             AdamWOptions(0.01).betas({0.8, 0.9}));
  gives_the_numbers_of<libtorch::SGD, torch::optim::SGD>("SGD", SGDOptions(0.1),
                                                         SGDOptions(0.05).weight_decay(0.1));
  gives_the_numbers_of<libtorch::SGD, torch::optim::SGD>("momentum", SGDOptions(0.1).momentum(0.9),
                                                         SGDOptions(0.05).momentum(0.5).weight_decay(0.1));
  gives_the_numbers_of<libtorch::SGD, torch::optim::SGD>(
      "nesterov", SGDOptions(0.1).momentum(0.9).nesterov(true), SGDOptions(0.1).momentum(0.9));
  gives_the_numbers_of<libtorch::SGD, torch::optim::SGD>(
      "dampening", SGDOptions(0.1).momentum(0.9).dampening(0.3), SGDOptions(0.1).momentum(0.9));
}

TEST(LibtorchOptimizers, R15SomeParametersAtATimeIsTheSame) {
  auto const whole = fresh_net();
  libtorch::AdamW at_once(whole->parameters(), AdamWOptions(0.05));
  auto const parts = fresh_net();
  libtorch::AdamW in_parts(parts->parameters(), AdamWOptions(0.05));
  auto const expected = train(*whole, [&] { at_once.step(); });
  auto const found = train(*parts, [&] {
    in_parts.update(parts->second->parameters());
    in_parts.update({});
    in_parts.update(parts->first->parameters());
  });
  EXPECT_EQ(bytes_of_all(found), bytes_of_all(expected));
  EXPECT_THAT(message_of([&] {
                torch::Tensor other = torch::ones({3}, whole->first->weight.options());
                other.mutable_grad() = torch::ones_like(other);
                at_once.update({other});
              }),
              HasSubstr("none of this optimizer's"));
}

TEST(LibtorchOptimizers, R17AStepWhereItIsToldToSkipChangesNothing) {
  auto const net = fresh_net();
  libtorch::AdamW optimizer(net->parameters(), AdamWOptions(0.05));
  auto const before = train(
      *net, [&] { optimizer.step(); }, 2);
  auto const word = [&](float value) { return torch::full({1}, value, net->first->weight.options()); };
  optimizer.skip_where(word(1));
  EXPECT_EQ(bytes_of_all(train(
                *net, [&] { optimizer.step(); }, 2, 2)),
            bytes_of_all(before));
  optimizer.skip_where(word(0));
  auto const after = train(
      *net, [&] { optimizer.step(); }, 2, 2);
  auto const expected = fresh_net();
  libtorch::AdamW plain(expected->parameters(), AdamWOptions(0.05));
  EXPECT_EQ(bytes_of_all(after), bytes_of_all(train(
                                     *expected, [&] { plain.step(); }, 4)));
}

// What DistributedDataParallel leaves at the parameters where its World may be rebuilt on a GPU.
TEST(LibtorchOptimizers, R26TheySkipAStepThatBrokeByThemselves) {
  auto const net = fresh_net();
  libtorch::DistributedDataParallel model(world(), *net);
  EXPECT_FALSE(model.uncommitted().defined()) << "this job was started without --survive";
  libtorch::AdamW optimizer(net->parameters(), AdamWOptions(0.05));
  auto const word = torch::zeros({}, net->first->weight.options().requires_grad(false));
  for (auto const& parameter : net->parameters()) {
    libtorch::GradientHook::of(parameter)->set_uncommitted(word);
  }
  auto const asked = torch::zeros_like(word);
  auto const step = [&] {
    return train(
        *net, [&] { optimizer.step(); }, 1);
  };
  auto const expect_skipped_by = [&](torch::Tensor const& told) {
    auto const before = values_of(*net);
    told.fill_(1);
    EXPECT_EQ(bytes_of_all(step()), bytes_of_all(before));
    told.fill_(0);
    EXPECT_NE(bytes_of_all(step()), bytes_of_all(before));
  };
  expect_skipped_by(word);
  optimizer.skip_where(asked);
  expect_skipped_by(word);
  expect_skipped_by(asked);
}

TEST(LibtorchOptimizers, R24LearningRatesAreReadFromTheDeviceOnceTheyWerePrepared) {
  auto const net = fresh_net();
  libtorch::SGD optimizer(net->parameters(), SGDOptions(0.1));
  auto const expected = fresh_net();
  torch::optim::SGD plain(expected->parameters(), SGDOptions(0.1));
  for (double const rate : {0.1, 0.02}) {
    optimizer.param_groups()[0].options().set_lr(rate);
    plain.param_groups()[0].options().set_lr(rate);
    optimizer.prepare();
    optimizer.param_groups()[0].options().set_lr(99);  // not prepared
    auto const found = train(
        *net, [&] { optimizer.step(); }, 1);
    auto const values = train(
        *expected, [&] { plain.step(); }, 1);
    for (std::size_t p = 0; p < found.size(); ++p) expect_near(found[p], values[p], 2e-6);
  }
}

TEST(LibtorchOptimizers, R22StateIsSavedAndLoaded) {
  auto const net = fresh_net();
  libtorch::AdamW optimizer(net->parameters(), AdamWOptions(0.05).amsgrad(true));
  train(
      *net, [&] { optimizer.step(); }, 2);
  std::stringstream bytes;
  torch::save(optimizer, bytes);
  auto const other = copy_of(*net);
  libtorch::AdamW loaded(other->parameters(), AdamWOptions(0.5));
  torch::load(loaded, bytes);
  auto const expected = train(
      *net, [&] { optimizer.step(); }, 2, 2);
  EXPECT_EQ(bytes_of_all(train(
                *other, [&] { loaded.step(); }, 2, 2)),
            bytes_of_all(expected));
}

TEST(LibtorchOptimizers, OptionsThatCannotBeAreRefused) {
  auto const net = fresh_net();
  auto const adamw = [&](AdamWOptions const& options) {
    return message_of([&] { libtorch::AdamW(net->parameters(), options); });
  };
  EXPECT_THAT(adamw(AdamWOptions(-1)), HasSubstr("lr: it cannot be -1"));
  EXPECT_THAT(adamw(AdamWOptions(1).betas({0.9, 1.0})), HasSubstr("second beta: it cannot be 1"));
  EXPECT_THAT(message_of([&] { libtorch::SGD(net->parameters(), SGDOptions(1).nesterov(true)); }),
              HasSubstr("nesterov"));
}

}  // namespace
}  // namespace ddp::testing
