// Trains one step on every rank with the installed library, and compares weights.
#include <torch/torch.h>

#include <ddp/ddp.hpp>
#include <ddp/libtorch.hpp>
#include <iostream>
// As programs on GPUs do, for PyTorch's streams; it includes headers of the CUDA toolkit.
#if DDP_HAS_CUDA && __has_include(<c10/cuda/impl/cuda_cmake_macros.h>)
#include <c10/cuda/CUDAStream.h>
#endif

int main() {
  ddp::World const world = ddp::World::init();
  torch::manual_seed(world.rank().value());
  torch::nn::Sequential net(torch::nn::Linear(4, 8), torch::nn::ReLU(), torch::nn::Linear(8, 1));
  net->to(ddp::libtorch::device(world));
  ddp::libtorch::DistributedDataParallel const wrapped(world, *net);
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  net->forward(torch::full({2, 4}, world.rank().value() + 1.0, ddp::libtorch::device(world)))
      .sum()
      .backward();
  optimizer.step();
  double sum = 0;
  for (auto const& parameter : net->parameters()) sum += parameter.sum().item<double>();
  bool const equal = world.all_reduce_scalar(sum, ddp::ReduceOp::min()) ==
                     world.all_reduce_scalar(sum, ddp::ReduceOp::max());
  std::cout << "version " << DDP_VERSION << '\n'
            << "rank " << world.rank() << " of " << world.size() << ": " << (equal ? "right" : "wrong")
            << std::endl;
  return equal ? 0 : 1;
}
