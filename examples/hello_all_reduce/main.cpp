// The smallest program worth reading: every rank gives a number, every rank gets their sum.
//
//   ddp-launch -- hello_all_reduce [--json FILE]
//
// Rank 0 also says where the time until then went, with --json in a file too.
#include <array>
#include <iostream>
#include <string_view>

#include "ddp/core/text.hpp"
#include "ddp/ddp.hpp"
#include "ddp/device/memory.hpp"
#include "ddp/device/tensor_ops.hpp"
#include "hello_all_reduce/start_report.hpp"

int main(int argc, char** argv) {
  hello::StartReport start;
  bool const json = argc == 3 && std::string_view(argv[1]) == "--json";
  if (argc != 1 && !json) {
    std::cerr << "hello_all_reduce: expected no options, or --json FILE\n";
    return 64;
  }
  ddp::World const world = ddp::World::init();

  // Memory of the device that this rank has: a GPU's, or the host's.
  std::array<float, 2> values{1.0F, static_cast<float>(world.rank().value())};
  auto const host = ddp::view_of(std::span<float>(values));
  ddp::Tensor const tensor = ddp::zeros(host.shape, host.dtype, world.device());
  ddp::copy_elements(tensor, host, world.stream());
  world.communicator().all_reduce(tensor, ddp::ReduceOp::sum(), world.stream());
  ddp::copy_elements(host, tensor, world.stream());
  world.stream().synchronize();
  start.first_all_reduce_is_done();

  // One string and one write, so that lines of several ranks do not mix.
  std::cout << ddp::text("rank ", world.rank(), " of ", world.size(), " on ", world.device(), " (",
                         world.communicator().backend(), "): counted ", values[0],
                         "; the sum of all ranks is ", values[1], "\n");
  if (world.rank() != 0) return 0;
  std::cout << ddp::text(start.describe(world), "\n");
  if (json && !start.write(world, argv[2])) {
    std::cerr << "hello_all_reduce: --json: cannot write " << argv[2] << "\n";
    return 73;
  }
}
