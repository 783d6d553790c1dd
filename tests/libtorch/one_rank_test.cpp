// What one rank alone does wrong, or otherwise: every rank hears of it, or gets the right averages.
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <thread>

#include "libtorch/models.hpp"

namespace ddp::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

bool is_last() { return world().rank() == world().size() - 1; }

// A step of every rank, which each of them expects to fail.
template <class Net>
std::vector<std::string> messages_of_step(Net& net) {
  return messages_of([&] { loss_of(net.forward(random_rows(4, 6, 1))).backward(); });
}

struct Words : torch::nn::Module {
  torch::nn::Embedding table =
      register_module("table", torch::nn::Embedding(torch::nn::EmbeddingOptions(7, 3).sparse(is_last())));
  torch::Tensor forward(torch::Tensor const& x) { return table(x.abs().mul(3).to(torch::kLong).clamp(0, 6)); }
};

TEST(LibtorchOneRank, R22SparseGradients) {
  auto net = on_device(std::make_shared<Words>());
  Wrapped wrapped(world(), *net);
  EXPECT_THAT(messages_of_step(*net),
              Each(HasSubstr("the gradient of parameter \"table.weight\" has PyTorch's layout Sparse")));
}

TEST(LibtorchOneRank, R22GradientsWithAGraph) {
  auto net = on_device(std::make_shared<TwoLayers>());
  Wrapped wrapped(world(), *net, small_buckets());
  auto const messages = messages_of(
      [&] { loss_of(net->forward(random_rows(4, 6, 1))).backward({}, {}, /*create_graph=*/is_last()); });
  EXPECT_THAT(messages, Each(HasSubstr("has a graph of its own")));
}

TEST(LibtorchOneRank, R22AParameterThatIsUnfrozen) {
  auto net = on_device(std::make_shared<TwoLayers>());
  net->first->weight.requires_grad_(false);
  Wrapped wrapped(world(), *net, small_buckets());
  if (is_last()) net->first->weight.requires_grad_(true);
  EXPECT_THAT(messages_of_step(*net), Each(HasSubstr("\"first.weight\" did not require a gradient")));
}

TEST(LibtorchOneRank, R22AParameterThatIsAdded) {
  auto net = on_device(std::make_shared<TwoLayers>());
  Wrapped wrapped(world(), *net, small_buckets());
  if (is_last()) net->register_parameter("late", torch::zeros({2}));
  EXPECT_THAT(messages_of_step(*net), Each(HasSubstr("had 4 parameters when it was wrapped, and has 5 now")));
}

TEST(LibtorchOneRank, R22AnotherLayout) {
  auto net = on_device(std::make_shared<TwoLayers>());
  Wrapped wrapped(world(), *net, small_buckets());
  torch::Tensor& weight = net->first->weight;
  if (is_last()) weight.set_data(weight.detach().t().contiguous().t());
  EXPECT_THAT(messages_of_step(*net),
              Each(AllOf(HasSubstr("parameter \"first.weight\" was"), HasSubstr("strides [1, 8] now"))));
}

TEST(LibtorchOneRank, R22AnotherType) {
  auto net = on_device(std::make_shared<TwoLayers>());
  Wrapped wrapped(world(), *net, small_buckets());
  if (is_last()) net->to(torch::kDouble);
  auto const type = is_last() ? torch::kDouble : torch::kFloat;
  auto const messages = messages_of([&] { loss_of(net->forward(random_rows(4, 6, 1).to(type))).backward(); });
  EXPECT_THAT(messages, Each(AllOf(HasSubstr("was Float"), HasSubstr("Double"))));
}

struct WithBuffer : TwoLayers {
  torch::Tensor scale = register_buffer("scale", torch::ones({3}));
  torch::Tensor forward(torch::Tensor const& x) { return TwoLayers::forward(x) * scale; }
};

// That is noticed when the step is over: the others may be told in the next one.
TEST(LibtorchOneRank, R10R22ABufferOfAnotherType) {
  auto net = on_device(std::make_shared<WithBuffer>());
  Wrapped wrapped(world(), *net, small_buckets());
  if (is_last()) net->scale.set_data(net->scale.to(torch::kDouble));
  auto const expected = AllOf(HasSubstr("buffer \"scale\" was"), HasSubstr("Double"));
  EXPECT_THAT(messages_of_step(*net).back(), expected);
  EXPECT_THAT(messages_of_step(*net), Each(expected));
}

