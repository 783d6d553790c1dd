// Modules of every kind: what their parameters and graphs may be.
#include "libtorch/models.hpp"
#include "parallel/ddp/reducer_access.hpp"

namespace ddp::testing {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

struct Forms : torch::nn::Module {
  torch::Tensor transposed = register_parameter("transposed", torch::randn({4, 6}).t());
  torch::Tensor scalar = register_parameter("scalar", torch::randn({}));
  torch::Tensor column = register_parameter("column", torch::randn({1, 4}).t());
  torch::Tensor forward(torch::Tensor const& x) { return x.matmul(transposed) * scalar + column.sum(); }
};

TEST(LibtorchModules, R22ParametersMayLieInAnyDenseOrder) {
  for (bool const to_none : {true, false}) {
    auto net = on_device(std::make_shared<Forms>());
    ASSERT_FALSE(net->transposed.is_contiguous());
    Wrapped wrapped(world(), *net, small_buckets());
    auto whole = copy_of(*net);
    for (std::uint64_t step = 0; step < 3; ++step) {
      step_both(*net, *whole, random_rows(2 * world().size(), 6, step), to_none);
      EXPECT_EQ(net->transposed.grad().strides(), net->transposed.strides());
      EXPECT_EQ(net->transposed.grad().data_ptr(), reducer_of(wrapped.runtime()).gradient(0).data);
    }
  }
}

struct Convolution : torch::nn::Module {
  torch::nn::Conv2d conv = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(4, 6, 3)));
  torch::Tensor forward(torch::Tensor const& x) {
    return conv(x.view({-1, 4, 5, 5}).contiguous(at::MemoryFormat::ChannelsLast));
  }
};

TEST(LibtorchModules, R22ParametersMayBeChannelsLast) {
  auto net = on_device(std::make_shared<Convolution>());
  net->conv->weight.set_data(net->conv->weight.contiguous(at::MemoryFormat::ChannelsLast));
  Wrapped wrapped(world(), *net, small_buckets());
  auto whole = copy_of(*net);
  for (std::uint64_t step = 0; step < 3; ++step) {
    step_both(*net, *whole, random_rows(2 * world().size(), 100, step));
    EXPECT_TRUE(net->conv->weight.grad().is_contiguous(at::MemoryFormat::ChannelsLast));
  }
}

struct Complex : torch::nn::Module {
  torch::Tensor weight = register_parameter("weight", torch::randn({5, 3}, torch::kComplexFloat));
  torch::Tensor phase = register_buffer("phase", torch::randn({3}, torch::kComplexFloat));
  torch::Tensor forward(torch::Tensor const& x) {
    return torch::abs(x.to(torch::kComplexFloat).matmul(weight.conj()) + phase);
  }
};

TEST(LibtorchModules, R22ParametersMayBeComplex) {
  for (bool const to_none : {true, false}) {
    auto net = on_device(std::make_shared<Complex>());
    Wrapped wrapped(world(), *net, small_buckets());
    expect_equal_on_ranks(net->parameters());
    expect_equal_on_ranks(net->buffers());
    auto whole = copy_of(*net);
    for (std::uint64_t step = 0; step < 3; ++step) {
      step_both(*net, *whole, random_rows(2 * world().size(), 5, step), to_none);
      EXPECT_TRUE(net->weight.grad().is_complex());
    }
  }
}

TEST(LibtorchModules, R22ParametersMayHaveSeveralTypes) {
  auto net = on_device(std::make_shared<TwoLayers>());
  net->first->to(torch::kDouble);
  net->second->to(torch::kBFloat16);
  Wrapped wrapped(world(), *net, small_buckets());
  expect_equal_on_ranks(net->parameters());
  for (int step = 0; step < 3; ++step) {
    net->zero_grad();
    auto const hidden = torch::relu(net->first(random_rows(4, 6, 1).to(torch::kDouble)));
    loss_of(net->second(hidden.to(torch::kBFloat16))).backward();
    EXPECT_EQ(net->first->weight.grad().scalar_type(), torch::kDouble);
    EXPECT_EQ(net->second->weight.grad().scalar_type(), torch::kBFloat16);
  }
}

