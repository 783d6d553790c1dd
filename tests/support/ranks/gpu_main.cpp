// The main function of tests of one process that need GPUs, real or virtual ones. DDP_TEST_GPUS in the
// environment says how many, otherwise one.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "ddp/device/logical_device.hpp"

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  char const* const wanted = std::getenv("DDP_TEST_GPUS");
  std::size_t const needed = wanted == nullptr ? 1 : std::strtoul(wanted, nullptr, 10);
  std::size_t const found = ddp::logical_devices().size();
  if (found < needed) {
    std::printf("skipped: GPUs needed: %zu, visible here: %zu\n", needed, found);
    return 69;
  }
  return RUN_ALL_TESTS();
}
