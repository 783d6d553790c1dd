// Modules whose batch normalisation is replaced.
#include "libtorch/normalised_models.hpp"

namespace ddp::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using torch::nn::BatchNormOptions;

struct Holder : torch::nn::Module {
  torch::nn::BatchNorm2d held = register_module("held", torch::nn::BatchNorm2d(4));
  torch::Tensor forward(torch::Tensor const& x) { return held(x); }
};

// PyTorch's Sequential holds no other one directly.
struct Inner : torch::nn::Module {
  torch::nn::Sequential layers =
      register_module("layers", torch::nn::Sequential(torch::nn::Linear(6, 5), torch::nn::BatchNorm1d(5)));
  torch::Tensor forward(torch::Tensor const& x) { return layers->forward(x); }
};

torch::nn::Sequential nested() {
  torch::nn::Sequential net;
  net->push_back("inner", std::make_shared<Inner>());
  net->push_back("norm", torch::nn::BatchNorm1d(BatchNormOptions(5).eps(0.1)));
  net->push_back("plain", torch::nn::BatchNorm1d(BatchNormOptions(5).affine(false).momentum(0.5)));
  net->push_back("bare", torch::nn::BatchNorm1d(BatchNormOptions(5).track_running_stats(false)));
  net->to(libtorch::device(world()));
  return net;
}

TEST(LibtorchSyncBatchNorm, R22ConversionKeepsNamesTensorsOptionsAndMode) {
  auto net = nested();
  net->forward(random({7, 6}, 1));  // statistics that are not the first ones
  net[1]->eval();
  auto const parameters = net->named_parameters();
  auto const buffers = net->named_buffers();
  EXPECT_EQ(libtorch::convert_sync_batchnorm(world(), *net), 4U);
  EXPECT_EQ(libtorch::convert_sync_batchnorm(world(), *net), 0U);

  EXPECT_EQ(net->named_parameters().keys(), parameters.keys());
  EXPECT_EQ(net->named_buffers().keys(), buffers.keys());
  for (auto const& parameter : net->named_parameters()) {
    EXPECT_TRUE(parameter.value().is_same(parameters[parameter.key()])) << parameter.key();
  }
  for (auto const& buffer : net->named_buffers()) {
    EXPECT_EQ(buffer.value().data_ptr(), buffers[buffer.key()].data_ptr()) << buffer.key();
  }
  auto const* const norm = net[1]->as<SyncBatchNorm>();
  ASSERT_NE(norm, nullptr);
  EXPECT_FALSE(norm->is_training());
  EXPECT_EQ(norm->options.eps(), 0.1);
  EXPECT_TRUE(norm->weight.is_same(parameters["norm.weight"]));
  EXPECT_TRUE(net[2]->as<SyncBatchNorm>()->is_training());
  EXPECT_EQ(net[2]->as<SyncBatchNorm>()->options.momentum(), 0.5);
}

// The containers call what stands in their lists, not what is registered.
TEST(LibtorchSyncBatchNorm, R22ConvertedContainersNormaliseOverAllRanks) {
  auto net = nested();
  auto whole = nested();
  libtorch::convert_sync_batchnorm(world(), *net);
  Wrapped wrapped(world(), *net, small_buckets());
  copy_parameters(*net, *whole);
  auto const all = random({4 * world().size(), 6}, 1);
  auto const y = net->forward(shard(all));
  auto const y_whole = whole->forward(all);
  expect_near(y, shard(y_whole));
  loss_of(y).backward();
  loss_of(y_whole).backward();
  expect_same_gradients(*net, *whole);
  EXPECT_THAT(message_of([&] { libtorch::convert_sync_batchnorm(world(), *net); }),
              HasSubstr("before the module is wrapped"));
}

struct Containers : torch::nn::Module {
  torch::nn::BatchNorm2d shared{4};
  torch::nn::ModuleList list = register_module("list", torch::nn::ModuleList(shared, torch::nn::ReLU()));
  torch::nn::ModuleDict dictionary = register_module("dictionary", torch::nn::ModuleDict());
  Containers() { dictionary->update({{"a", shared.ptr()}, {"b", torch::nn::BatchNorm3d(2).ptr()}}); }
};

TEST(LibtorchSyncBatchNorm, R22ListsAndDictionariesAreConvertedAndSharingStays) {
  auto net = std::make_shared<Containers>();
  EXPECT_EQ(libtorch::convert_sync_batchnorm(world(), *net), 2U);
  ASSERT_NE(net->list[0]->as<SyncBatchNorm>(), nullptr);
  EXPECT_EQ(net->list[0], net->dictionary["a"]);
  EXPECT_NE(net->dictionary["b"]->as<SyncBatchNorm>(), nullptr);
  EXPECT_EQ(net->list->named_children()["0"], net->list[0]);
  EXPECT_EQ(net->dictionary->named_children()["a"], net->list[0]);
}

TEST(LibtorchSyncBatchNorm, R22WhatAClassHoldsByItsTypeIsNamedAndNothingIsChanged) {
  torch::nn::Sequential net(torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 4, 3)), torch::nn::BatchNorm2d(4),
                            std::make_shared<Holder>());
  EXPECT_THAT(
      message_of([&] { libtorch::convert_sync_batchnorm(world(), *net); }),
      AllOf(HasSubstr("\"2.held\""), Not(HasSubstr("\"1\"")), HasSubstr("SyncBatchNorm(world, channels)")));
  EXPECT_NE(net[1]->as<torch::nn::BatchNorm2d>(), nullptr);
  torch::nn::BatchNorm2d alone(4);
  EXPECT_THAT(message_of([&] { libtorch::convert_sync_batchnorm(world(), *alone); }),
              HasSubstr("the module itself"));
}

TEST(LibtorchSyncBatchNorm, R22ACloneTrainsWithTensorsOfItsOwn) {
  SyncBatchNorm norm(world(), 4);
  norm->to(libtorch::device(world()));
  auto copy = std::dynamic_pointer_cast<libtorch::SyncBatchNormImpl>(norm->clone());
  ASSERT_NE(copy, nullptr);
  auto const all = random({2 * world().size(), 4}, 1);
  auto const y = copy->forward(shard(all));
  EXPECT_EQ(norm->num_batches_tracked.item<std::int64_t>(), 0);
  expect_near(norm(shard(all)), y);
}

}  // namespace
}  // namespace ddp::testing
