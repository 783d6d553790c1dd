// Small modules, and what ranks have in common.
#pragma once

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "ddp/libtorch.hpp"
#include "libtorch/same_gradients.hpp"
#include "support/errors.hpp"
#include "support/ranks/multi_process.hpp"

namespace ddp::testing {

using Wrapped = libtorch::DistributedDataParallel;

/// Several buckets, and an order of arrival that is not the plan's.
inline Wrapped::Options small_buckets() {
  Wrapped::Options options;
  options.runtime.bucket_bytes = Bytes{256};
  options.runtime.first_bucket_bytes = Bytes{64};
  return options;
}

/// Two layers; what each is used for is up to forward().
struct TwoLayers : torch::nn::Module {
  torch::nn::Linear first = register_module("first", torch::nn::Linear(6, 8));
  torch::nn::Linear second = register_module("second", torch::nn::Linear(8, 3));
  torch::Tensor forward(torch::Tensor const& x) { return second(torch::relu(first(x))); }
};

/// With a branch that only some ranks use, and one that none does.
struct Branches : torch::nn::Module {
  torch::nn::Linear first = register_module("first", torch::nn::Linear(6, 8));
  torch::nn::Linear sometimes = register_module("sometimes", torch::nn::Linear(8, 8));
  torch::nn::Linear never = register_module("never", torch::nn::Linear(8, 8));
  torch::nn::Linear last = register_module("last", torch::nn::Linear(8, 3));
  torch::Tensor forward(torch::Tensor const& x, bool both) {
    auto const hidden = torch::relu(first(x));
    return last(both ? hidden + sometimes(hidden) : hidden);
  }
};

/// Passes values on; its backward pass throws.
struct Throws : torch::autograd::Function<Throws> {
  static torch::Tensor forward(torch::autograd::AutogradContext* /*context*/, torch::Tensor const& x) {
    return x.clone();
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* /*context*/,
                                               torch::autograd::tensor_list const& /*gradients*/) {
    throw std::runtime_error("the data of this rank is broken");
  }
};

inline torch::Tensor loss_of(torch::Tensor const& output) { return (output * output).mean(); }

/// The same values on every rank that calls it with the same seed.
inline torch::Tensor random_rows(std::int64_t rows, std::int64_t columns, std::uint64_t seed) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  return torch::randn({rows, columns}, generator).to(libtorch::device(world()));
}

/// This rank's equal part of the rows.
inline torch::Tensor shard(torch::Tensor const& rows) {
  return rows.chunk(world().size()).at(world().rank().index());
}

template <class Module>
std::shared_ptr<Module> on_device(std::shared_ptr<Module> module) {
  module->to(libtorch::device(world()));
  return module;
}

/// A copy of `from` that no rank shares.
template <class Module>
std::shared_ptr<Module> copy_of(Module const& from) {
  auto copy = on_device(std::make_shared<Module>());
  torch::NoGradGuard const no_graph;
  auto const parameters = from.parameters();
  auto const buffers = from.buffers();
  for (std::size_t p = 0; p < parameters.size(); ++p) copy->parameters()[p].copy_(parameters[p]);
  for (std::size_t b = 0; b < buffers.size(); ++b) copy->buffers()[b].copy_(buffers[b]);
  return copy;
}

/// Copies of the parameters.
inline std::vector<torch::Tensor> values_of(torch::nn::Module const& module) {
  std::vector<torch::Tensor> values;
  for (auto const& parameter : module.parameters()) values.push_back(parameter.detach().clone());
  return values;
}

/// The bytes of all tensors.
inline std::string bytes_of_all(std::vector<torch::Tensor> const& tensors) {
  std::string bytes;
  for (torch::Tensor const& tensor : tensors) {
    torch::Tensor const here = tensor.detach().cpu().contiguous();
    bytes.append(static_cast<char const*>(here.const_data_ptr()), here.nbytes());
  }
  return bytes;
}

inline void expect_equal_on_ranks(std::vector<torch::Tensor> const& tensors) {
  auto const all = gathered(bytes_of_all(tensors));
  for (std::size_t r = 1; r < all.size(); ++r) EXPECT_TRUE(all[r] == all[0]) << "rank " << r << " differs";
}

inline void expect_near(torch::Tensor const& found, torch::Tensor const& expected, double tolerance = 1e-5) {
  ASSERT_TRUE(found.defined());
  ASSERT_TRUE(expected.defined());
  EXPECT_TRUE(torch::allclose(found, expected, tolerance, tolerance)) << found << "\nexpected\n" << expected;
}

inline void expect_same_gradients(torch::nn::Module const& found, torch::nn::Module const& expected) {
  expect_same_gradients(found, expected, [](auto const& one, auto const& other) { expect_near(one, other); });
}

/// A step of `net` on this rank's part of `rows`, and one of `whole`, which no rank shares, on all of them.
template <class Net>
void step_both(Net& net, Net& whole, torch::Tensor const& rows, bool to_none = true) {
  net.zero_grad(to_none);
  whole.zero_grad();
  loss_of(net.forward(shard(rows))).backward();
  loss_of(whole.forward(rows)).backward();
  expect_same_gradients(net, whole);
}

/// The message that a call ends with, on every rank; empty where it does not. No rank begins before all have
/// done with what they called earlier, or the failure of one that is ahead would end that.
template <class Call>
std::vector<std::string> messages_of(Call call) {
  if (libtorch::device(world()).is_cuda()) torch::cuda::synchronize();
  world().barrier();
  std::string mine;
  try {
    call();
  } catch (std::exception const& error) {
    mine = error.what();
    if (mine.empty()) mine = "no message";
  }
  return gathered(mine);
}

}  // namespace ddp::testing
