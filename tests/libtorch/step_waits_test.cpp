// The host's part of a step on a GPU.
#include <chrono>
#include <future>
#include <thread>

#include "ddp/device/cuda_stream.hpp"
#include "ddp/device/event.hpp"
#include "libtorch/models.hpp"
#include "support/devices/gate.hpp"

namespace ddp::testing {
namespace {

struct Normalised : torch::nn::Module {
  torch::nn::Linear first = register_module("first", torch::nn::Linear(6, 8));
  torch::nn::BatchNorm1d norm = register_module("norm", torch::nn::BatchNorm1d(8));
  torch::nn::Linear second = register_module("second", torch::nn::Linear(8, 3));
  torch::Tensor forward(torch::Tensor const& x) { return second(torch::relu(norm(first(x)))); }
};

TEST(LibtorchStepWaits, R5AStepIsEnqueuedWhileTheGpuIsHeld) {
  torch::manual_seed(1);
  auto net = on_device(std::make_shared<Normalised>());
  Wrapped::Options options = small_buckets();
  options.runtime.statistics = true;  // R20: these do not make it wait
  Wrapped wrapped(world(), *net, options);
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.01));
  auto const rows = random_rows(8, 6, 1);
  auto const step = [&] {
    optimizer.zero_grad();
    {
      auto const guard = wrapped.no_sync();
      loss_of(net->forward(rows)).backward();
    }
    loss_of(net->forward(rows)).backward();
    optimizer.step();
  };
  for (int i = 0; i < 4; ++i) step();             // first uses set things up
  CudaStream current(world().device(), nullptr);  // PyTorch's, where nobody has chosen another
  current.synchronize();
  world().barrier();
  Event done(world().device());
  Gate gate(current);
  for (int i = 0; i < 3; ++i) step();
  done.record(current);
  EXPECT_TRUE(gate.holds()) << "the host waited for the GPU in a step until the test gave up";
  EXPECT_FALSE(done.reached());
  gate.open();
  current.synchronize();
  EXPECT_TRUE(done.reached());
  EXPECT_EQ(wrapped.runtime().steps(), 7U);
}

// What the test above would find.
TEST(LibtorchStepWaits, R5AHostThatAsksForAValueWaitsForTheGate) {
  auto const rows = random_rows(8, 6, 1);
  CudaStream current(world().device(), nullptr);
  current.synchronize();
  Gate gate(current);
  auto const opener = std::async(std::launch::async, [&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    gate.open();
  });
  EXPECT_NE(rows.sum().item<float>(), 0.0F);
  EXPECT_FALSE(gate.holds());
}

}  // namespace
}  // namespace ddp::testing
