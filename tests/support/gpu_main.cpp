// The main function of tests of one process that need a GPU.
#include <gtest/gtest.h>

#include <cstdio>

#include "ddp/device/logical_device.hpp"

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (ddp::logical_devices().empty()) {
    std::puts("skipped: no GPU is visible here");
    return 69;
  }
  return RUN_ALL_TESTS();
}
