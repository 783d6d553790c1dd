// What DataParallel refuses, what replicas throw, and where a module runs alone.
#include <atomic>
#include <stdexcept>
#include <tuple>

#include "ddp/core/text.hpp"
#include "libtorch/data_parallel_models.hpp"

namespace ddp::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class LibtorchDataParallelErrors : public OnEachKind {};
INSTANTIATE_TEST_SUITE_P(Devices, LibtorchDataParallelErrors,
                         ::testing::Values(DeviceKind::cpu, DeviceKind::cuda), KindName());

// ---- of replicas

// Fails where its part begins with a negative number, which says how.
struct Fragile : torch::nn::Cloneable<Fragile> {
  std::shared_ptr<std::atomic<int>> begun = std::make_shared<std::atomic<int>>(0);
  void reset() override {}
  torch::Tensor forward(torch::Tensor const& x) {
    ++*begun;
    switch (x[0].item<int>()) {
      case -1:
        throw std::runtime_error("broken");
      case -2:
        throw Error(ErrorCode::not_found, "gone");
      case -3:
        throw CommError(ErrorCode::timeout, "late");
      case -4:
        TORCH_CHECK(false, "checked");
      case -5:
        throw 5;
      default:
        return x + 1;
    }
  }
};

TEST_P(LibtorchDataParallelErrors, P6TheLowestReplicasErrorIsThrownWhenAllHaveEnded) {
  auto net = make<Fragile>();
  DataParallel model(net, replicas(4));
  auto const options = replicas(4);
  auto const run = [&](int second, int third) {
    static_cast<void>(model(torch::tensor({1, second, third, 1}, torch::kDouble)));
  };
  struct Case {
    int number;
    ErrorCode code;
    std::string message;
  };
  for (Case const& each :
       {Case{-1, ErrorCode::invalid_state, "broken"}, Case{-2, ErrorCode::not_found, "gone"},
        Case{-3, ErrorCode::timeout, "late"}, Case{-4, ErrorCode::invalid_state, "checked"},
        Case{-5, ErrorCode::invalid_state, "no std::exception"}}) {
    *net->begun = 0;
    auto const error = error_of([&] { run(each.number, -1); });
    EXPECT_EQ(error.code(), each.code);
    EXPECT_THAT(error.what(), AllOf(HasSubstr(text("replica 1 on ", (*options.device_ids)[1], ": ")),
                                    HasSubstr(each.message)));
    EXPECT_EQ(*net->begun, 4);
    EXPECT_THAT(message_of([&] { run(1, each.number); }), HasSubstr("replica 2 on "));
  }
  EXPECT_EQ(error_of<CommError>([&] { run(-3, 1); }).code(), ErrorCode::timeout);
  expect_near(model(torch::ones({4}, torch::kDouble)), torch::full({4}, 2, torch::kDouble));
}

struct Recursive : torch::nn::Cloneable<Recursive> {
  std::shared_ptr<DataParallel<TwoLayers>> inner;
  void reset() override {}
  torch::Tensor forward(torch::Tensor const& x) { return inner->forward(x); }
};

TEST_P(LibtorchDataParallelErrors, P13AWrapperWithinAReplicaIsRefused) {
  auto net = make<Recursive>();
  net->inner = std::make_shared<DataParallel<TwoLayers>>(make<TwoLayers>(), replicas(2));
  DataParallel model(net, replicas(2));
  auto const error = error_of([&] { static_cast<void>(model(rows(4))); });
  EXPECT_EQ(error.code(), ErrorCode::invalid_state);
  EXPECT_THAT(error.what(), HasSubstr("inside of a replica"));
  EXPECT_EQ(net->inner->forward(rows(4)).size(0), 4);
}

// ---- of the program

