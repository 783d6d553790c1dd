// DataParallel on virtual devices: on the CPU those below; on a GPU its replicas share what is there.
#include <stdexcept>
#include <string>
#include <vector>

#include "ddp/core/text.hpp"
#include "libtorch/data_parallel_models.hpp"

namespace ddp::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// cpu:2 has half of what the others have, cpu:3 just enough.
class UnequalCpus : public ::testing::Environment {
 public:
  void SetUp() override {
    set_logical_devices({.kind = DeviceKind::cpu, .limits = {1_GiB, 1_GiB, 512_MiB, 768_MiB}});
  }
};
auto* const kUnequalCpus = ::testing::AddGlobalTestEnvironment(new UnequalCpus);

class LibtorchVirtualDevices : public OnEachKind {
 protected:
  [[nodiscard]] static DataParallelOptions virtual_devices(std::vector<int> const& indices) {
    if (GetParam() == DeviceKind::cuda) return replicas(indices.size());
    std::vector<Device> devices;
    for (int const index : indices) devices.push_back({DeviceKind::cpu, DeviceIndex{index}});
    return {.device_ids = devices};
  }
};
INSTANTIATE_TEST_SUITE_P(Devices, LibtorchVirtualDevices,
                         ::testing::Values(DeviceKind::cpu, DeviceKind::cuda), KindName());

TEST_P(LibtorchVirtualDevices, P11P8TrainAsOneDeviceDoesInAnyOrderAndNumber) {
  for (auto const& indices :
       std::vector<std::vector<int>>{{0, 1, 2, 3}, {3, 0}, {1, 1, 2}, {2, 3, 0, 1, 0, 1, 2}, {3}}) {
    auto net = make<TwoLayers>();
    auto whole = copy_of(net);
    auto options = virtual_devices(indices);
    options.output_device = (*options.device_ids).back();
    DataParallel model(net, options);
    EXPECT_THAT(model.device_ids(), ::testing::ElementsAreArray(*options.device_ids));
    torch::optim::Adam mine(net->parameters(), 0.05);
    torch::optim::Adam theirs(whole->parameters(), 0.05);
    for (int step = 0; step < 4; ++step) {
      auto const x = rows(3 + 3 * step);
      mine.zero_grad();
      theirs.zero_grad();
      auto const output = model(x);
      expect_near(output, whole->forward(x));
      loss_of(output).backward();
      loss_of(whole->forward(x)).backward();
      expect_same_gradients(*net, *whole);
      mine.step();
      theirs.step();
    }
  }
}

TEST_P(LibtorchVirtualDevices, P11P6AreNamedByErrorsAsTheProgramNamesThem) {
  struct ThrowsAt : torch::nn::Cloneable<ThrowsAt> {
    void reset() override {}
    torch::Tensor forward(torch::Tensor const& x) {
      if (x[0].item<double>() < 0) throw std::runtime_error("broken");
      return x;
    }
  };
  auto const options = virtual_devices({1, 3, 2});
  DataParallel model(make<ThrowsAt>(), options);
  for (int odd = 0; odd < 3; ++odd) {
    auto x = torch::ones({3}, torch::kDouble).to(place());
    x[odd] = -1;
    EXPECT_THAT(message_of([&] { static_cast<void>(model(x)); }),
                HasSubstr(text("replica ", odd, " on ", (*options.device_ids)[static_cast<std::size_t>(odd)],
                               ": broken")));
  }
}

TEST_P(LibtorchVirtualDevices, P10OneThatIsMuchSmallerIsWarnedOfOnceWithTheRemedy) {
  if (GetParam() == DeviceKind::cuda) GTEST_SKIP() << "the GPUs of this machine are as they are";
  auto const said = [](std::vector<int> const& indices) {
    ::testing::internal::CaptureStderr();
    DataParallel model(make<TwoLayers>(), virtual_devices(indices));
    static_cast<void>(model(rows(8)));
    static_cast<void>(model(rows(8)));
    return ::testing::internal::GetCapturedStderr();
  };
  std::string const warned = said({0, 1, 2});
  EXPECT_THAT(warned, AllOf(HasSubstr("cpu:2 has less than 75 % of cpu:"), HasSubstr("'s memory"),
                            HasSubstr("leave cpu:2 out of device_ids\n")));
  EXPECT_EQ(warned.find("less than"), warned.rfind("less than")) << warned;
  EXPECT_THAT(said({2, 0}), HasSubstr("cpu:2 has less than 75 % of cpu:0's memory"));
  EXPECT_THAT(said({0, 1, 3}), Not(HasSubstr("less than"))) << "75 % is enough";
  EXPECT_THAT(said({2, 3}), HasSubstr("cpu:2 has less than 75 % of cpu:3's memory"));
  EXPECT_THAT(said({2, 2}), Not(HasSubstr("less than")));
}

}  // namespace
}  // namespace ddp::testing