struct Words : torch::nn::Module {
  torch::nn::Embedding table;
  explicit Words(bool sparse = true)
      : table(register_module("table",
                              torch::nn::Embedding(torch::nn::EmbeddingOptions(7, 3).sparse(sparse)))) {}
  torch::Tensor forward(torch::Tensor const& x) { return table(x.abs().mul(3).to(torch::kLong).clamp(0, 6)); }
};

TEST(LibtorchModules, R22SparseGradientsAreRefusedByName) {
  auto net = on_device(std::make_shared<Words>());
  Wrapped wrapped(world(), *net);
  auto const messages = messages_of([&] { net->forward(random_rows(2, 4, 1)).sum().backward(); });
  EXPECT_THAT(messages[0],
              HasSubstr("the gradient of parameter \"table.weight\" has PyTorch's layout Sparse"));
  EXPECT_THAT(messages[0], HasSubstr("sparse(false)"));
}

TEST(LibtorchModules, R22SparseGradientsAreMadeDenseOnRequest) {
  auto net = on_device(std::make_shared<Words>());
  auto options = small_buckets();
  options.sparse = Wrapped::Options::Sparse::densify;
  Wrapped wrapped(world(), *net, options);
  auto dense = on_device(std::make_shared<Words>(false));
  {
    torch::NoGradGuard const no_graph;
    dense->table->weight.copy_(net->table->weight);
  }
  for (std::uint64_t step = 0; step < 3; ++step) {
    step_both(*net, *dense, random_rows(2 * world().size(), 4, step), step < 2);
  }
}

struct Small : torch::nn::Module {
  explicit Small(at::ScalarType type) {
    register_module("layer", torch::nn::Linear(2, 2));
    register_buffer("scale", torch::zeros({2}).to(type));
  }
};

TEST(LibtorchModules, R22ElementsThatCannotBeSentAreRefusedByName) {
  auto net = on_device(std::make_shared<Small>(at::kFloat8_e4m3fn));
  auto const messages = messages_of([&] { Wrapped const wrapped(world(), *net); });
  EXPECT_THAT(messages, Each(HasSubstr("buffer \"scale\" has elements of PyTorch's type Float8_e4m3fn")));
}

TEST(LibtorchModules, R22BuffersMayBeBoolAndSmallIntegers) {
  for (at::ScalarType const type : {at::kBool, at::kChar, at::kShort, at::kLong, at::kByte}) {
    auto net = on_device(std::make_shared<Small>(type));
    net->buffers()[0].fill_(world().rank() == 0);
    Wrapped const wrapped(world(), *net);
    EXPECT_EQ(net->buffers()[0].sum().item<int>(), 2) << type;
  }
}

// ---- graphs

TEST(LibtorchModules, R22AProgramMayHaveSeveralWrappers) {
  auto net = on_device(std::make_shared<TwoLayers>());
  auto other = on_device(std::make_shared<TwoLayers>());
  Wrapped wrapped(world(), *net, small_buckets());
  Wrapped wrapped_other(world(), *other, small_buckets());
  auto whole = copy_of(*net);
  auto whole_other = copy_of(*other);
  for (std::uint64_t step = 0; step < 3; ++step) {
    auto const rows = random_rows(2 * world().size(), 6, step);
    for (auto const& each : {net, other, whole, whole_other}) each->zero_grad();
    (loss_of(net->forward(shard(rows))) + loss_of(other->forward(shard(rows)))).backward();
    (loss_of(whole->forward(rows)) + loss_of(whole_other->forward(rows))).backward();
    expect_same_gradients(*net, *whole);
    expect_same_gradients(*other, *whole_other);
    step_both(*other, *whole_other, rows);
  }
}

// The size of a gradient, as Wasserstein GANs train it: the inner pass does not reach the hooks.
TEST(LibtorchModules, R22DoubleBackwardThroughGradients) {
  auto net = on_device(std::make_shared<TwoLayers>());
  Wrapped wrapped(world(), *net, small_buckets());
  auto whole = copy_of(*net);
  auto const backward = [](TwoLayers& module, torch::Tensor const& rows) {
    auto const x = rows.detach().clone().requires_grad_();
    auto const output = loss_of(module.forward(x)) * static_cast<double>(rows.size(0));
    auto const slope =
        torch::autograd::grad({output}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true)[0];
    (output / rows.size(0) + slope.pow(2).sum(1).mean()).backward();
  };
  for (std::uint64_t step = 0; step < 3; ++step) {
    auto const rows = random_rows(2 * world().size(), 6, step);
    net->zero_grad();
    whole->zero_grad();
    backward(*net, shard(rows));
    backward(*whole, rows);
    expect_same_gradients(*net, *whole);
  }
  EXPECT_EQ(wrapped.runtime().steps(), 3U);
}

