// R3: memory with storage = arena is parameters + gradients + at most 2 MiB a rank, as the kernel counts it.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "parallel/ddp/reducer_access.hpp"
#include "support/models/toy_model.hpp"
#include "support/ranks/multi_process.hpp"

namespace ddp::testing {
namespace {

// This process's share of the memory that it maps, in bytes: what n processes share counts 1/n for each, so
// the sum over ranks is what they really take (proc(5), smaps_rollup, Pss). Without files: the share of a
// library changes when another program that uses it starts or ends.
double proportional_set_size() {
  std::ifstream in("/proc/self/smaps_rollup");
  double bytes = 0;
  int found = 0;
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string name;
    double kibibytes = 0;
    if (words >> name >> kibibytes && (name == "Pss_Anon:" || name == "Pss_Shmem:")) {
      bytes += kibibytes * 1024;
      ++found;
    }
  }
  EXPECT_EQ(found, 2) << "no Pss_Anon and Pss_Shmem in /proc/self/smaps_rollup";
  return bytes;
}

// All ranks' memory together, over their number.
double memory_per_rank() {
  world().barrier();
  double bytes = proportional_set_size();
  world().communicator().all_reduce(view_of(std::span(&bytes, 1)), ReduceOp::average(), world().stream());
  return bytes;
}

TEST(Memory, R3ArenaIsOneCopyOfTheGradientsAndLittleMore) {
  constexpr double kGradients = 160.0 * 1024 * 1024;
  ToyModel model(std::vector<std::size_t>(80, std::size_t{1} << 19));  // 80 × 2 MiB
  for (auto& own : model.own) std::vector<float>().swap(own);  // arena mode needs none of the program's own
  double const before = memory_per_rank();
  DistributedDataParallel ddp(world(), model.parameters());
  for (int step = 0; step < 3; ++step) {
    model.fill_gradients(world().rank().value());
    // An order that makes the buckets be rebuilt after the first step.
    for (std::size_t p = 0; p < model.values.size(); ++p) ddp.gradient_ready(p);
    ddp.synchronize();
  }
  EXPECT_EQ(reducer_of(ddp).rebuilds(), 1);
  double const extra = memory_per_rank() - before - kGradients;
  RecordProperty("bytes_beside_gradients", std::to_string(static_cast<long>(extra)));
  if (world().rank() == 0) {
    std::cout << "beside one copy of the gradients: " << extra / 1024 << " KiB a rank" << std::endl;
  }
  EXPECT_LE(extra, 2.0 * 1024 * 1024);
  EXPECT_GE(extra, -1.0 * 1024 * 1024) << "the gradients were not there when it was measured";
}

}  // namespace
}  // namespace ddp::testing
