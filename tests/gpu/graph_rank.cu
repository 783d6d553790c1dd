// A rank that replays its steps for 30 s, or fails in the way that its first argument names, on the rank of
// the second, at step 20.
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <iostream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "ddp/core/text.hpp"
#include "ddp/ddp.hpp"
#include "ddp/device/cuda_stream.hpp"
#include "ddp/device/memory.hpp"

namespace {

using namespace std::chrono_literals;

__global__ void trap_if(float const* flag) {
  if (*flag != 0) __trap();
}

int train(std::string const& fault, bool faulty) {
  ddp::World const world = ddp::World::init();
  auto const tensor = [&](std::size_t count) {
    return ddp::zeros(ddp::Shape{count}, ddp::DType::f32, world.device());
  };
  ddp::Tensor const weight = tensor(2000);
  ddp::Tensor const large = tensor(std::size_t{4} << 20);
  ddp::Tensor const flag = tensor(1);
  std::vector<ddp::Parameter> parameters{{"weight", weight, [](ddp::TensorView const&) {}, {}},
                                         {"large", large, [](ddp::TensorView const&) {}, {}}};
  ddp::DistributedDataParallelOptions options;
  options.statistics = fault == "kill";  // what is measured is asked of a graph that goes
  ddp::DistributedDataParallel ddp(world, parameters, options);
  auto const step = [&] {
    trap_if<<<1, 1, 0, ddp::cuda_stream(world.stream()).handle()>>>(
        static_cast<float const*>(flag.view().data));
    ddp.gradient_ready(1);
    ddp.gradient_ready(0);
    ddp.synchronize();
  };
  ddp::StepGraph graph(ddp, step);
  auto const end = std::chrono::steady_clock::now() + 30s;
  for (int i = 0; std::chrono::steady_clock::now() < end; ++i) {
    if (i == 10 && !graph.is_recorded()) throw std::runtime_error("no graph: " + graph.why_eager());
    bool const now = i == 20 && faulty;
    if (now) std::cout << "fails" << std::endl;
    if (now && fault == "kill") {  // while the others are in this step's replay
      std::this_thread::sleep_for(100ms);
      ::kill(::getpid(), SIGKILL);
    }
    if (now && fault == "kill-while-replaying") {
      std::thread([] {
        std::this_thread::sleep_for(100ms);
        ::kill(::getpid(), SIGKILL);
      }).detach();
    }
    if (now && fault == "stop") ::raise(SIGSTOP);
    if (now && fault == "exception") throw std::runtime_error("the loss is not a number");
    if (i == 200 && fault == "none") return 0;
    if (now && fault == "return") return 0;  // leaves in order, though the others go on
    if (now && fault == "trap") {
      std::vector<float> one{1};
      copy_elements(flag, ddp::view_of(std::span(one)), world.stream());
      world.stream().synchronize();
    }
    if (now && fault == "skip") continue;
    if (i == 25 && fault == "skip") {
      world.communicator().all_reduce(large, ddp::ReduceOp::sum(), world.stream());
      world.stream().synchronize();
    }
    now&& fault == "eager" ? step() : graph.run();
    world.stream().synchronize();  // as reading the loss does
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 64;
  bool const faulty = ddp::text(ddp::RankInfo::from_environment().rank) == argv[2];
  try {
    return train(argv[1], faulty);
  } catch (ddp::Error const& error) {
    std::cerr << ddp::text(to_string(error.code()), ": ", error.what(), '\n');  // in one piece
    return 3;
  } catch (std::exception const& error) {
    std::cerr << ddp::text("failed: ", error.what(), '\n');
    return 4;
  }
}
