#include <algorithm>
#include <ddp/ddp.hpp>
#include <iomanip>
#include <iostream>
#include <span>
#include <string>
#include <vector>

int main() {
  ddp::World world = ddp::World::init();
  std::vector<float> values{0, 0, 0, 0};        // y = w[0] x + w[1] x² + w[2] x³ + b
  std::vector<float> gradients(values.size());  // the program's own, and they stay here
  auto const parameter = [&](std::string name, std::size_t first, std::size_t count) {
    return ddp::Parameter{.name = std::move(name),
                          .value = ddp::view_of(std::span(values).subspan(first, count)),
                          .gradient = ddp::view_of(std::span(gradients).subspan(first, count))};
  };
  std::vector<ddp::Parameter> const parameters{parameter("w", 0, 3), parameter("b", 3, 1)};  // as in memory
  ddp::DistributedDataParallel ddp(world, parameters,
                                   {.storage = ddp::GradientStorage::in_place,
                                    .reduction = ddp::DistributedDataParallelOptions::Reduction::sum});

  constexpr int kSamples = 60;  // of all ranks together
  for (int step = 0; step < 2000; ++step) {
    std::fill(gradients.begin(), gradients.end(), 0.0F);  // behind synchronize() they are the program's again
    for (int i = world.rank().value(); i < kSamples; i += world.size()) {
      float const x = 2.0F * static_cast<float>(i) / (kSamples - 1) - 1;
      float const features[] = {x, x * x, x * x * x, 1};
      float error = -(1 + 2 * x - x * x + 3 * x * x * x);
      for (std::size_t k = 0; k < 4; ++k) error += values[k] * features[k];
      for (std::size_t k = 0; k < 4; ++k) gradients[k] += error * features[k];
    }
    ddp.gradient_ready(1);  // from here to synchronize() its gradient is not the program's
    ddp.gradient_ready(0);
    ddp.synchronize();  // they are sums over all ranks now
    for (std::size_t k = 0; k < 4; ++k) values[k] -= 0.5F / kSamples * gradients[k];
  }
  if (world.rank() == 0) {
    std::cout << std::setprecision(3) << "w = " << values[0] << ", " << values[1] << ", " << values[2]
              << ", b = " << values[3] << "; " << ddp.messages() << " message a step\n";
  }
}
