// Several objects that communicate on SMs that are set aside: DDP_COMM_SMS in the environment of this test.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "ddp/ddp.hpp"
#include "ddp/device/logical_device.hpp"
#include "support/models/device_toy.hpp"
#include "support/ranks/multi_process.hpp"

namespace ddp::testing {
namespace {

constexpr int kModels = 3;
constexpr int kSteps = 100;
// Large enough that NCCL takes all CTAs that it may.
constexpr std::size_t kCount = std::size_t{4} << 20;

class Wrapped {
 public:
  explicit Wrapped(int number)
      : model_(world(), {kCount, kCount}, "m" + std::to_string(number) + "/"),
        ddp_(world(), model_.parameters(), options()) {}
  void fill() { model_.fill_gradients(world().rank().value()); }
  void backward() {
    for (std::size_t const p : {1, 0}) ddp_.gradient_ready(p);
  }
  void synchronize() { ddp_.synchronize(); }
  void expect_averages() const {
    for (std::size_t const p : {0, 1}) {
      auto const found = model_.gradient(p);
      for (std::size_t i = 0; i < kCount; i += 4099) {
        ASSERT_EQ(found[i], ToyModel::average_gradient(p, i, world().size())) << p << ", " << i;
      }
    }
  }

 private:
  static DistributedDataParallelOptions options() {
    DistributedDataParallelOptions options;
    options.bucket_bytes = options.first_bucket_bytes = 8_MiB;
    return options;
  }
  DeviceToy<float> model_;
  DistributedDataParallel ddp_;
};

// The SMs set aside have room for one collective: of two that ranks launch in different order, each rank
// would run another one, and wait for the other rank's. The first steps go in one order, since NCCL connects
// ranks in them, for which a host waits.
TEST(CommSms, BackwardPassesThatRanksRunInDifferentOrderDoNotBlockEachOther) {
  ASSERT_LT(world().compute_sms(), logical_device(world().device()).sms) << "DDP_COMM_SMS is not set";
  std::vector<std::unique_ptr<Wrapped>> models;
  for (int m = 0; m < kModels; ++m) models.push_back(std::make_unique<Wrapped>(m));
  auto const step = [&](bool in_one_order) {
    for (std::size_t m = 0; m < models.size(); ++m) {
      bool const backwards = !in_one_order && world().rank().value() % 2 != 0;
      models[backwards ? models.size() - 1 - m : m]->backward();
    }
    for (auto const& model : models) model->synchronize();
  };
  for (int i = 0; i < kSteps; ++i) step(i < 3);
  world().stream().synchronize();
  for (auto const& model : models) model->fill();
  step(false);
  for (auto const& model : models) model->expect_averages();
}

}  // namespace
}  // namespace ddp::testing
