#include "device/cuda/stream/host_gate.hpp"

#include <gtest/gtest.h>

namespace ddp::testing {
namespace {

// The GPU waits for a number, and goes on when the word is no smaller.
TEST(HostGate, AHostStreamThatComesEarlyLetsNobodyPassWhoWaitsForOneBeforeIt) {
  std::uint32_t word = 0;
  HostGate gate(&word);
  auto const first = gate.expect();
  auto const second = gate.expect();
  auto const third = gate.expect();
  gate.came(third);
  gate.came(second);
  EXPECT_EQ(word, 0U);
  auto const last = gate.expect();
  gate.came(first);
  EXPECT_EQ(word, third);
  gate.came(last);
  EXPECT_EQ(word, last);
}

}  // namespace
}  // namespace ddp::testing
