#include <ddp/ddp.hpp>
#include <iostream>

#include "data/loader.hpp"
#include "nn/mlp.hpp"
#include "nn/sgd.hpp"

int main() {
  ddp::World world = ddp::World::init();  // one of the ranks that ddp-launch started, or alone
  data::ImageSet const images = data::make_synthetic_data_set(6000, 0).train;
  data::Loader loader(images, world.stream());  // on this rank's GPU, or the CPU
  nn::Mlp net({images.image_size(), 64, data::kClasses}, world.stream());
  ddp::DistributedDataParallel ddp(world, net.parameters());  // checks shapes, broadcasts rank 0's values
  nn::Sgd optimizer(net.weights());

  ddp::DistributedSampler sampler(images.size(), world, {.shuffle = true, .seed = 1});
  for (auto const& indices : sampler.batches(64)) {
    net.forward(loader.load(indices));
    net.backward([&](std::size_t parameter) { ddp.gradient_ready(parameter); });  // a full bucket starts
    ddp.synchronize();  // the gradients are averages over all ranks now
    optimizer.step();
  }
  if (world.rank() == 0) std::cout << "trained on " << world.size() << " ranks\n";
}
