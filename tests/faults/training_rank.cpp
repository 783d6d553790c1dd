// A rank that trains for 30 s on its device, or fails in the way that its first argument names, on the rank
// of the second.
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include "ddp/core/text.hpp"
#include "ddp/ddp.hpp"
#include "ddp/device/logical_device.hpp"
#include "ddp/device/memory.hpp"

namespace {

using namespace std::chrono_literals;

// A model of one large and one small tensor, whose steps take a few milliseconds.
int train(ddp::World const& world, std::string const& fault, bool faulty) {
  auto const tensor = [&](std::size_t count) {
    return ddp::zeros(ddp::Shape{count}, ddp::DType::f32, world.device());
  };
  ddp::Tensor const weight = tensor(fault == "shapes" && faulty ? 3000 : 2000);
  ddp::Tensor const large = tensor(std::size_t{4} << 20);
  std::vector<ddp::Parameter> parameters{{"weight", weight, [](ddp::TensorView const&) {}, {}},
                                         {"large", large, [](ddp::TensorView const&) {}, {}}};
  ddp::DistributedDataParallel ddp(world, parameters);
  auto const end = std::chrono::steady_clock::now() + 30s;
  int step = 0;
  if (fault == "hook-waits") {
    ddp.set_comm_hook({"waits", [&](ddp::GradientBucket const& bucket) {
                         while (faulty && step == 20) std::this_thread::sleep_for(1s);
                         for (ddp::TensorView const& gradients : bucket.gradients) {
                           bucket.communicator.all_reduce(gradients, bucket.op, bucket.stream);
                         }
                       }});
  }
  for (; std::chrono::steady_clock::now() < end; ++step) {
    if (step == 10 && world.rank() == 0) std::cout << "training" << std::endl;
    if (step == 20 && faulty) {
      if (fault == "kill-in-all-reduce") {
        // While the others are in this step's all-reduce.
        std::cout << "dies in 0.1 s" << std::endl;
        std::thread([] {
          std::this_thread::sleep_for(100ms);
          ::kill(::getpid(), SIGKILL);
        }).detach();
        std::this_thread::sleep_for(10s);
      }
      if (fault.ends_with("-while-training")) {  // anywhere in a step
        std::cout << "goes on" << std::endl;
        std::thread([signal = fault.starts_with("stop") ? SIGSTOP : SIGKILL] {
          std::this_thread::sleep_for(100ms);
          ::kill(::getpid(), signal);
        }).detach();
      }
      if (fault == "exit-early") ::_exit(0);
      if (fault == "stop") ::raise(SIGSTOP);
      if (fault == "slow") std::this_thread::sleep_for(3500ms);
      if (fault == "late") {  // by a second in which it runs
        std::cout << "comes later" << std::endl;
        for (int nap = 0; nap < 50; ++nap) std::this_thread::sleep_for(20ms);
      }
      if (fault == "order") {  // what the others call as an all_reduce, and later
        world.communicator().broadcast(large, ddp::Rank{0}, world.stream());
        world.stream().synchronize();
      }
      if (fault.starts_with("out-of-memory")) {
        static_cast<void>(tensor(ddp::memory_info(world.device()).total.value));  // four times as much
      }
      if (fault.starts_with("exception")) throw std::runtime_error("the loss is not a number");
      if (fault == "return") return 0;  // leaves in order, though the others go on
      if (fault.starts_with("data-ends")) {
        if (fault.ends_with("late")) std::this_thread::sleep_for(500ms);
        world.barrier();
        return 0;
      }
    }
    if (fault == "slow-steps") {
      if (faulty) std::this_thread::sleep_for(20ms);
      if (step == 150) return 0;
    }
    if (step == 20 && fault == "order" && !faulty) {
      world.communicator().all_reduce(large, ddp::ReduceOp::sum(), world.stream());
      world.stream().synchronize();
    }
    if (step == 30 && (fault == "slow" || fault == "late")) return 0;
    ddp.gradient_ready(1);
    ddp.gradient_ready(0);
    ddp.synchronize();
    world.stream().synchronize();  // as reading the loss does
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 64;
  std::string const fault = argv[1];
  bool const faulty = ddp::text(ddp::RankInfo::from_environment().rank) == argv[2];
  if (fault == "no-init" && faulty) {
    std::this_thread::sleep_for(30s);
    return 0;
  }
  if (fault == "uncaught") return train(ddp::World::init(), "exception", faulty);
  if (fault == "out-of-memory-uncaught" && faulty) return train(ddp::World::init(), fault, faulty);
  try {
    return train(ddp::World::init(), fault, faulty);
  } catch (ddp::Error const& error) {
    std::cerr << ddp::text(to_string(error.code()), ": ", error.what(), '\n');  // in one piece
    return 3;
  } catch (std::exception const& error) {
    if (fault == "exception-slow-exit") std::this_thread::sleep_for(1s);
    std::cerr << ddp::text("failed: ", error.what(), '\n');
    return 4;
  }
}
