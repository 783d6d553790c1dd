// The smallest program worth reading: every rank gives a number, every rank gets their sum.
//
//   ddp-launch --cpus 4 -- hello_all_reduce
#include <array>
#include <iostream>

#include "ddp/core/text.hpp"
#include "ddp/ddp.hpp"

int main() {
  ddp::World const world = ddp::World::init();

  std::array<float, 2> values{1.0F, static_cast<float>(world.rank().value())};
  auto const tensor = ddp::view_of(std::span<float>(values));
  world.communicator().all_reduce(tensor, ddp::ReduceOp::sum(), world.stream());
  world.stream().synchronize();

  // One string and one write, so that lines of several ranks do not mix.
  std::cout << ddp::text("rank ", world.rank(), " of ", world.size(), " on ", world.device(), " (",
                         world.communicator().backend(), "): counted ", values[0],
                         "; the sum of all ranks is ", values[1], "\n");
}