TEST_P(LibtorchDataParallelErrors, P4InputsThatCannotBeSplitAreNamed) {
  struct Any : torch::nn::Cloneable<Any> {
    void reset() override {}
    torch::Tensor forward(torch::Tensor const& x, double /*unused*/) { return x; }
    torch::Tensor forward(std::vector<torch::Tensor> const& list) { return list[0]; }
    torch::Tensor forward(double /*unused*/) { return torch::ones({1}); }
  };
  auto net = make<Any>();
  DataParallel model(net, replicas(3));
  auto const message = [&](auto const&... inputs) {
    auto const error = error_of([&] { static_cast<void>(model(inputs...)); });
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return std::string(error.what());
  };
  EXPECT_THAT(message(1.0), HasSubstr("none of the inputs is a tensor"));
  EXPECT_THAT(message(torch::Tensor(), 1.0), HasSubstr("none of the inputs is a tensor"));
  EXPECT_THAT(message(torch::tensor(1.0), 1.0),
              AllOf(HasSubstr("input 0 is"), HasSubstr("has no dimension 0 to be split along")));
  EXPECT_THAT(message(std::vector<torch::Tensor>{rows(5), rows(2)}),
              AllOf(HasSubstr("over 3 devices, input 0[0] (Double [5, 6]) falls into 3 chunks"),
                    HasSubstr("input 0[1] (Double [2, 6]) into 2")));
  auto options = replicas(2);
  options.dim = 2;
  DataParallel deep(net, options);
  EXPECT_THAT(message_of([&] { static_cast<void>(deep(rows(4), 1.0)); }), HasSubstr("no dimension 2"));
}

TEST_P(LibtorchDataParallelErrors, P7OutputsThatDifferNameTheReplica) {
  using Outputs = std::vector<torch::Tensor>;
  struct Changing : torch::nn::Cloneable<Changing> {
    void reset() override {}
    Outputs forward(torch::Tensor const& x) {
      switch (x[0].item<int>()) {
        case 1:
          return {x, x};
        case 2:
          return {x.to(torch::kFloat)};
        case 3:
          return {x.view({-1, 1})};
        case 4:
          return {torch::Tensor()};
        default:
          return {x};
      }
    }
  };
  auto net = make<Changing>();
  DataParallel model(net, replicas(3));
  auto const message = [&](int second) {
    auto const error = error_of([&] {
      static_cast<void>(model(torch::tensor({0, second, 0}, torch::kDouble)));
    });
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return std::string(error.what());
  };
  EXPECT_THAT(message(1), AllOf(HasSubstr("replica 1 returned the output[0], the output[1], replica 0 the"),
                                HasSubstr("as many members")));
  EXPECT_THAT(message(2),
              HasSubstr("the output[0] of replica 1 is Float [1], that of replica 0 is Double [1]"));
  EXPECT_THAT(message(3), HasSubstr("of replica 1 is Double [1, 1], that of replica 0 is Double [1]"));
  EXPECT_THAT(message(4), HasSubstr("of replica 1 is undefined, that of replica 0 is Double [1]"));
}

struct NotCloneable : torch::nn::Module {
  torch::nn::Linear layer = register_module("layer", torch::nn::Linear(6, 2));
  torch::Tensor forward(torch::Tensor const& x) { return layer(x); }
};
struct MadeOutsideOfReset : torch::nn::Cloneable<MadeOutsideOfReset> {
  torch::Tensor weight = register_parameter("weight", torch::ones({6}));
  void reset() override {}
  torch::Tensor forward(torch::Tensor const& x) { return x * weight; }
};
struct OtherClone : torch::nn::Module {
  explicit OtherClone(std::int64_t width) { register_parameter("weight", torch::ones({width})); }
  torch::Tensor forward(torch::Tensor const& x) { return x; }
  std::shared_ptr<torch::nn::Module> clone(std::optional<torch::Device> const& device) const override {
    auto made = std::make_shared<OtherClone>(3);
    made->to(device.value_or(torch::kCPU));
    return made;
  }
};

TEST_P(LibtorchDataParallelErrors, P5AModuleThatCannotBeClonedIsToldHow) {
  auto const message = [&](auto const& net) {
    auto const error = error_of([&] { DataParallel const model(net, replicas(2)); });
    EXPECT_EQ(error.code(), ErrorCode::unsupported);
    EXPECT_THAT(error.what(), HasSubstr("Derive the module from torch::nn::Cloneable"));
    return std::string(error.what());
  };
  EXPECT_THAT(message(make<NotCloneable>()), HasSubstr("clone() has not been implemented"));
  EXPECT_THAT(message(make<MadeOutsideOfReset>()), HasSubstr("the same number of parameters"));
  auto other = make<OtherClone>(4);
  other->to(torch::kFloat);
  EXPECT_THAT(message(other), HasSubstr("its clone() has parameter \"weight\", "));
  auto const alone = make<NotCloneable>();  // one device needs no clone
  EXPECT_EQ(DataParallel(alone, replicas(1))(rows(4)).size(0), 4);
}

