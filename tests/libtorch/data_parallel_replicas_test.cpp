// What DataParallel splits, shares and puts together, and how its replicas run.
#include <ATen/autocast_mode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <tuple>
#include <utility>

#include "libtorch/data_parallel_models.hpp"

namespace ddp::testing {
namespace {

class LibtorchReplicas : public OnEachKind {};
INSTANTIATE_TEST_SUITE_P(Devices, LibtorchReplicas, ::testing::Values(DeviceKind::cpu, DeviceKind::cuda),
                         KindName());

// ---- what inputs and outputs may be

using Named = std::map<std::string, torch::Tensor>;
struct Nested : torch::nn::Cloneable<Nested> {
  void reset() override {}
  std::tuple<torch::Tensor, Named, std::vector<torch::Tensor>> forward(
      std::vector<torch::Tensor> const& list, std::pair<torch::Tensor, double> const& pair, Named named,
      std::optional<torch::Tensor> const& mask, std::string const& word, torch::Tensor const& nothing) {
    auto const sum = list[0] + list[1] + pair.first * pair.second + named.at("x") + mask.value_or(pair.first);
    named["x"] = sum + static_cast<double>(word.size());
    return {
        sum, named, {torch::full({sum.size(0)}, static_cast<double>(sum.size(0)), sum.options()), nothing}};
  }
};

TEST_P(LibtorchReplicas, P4P7ContainersAreSplitAndPutTogetherMemberByMember) {
  auto net = make<Nested>();
  DataParallel model(net, replicas(3));
  auto const a = rows(5);
  auto const b = rows(5).requires_grad_();
  std::pair<torch::Tensor, double> const pair(b, 3.0);
  auto const [sum, named, list] =
      model(std::vector<torch::Tensor>{a, b}, pair, Named{{"x", a}}, std::optional<torch::Tensor>(a),
            std::string("four"), torch::Tensor());
  expect_near(sum, 3 * a + 4 * b);
  ASSERT_EQ(named.size(), 1U);
  expect_near(named.at("x"), sum + 4);
  ASSERT_EQ(list.size(), 2U);
  expect_near(list[0], torch::tensor({2, 2, 2, 2, 1}, torch::kDouble));
  EXPECT_FALSE(list[1].defined());
  sum.sum().backward();
  expect_near(b.grad(), torch::full_like(b, 4));
  expect_near(a, pair.first + a - b);  // the program's own containers are as they were
}

struct Loss : torch::nn::Cloneable<Loss> {
  torch::nn::Linear layer{nullptr};
  Loss() { reset(); }
  void reset() override { layer = register_module("layer", torch::nn::Linear(6, 2)); }
  torch::Tensor forward(torch::Tensor const& x, torch::Tensor const& target) {
    return (layer(x) - target).pow(2).sum();
  }
};

TEST_P(LibtorchReplicas, P7P12LossesOnTheReplicasBecomeAVectorWithOneWarning) {
  auto net = make<Loss>();
  auto whole = copy_of(net);
  DataParallel model(net, replicas(3));
  auto const x = rows(5);
  auto const target = rows(5, 2);
  ::testing::internal::CaptureStderr();
  auto const losses = model(x, target);
  static_cast<void>(model(x, target));
  std::string const printed = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(printed.find("returned a scalar"), std::string::npos);
  EXPECT_EQ(printed.find("returned a scalar"), printed.rfind("returned a scalar"));
  ASSERT_EQ(losses.sizes(), torch::IntArrayRef({3}));
  losses.sum().backward();
  whole->forward(x, target).backward();
  expect_same_gradients(*net, *whole);
  EXPECT_EQ(model(rows(1), rows(1, 2)).dim(), 1);
  EXPECT_EQ(DataParallel(net, replicas(1))(x, target).dim(), 0);
}

TEST_P(LibtorchReplicas, P4AnEmptyBatchIsOnePart) {
  auto net = make<TwoLayers>();
  DataParallel model(net, replicas(3));
  auto const output = model(rows(0));
  EXPECT_EQ(output.sizes(), torch::IntArrayRef({0, 3}));
  output.sum().backward();
  expect_near(net->first->weight.grad(), torch::zeros_like(net->first->weight));
}

// ---- threads and their settings

struct Watched : torch::nn::Cloneable<Watched> {
  struct Seen {
    std::mutex mutex;
    std::set<std::thread::id> threads;
    std::set<std::pair<bool, bool>> modes;  // whether autograd records, whether inference mode is on
  };
  std::shared_ptr<Seen> seen = std::make_shared<Seen>();
  torch::nn::Linear layer{nullptr};
  Watched() { reset(); }
  void reset() override { layer = register_module("layer", torch::nn::Linear(6, 2)); }
  torch::Tensor forward(torch::Tensor const& x) {
    std::lock_guard const lock(seen->mutex);
    seen->threads.insert(std::this_thread::get_id());
    seen->modes.emplace(torch::GradMode::is_enabled(), c10::InferenceMode::is_enabled());
    return layer(x);
  }
};

TEST_P(LibtorchReplicas, P6EachReplicaHasAThreadThatLivesBetweenPasses) {
  auto net = make<Watched>();
  DataParallel model(net, replicas(3));
  for (int pass = 0; pass < 3; ++pass) static_cast<void>(model(rows(6)));
  EXPECT_EQ(net->seen->threads.size(), 3U);
  EXPECT_TRUE(net->seen->threads.contains(std::this_thread::get_id()));
}

TEST_P(LibtorchReplicas, P6ReplicasRunWithWhatTheCallerHasSet) {
  auto net = make<Watched>();
  using Modes = std::set<std::pair<bool, bool>>;
  std::optional<DataParallel<Watched>> model;
  {
    c10::InferenceMode const inference;
    model.emplace(net, replicas(3));
    EXPECT_TRUE((*model)(rows(6)).is_inference());
    EXPECT_EQ(std::exchange(net->seen->modes, {}), Modes({{false, true}}));
  }
  {
    torch::NoGradGuard const no_graph;
    EXPECT_FALSE((*model)(rows(6)).requires_grad());
    EXPECT_EQ(std::exchange(net->seen->modes, {}), Modes({{false, false}}));
  }
  EXPECT_TRUE((*model)(rows(6)).requires_grad());
  EXPECT_EQ(net->seen->modes, Modes({{true, false}}));
  net->to(torch::kFloat);
  auto const kind = place().type();
  at::autocast::set_autocast_enabled(kind, true);
  auto const output = (*model)(rows(6).to(torch::kFloat));
  at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(kind, false);
  EXPECT_EQ(output.scalar_type(), at::autocast::get_autocast_dtype(kind));
}

TEST_P(LibtorchReplicas, P6WorkIsInOrderOnTheCallersStreams) {
  if (GetParam() == DeviceKind::cpu) GTEST_SKIP() << "a CPU has no streams";
  auto net = make<TwoLayers>();
  auto whole = copy_of(net);
  DataParallel model(net, replicas(3));
  c10::impl::VirtualGuardImpl const gpu(torch::kCUDA);
  for (int step = 0; step < 4; ++step) {
    c10::StreamGuard const guard(gpu.getStreamFromGlobalPool(place()));
    auto const x = torch::randn({30000, 6}, torch::TensorOptions(place()).dtype(torch::kDouble));
    net->zero_grad();
    whole->zero_grad();
    auto const output = model(x);
    expect_near(output, whole->forward(x));
    loss_of(output).backward();
    loss_of(whole->forward(x)).backward();
    expect_same_gradients(*net, *whole);
  }
}

TEST_P(LibtorchReplicas, P5MakingReplicasTakesNoRandomNumbers) {
  auto net = make<TwoLayers>();
  torch::manual_seed(3);
  auto const expected = torch::rand({4});
  torch::manual_seed(3);
  DataParallel model(net, replicas(3));
  EXPECT_TRUE(torch::equal(torch::rand({4}), expected));
}

}  // namespace
}  // namespace ddp::testing
