// A program that keeps its World and its model in global objects, so that exit() destroys them, and of which
// one rank calls exit() in the middle of a step: exit_rank CODE RANK. With a third argument there is no
// model, only collectives of the World.
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <optional>

#include "ddp/core/text.hpp"
#include "ddp/ddp.hpp"
#include "ddp/device/memory.hpp"

namespace {

std::optional<ddp::World> world;
ddp::Tensor weight;
ddp::Tensor bias;
std::optional<ddp::DistributedDataParallel> model;

void train(int code, bool faulty) {
  auto const end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  for (int step = 0; std::chrono::steady_clock::now() < end; ++step) {
    model->gradient_ready(1);
    if (step == 20 && faulty) std::exit(code);
    model->gradient_ready(0);
    model->synchronize();
    world->stream().synchronize();
  }
}

void reduce(int code, bool faulty) {
  auto const end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  for (int step = 0; std::chrono::steady_clock::now() < end; ++step) {
    if (step == 20 && faulty) std::exit(code);
    world->communicator().all_reduce(weight, ddp::ReduceOp::sum(), world->stream());
    world->stream().synchronize();
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3 && argc != 4) return 64;
  try {
    world.emplace(ddp::World::init());
    weight = ddp::zeros({std::size_t{1} << 20}, ddp::DType::f32, world->device());
    int const code = std::atoi(argv[1]);
    bool const faulty = ddp::text(world->rank()) == argv[2];
    if (argc == 4) {
      reduce(code, faulty);
      return 0;
    }
    bias = ddp::zeros({1000}, ddp::DType::f32, world->device());
    model.emplace(*world, std::vector<ddp::Parameter>{{"weight", weight, [](ddp::TensorView const&) {}, {}},
                                                      {"bias", bias, [](ddp::TensorView const&) {}, {}}});
    train(code, faulty);
  } catch (ddp::Error const& error) {
    std::cerr << ddp::text(to_string(error.code()), ": ", error.what(), '\n');  // in one piece
    return 4;
  }
  return 0;
}