TEST_P(LibtorchDataParallelErrors, P2P3WhatLiesElsewhereAndDevicesThatAreNotThereAreRefused) {
  auto net = make<TwoLayers>();
  auto const code = [&](DataParallelOptions const& options) {
    return error_of([&] { DataParallel const model(net, options); }).code();
  };
  Device const missing{DeviceKind::cuda, DeviceIndex{99}};
  EXPECT_EQ(code({.device_ids = std::vector<Device>{missing}}), ErrorCode::not_found);
  EXPECT_EQ(code({.device_ids = std::vector<Device>{Device{}, Device{DeviceKind::cpu, DeviceIndex{9}}}}),
            ErrorCode::not_found);
  auto options = replicas(2);
  options.output_device = missing;
  EXPECT_EQ(code(options), ErrorCode::not_found);
  EXPECT_EQ(code({.device_ids = std::vector<Device>{}, .output_device = missing}), ErrorCode::not_found);
  if (GetParam() == DeviceKind::cuda) {
    EXPECT_EQ(code({.device_ids = std::vector<Device>{Device{DeviceKind::cuda, DeviceIndex{0}}, Device{}}}),
              ErrorCode::invalid_argument);
  }
  EXPECT_EQ(error_of([] { DataParallel const model(std::shared_ptr<TwoLayers>{}); }).code(),
            ErrorCode::invalid_argument);

  if (GetParam() == DeviceKind::cuda) {
    auto const on_cpu = std::make_shared<TwoLayers>();
    EXPECT_THAT(message_of([&] { DataParallel const model(on_cpu, replicas(2)); }),
                HasSubstr("found parameter \"first.weight\" on PyTorch's device cpu"));
  }
  DataParallel model(net, replicas(2));
  net->register_buffer("far", torch::empty({1}, torch::kMeta));
  auto const error = error_of([&] { static_cast<void>(model(rows(4))); });
  EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
  EXPECT_THAT(error.what(), AllOf(HasSubstr("module must have its parameters and buffers on device"),
                                  HasSubstr("but found buffer \"far\" on PyTorch's device meta")));
}

// ---- alone

TEST_P(LibtorchDataParallelErrors, P1AnEmptyListRunsTheModuleItself) {
  auto net = make<NotCloneable>();
  DataParallel model(net, {.device_ids = std::vector<Device>{}});
  EXPECT_TRUE(model.device_ids().empty());
  auto const x = rows(4);
  expect_near(model(x), net->forward(x));
  EXPECT_ANY_THROW(static_cast<void>(model(rows(4, 5))));
  if (logical_devices().empty()) {
    DataParallel everywhere(net);
    EXPECT_TRUE(everywhere.device_ids().empty());
    expect_near(everywhere(x), net->forward(x));
  }
}

TEST_P(LibtorchDataParallelErrors, P9TheModuleStaysReachableHoweverItWasGiven) {
  auto net = make<TwoLayers>();
  DataParallel shared(net, replicas(2));
  EXPECT_EQ(&shared.module(), net.get());
  EXPECT_EQ(shared->first.get(), net->first.get());
  long const owners = net.use_count();
  DataParallel referred(*net, replicas(2));
  EXPECT_GT(net.use_count(), owners);  // it shares what a shared_ptr owns
  TwoLayers local;
  local.to(place());
  local.to(torch::kDouble);
  DataParallel borrowed(local, replicas(2));
  auto const x = rows(4);
  expect_near(borrowed(x), local.forward(x));
  torch::nn::Sequential layers(torch::nn::Linear(6, 4), torch::nn::ReLU(), torch::nn::Linear(4, 2));
  layers->to(place());
  layers->to(torch::kDouble);
  DataParallel sequence(layers, replicas(3));
  expect_near(sequence(x), layers->forward(x));
  loss_of(sequence(x)).backward();
  EXPECT_TRUE(layers->parameters()[0].grad().defined());
}

}  // namespace
}  // namespace ddp::testing