TEST(LibtorchOneRank, R22AModuleOnSeveralGpus) {
  if (!libtorch::device(world()).is_cuda() || torch::cuda::device_count() < 2) {
    GTEST_SKIP() << "takes a rank that sees two GPUs";
  }
  uses_other_gpus();
  auto net = on_device(std::make_shared<TwoLayers>());
  auto const other = static_cast<c10::DeviceIndex>(libtorch::device(world()).index() == 0 ? 1 : 0);
  if (is_last()) net->second->to(torch::Device(torch::kCUDA, other));
  auto const messages = messages_of([&] { Wrapped const wrapped(world(), *net); });
  EXPECT_THAT(messages, Each(HasSubstr("a rank has one GPU")));
}

// Its backward pass gives no gradient to the second argument.
struct GivesNone : torch::autograd::Function<GivesNone> {
  static torch::Tensor forward(torch::autograd::AutogradContext* /*context*/, torch::Tensor const& x,
                               torch::Tensor const& /*unused*/) {
    return x.clone();
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* /*context*/,
                                               torch::autograd::tensor_list const& gradients) {
    return {gradients[0], torch::Tensor()};
  }
};

torch::Tensor loss_of_part(TwoLayers& net, torch::Tensor const& rows, bool gives_none) {
  auto const hidden = gives_none ? GivesNone::apply(rows.repeat({1, 2}).slice(1, 0, 8), net.first->weight)
                                 : torch::relu(net.first(rows));
  return loss_of(net.second(hidden));
}

TEST(LibtorchOneRank, R22UndefinedGradientsCountAsZero) {
  auto net = on_device(std::make_shared<TwoLayers>());
  Wrapped wrapped(world(), *net, small_buckets());
  auto whole = copy_of(*net);
  for (std::uint64_t step = 0; step < 3; ++step) {
    auto const rows = random_rows(2 * world().size(), 6, step);
    net->zero_grad();
    loss_of_part(*net, shard(rows), is_last()).backward();
    whole->zero_grad();
    for (int r = 0; r < world().size(); ++r) {
      bool const gives_none = r == world().size() - 1;
      (loss_of_part(*whole, rows.chunk(world().size())[static_cast<std::size_t>(r)], gives_none) /
       world().size())
          .backward();
    }
    if (world().size() > 1) expect_same_gradients(*net, *whole);
    expect_near(net->second->weight.grad(), whole->second->weight.grad());
  }
}

TEST(LibtorchOneRank, R22AGradientOutsideOfABackwardPass) {
  auto net = on_device(std::make_shared<TwoLayers>());
  Wrapped wrapped(world(), *net, small_buckets());
  auto whole = copy_of(*net);
  if (is_last()) {
    auto const accumulate = torch::autograd::impl::grad_accumulator(net->first->weight);
    std::string message;
    try {
      (*accumulate)({torch::ones_like(net->first->weight)});
    } catch (std::exception const& error) {
      message = error.what();
    }
    EXPECT_THAT(message, HasSubstr("accumulated outside of backward()"));
  }
  step_both(*net, *whole, random_rows(2 * world().size(), 6, 2));  // nothing was sent
}

// On a GPU the second pass would wait for the thread that the first one is in.
TEST(LibtorchOneRank, R22TwoBackwardPassesAtOnce) {
  if (libtorch::device(world()).is_cuda()) GTEST_SKIP() << "PyTorch runs the passes of a GPU in one thread";
  auto net = on_device(std::make_shared<TwoLayers>());
  Wrapped wrapped(world(), *net, small_buckets());
  auto const rows = random_rows(4, 6, 1);
  std::string message;
  auto const hidden = torch::relu(net->first(rows));
  hidden.register_hook([&](torch::Tensor const& gradient) {
    std::thread([&] {
      try {
        loss_of(net->forward(rows)).backward();
      } catch (std::exception const& error) {
        message = error.what();
      }
    }).join();
    return gradient;
  });
  loss_of(net->second(hidden)).backward();
  EXPECT_THAT(gathered(message), Each(HasSubstr("two backward passes of one wrapped module run at once")));
}

}  // namespace
}  // namespace ddp::testing
