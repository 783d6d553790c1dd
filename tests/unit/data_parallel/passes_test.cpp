// DataParallel's gradients on streams that are threads: passes that differ from the one before, and one whose
// streams fail (P8).
#include <gmock/gmock.h>

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <thread>

#include "ddp/core/text.hpp"
#include "ddp/data_parallel/data_parallel.hpp"
#include "support/errors.hpp"
#include "support/models/data_parallel_oracle.hpp"

namespace ddp::testing {
namespace {

// What replicas are to do in the next pass.
struct Orders {
  std::size_t silent_below = 0;  // of these parameters nobody says that they are ready
  std::size_t fails_at = 99;     // on device 1
  bool breaks_streams = false;
};

// Its gradients are written by its stream, late.
struct Late final : Module {
  Late(std::shared_ptr<Stream> stream, std::shared_ptr<Orders> of, std::vector<std::size_t> sizes)
      : Module(std::move(stream)), orders(std::move(of)), counts(std::move(sizes)) {
    for (std::size_t const count : counts) {
      values.push_back(zeros(Shape{count}, DType::f32, device()));
      gradients.push_back(zeros(Shape{count}, DType::f32, device()));
    }
  }
  std::vector<Parameter> parameters() override {
    std::vector<Parameter> all;
    for (std::size_t p = 0; p < counts.size(); ++p)
      all.push_back({text("p", p), values[p], {}, gradients[p]});
    return all;
  }
  Value do_forward(Value const& input) override { return input.is_tensor() ? input : Value(); }
  Value do_backward(Value const& gradient, GradientReady const& ready) override {
    for (std::size_t p = counts.size(); p-- > 0;) {
      auto const to = gradients[p].view().as<float>();
      host_stream(stream()).enqueue([to] {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        for (float& each : to) each += 1;
      });
      if (p >= orders->silent_below) ready(p);
      if (p == orders->fails_at && device() == test_device(1)) throw std::runtime_error("no");
    }
    if (orders->breaks_streams) host_stream(stream()).enqueue([] { throw std::runtime_error("broken"); });
    return gradient;
  }
  std::shared_ptr<Module> do_clone(std::shared_ptr<Stream> of) override {
    return std::make_shared<Late>(std::make_shared<HostStream>(of->device().index), orders, counts);
  }
  [[nodiscard]] bool all_are(float value) const {
    return std::ranges::all_of(gradients, [&](Tensor const& gradient) {
      return std::ranges::all_of(gradient.view().as<float>(), [&](float each) { return each == value; });
    });
  }

  std::shared_ptr<Orders> orders;
  std::vector<std::size_t> counts;
  std::vector<Tensor> values;
  std::vector<Tensor> gradients;
};

std::shared_ptr<Late> late(std::vector<std::size_t> sizes = {100'000, 100'000, 3}) {  // two of one bucket
  return std::make_shared<Late>(std::make_shared<HostStream>(test_device(0).index),
                                std::make_shared<Orders>(), std::move(sizes));
}

void pass(DataParallel<Late>& parallel, std::size_t rows) {
  static_cast<void>(parallel.backward(parallel.forward(counting<float>(Device{}, {rows}))));
}

TEST(DataParallelPasses, P8GradientsTravelOnlyWhenTheStreamHasWrittenThem) {
  auto const module = late({100'000, 3});  // one of a message of its own, and a small one
  DataParallel parallel(module, {.device_ids = test_devices(3)});
  for (int step = 1; step <= 3; ++step) {
    pass(parallel, 3);
    module->stream().synchronize();
    EXPECT_TRUE(module->all_are(3.0F * static_cast<float>(step))) << step;
  }
}

TEST(DataParallelPasses, P8OneThatSpeaksOfFewerGradientsThanTheOneBefore) {
  auto const module = late();
  DataParallel parallel(module, {.device_ids = test_devices(3)});
  pass(parallel, 3);
  module->orders->silent_below = 1;
  pass(parallel, 3);
  module->stream().synchronize();
  EXPECT_TRUE(module->all_are(6));
}

TEST(DataParallelPasses, P8OneBehindAnotherThatFailedHalfWay) {
  auto const module = late();
  DataParallel parallel(module, {.device_ids = test_devices(3)});
  module->orders->fails_at = 1;
  EXPECT_THROW(pass(parallel, 3), Error);
  for (Tensor const& gradient : module->gradients) zero_fill(gradient.view(), module->stream());
  *module->orders = {.silent_below = 1};
  pass(parallel, 3);
  module->stream().synchronize();
  EXPECT_TRUE(module->all_are(3));
}

TEST(DataParallelPasses, P8ReplicasWithoutAPartAddNothing) {
  auto const module = late();
  DataParallel parallel(module, {.device_ids = test_devices(3)});
  pass(parallel, 3);
  pass(parallel, 1);
  module->stream().synchronize();
  EXPECT_TRUE(module->all_are(4));
}

TEST(DataParallelPasses, P8StreamsThatFailWhileGradientsTravelLeaveNothingInUse) {
  auto const module = late({20'000'000});
  module->orders->breaks_streams = true;
  {
    DataParallel parallel(module, {.device_ids = test_devices(2)});
    static_cast<void>(parallel.forward(Value::other(7)));  // no memory of parts, which stays behind a failure
    EXPECT_THROW(static_cast<void>(parallel.backward(Value())), std::runtime_error);
  }  // waits for the messages, though the modules' streams have nothing left to do
  EXPECT_TRUE(module->all_are(2));
}

}  // namespace
}  // namespace ddp::testing