TEST(LibtorchModules, R22GradientsWithAGraphAreRefused) {
  auto net = on_device(std::make_shared<TwoLayers>());
  Wrapped wrapped(world(), *net);
  auto const messages = messages_of(
      [&] { loss_of(net->forward(random_rows(4, 6, 1))).backward({}, true, /*create_graph=*/true); });
  EXPECT_THAT(messages[0], HasSubstr("has a graph of its own"));
}

TEST(LibtorchModules, R22TwoBackwardPassesOfOneForwardAddUp) {
  auto net = on_device(std::make_shared<TwoLayers>());
  Wrapped wrapped(world(), *net, small_buckets());
  auto whole = copy_of(*net);
  auto const rows = random_rows(2 * world().size(), 6, 1);
  auto const twice = [](TwoLayers& module, torch::Tensor const& x) {
    auto const output = module.forward(x);
    loss_of(output).backward({}, /*retain_graph=*/true);
    output.sum(1).mean().backward();
  };
  twice(*net, shard(rows));
  twice(*whole, rows);
  expect_same_gradients(*net, *whole);
  EXPECT_EQ(wrapped.runtime().steps(), 2U);
}

TEST(LibtorchModules, R22ForwardWithoutBackwardIsNoStep) {
  auto net = on_device(std::make_shared<TwoLayers>());
  Wrapped wrapped(world(), *net, small_buckets());
  auto whole = copy_of(*net);
  for (int i = 0; i < world().rank().value() + 1; ++i) net->forward(random_rows(4, 6, 1));
  step_both(*net, *whole, random_rows(2 * world().size(), 6, 2));
  EXPECT_EQ(wrapped.runtime().steps(), 1U);
}

// Runs its part of the forward pass again in backward(), as activation checkpointing does, and a backward
// pass of its own inside.
struct Recomputed : torch::autograd::Function<Recomputed> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context, torch::Tensor const& x,
                               std::int64_t layer) {
    context->save_for_backward({x});
    context->saved_data["layer"] = layer;
    torch::NoGradGuard const no_graph;
    return run(layer, x);
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* context,
                                               torch::autograd::tensor_list const& gradients) {
    torch::AutoGradMode const graph(true);
    auto const x = context->get_saved_variables()[0].detach().requires_grad_();
    run(context->saved_data["layer"].toInt(), x).backward(gradients[0]);
    return {x.grad(), torch::Tensor()};
  }
  static torch::Tensor run(std::int64_t layer, torch::Tensor const& x) {
    return torch::tanh(reinterpret_cast<torch::nn::LinearImpl*>(layer)->forward(x));
  }
};

struct Checkpointed : torch::nn::Module {
  bool recomputes = true;
  torch::nn::Linear a = register_module("a", torch::nn::Linear(6, 6));
  torch::nn::Linear b = register_module("b", torch::nn::Linear(6, 6));
  torch::Tensor forward(torch::Tensor const& x) { return through(b, through(a, x)); }
  torch::Tensor through(torch::nn::Linear layer, torch::Tensor const& x) const {
    if (!recomputes) return torch::tanh(layer->forward(x));
    auto const input = x.requires_grad() ? x : x.detach().clone().requires_grad_();
    return Recomputed::apply(input, reinterpret_cast<std::int64_t>(layer.get()));
  }
};

// All parameters are reached by the inner passes alone.
TEST(LibtorchModules, R22ReentrantBackwardIsOneStep) {
  auto net = on_device(std::make_shared<Checkpointed>());
  Wrapped wrapped(world(), *net, small_buckets());
  auto whole = copy_of(*net);
  whole->recomputes = false;
  for (std::uint64_t step = 0; step < 3; ++step) {
    step_both(*net, *whole, random_rows(2 * world().size(), 6, step), step < 2);
  }
  EXPECT_EQ(wrapped.runtime().steps(), 3U);
}

}  // namespace
}  // namespace ddp::testing
