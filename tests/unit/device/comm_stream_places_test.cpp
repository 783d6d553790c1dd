#include "device/stream/comm_stream_places.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace ddp {
namespace {

using Part = CommStreamPlaces::Part;

TEST(CommStreamPlaces, OneStreamHasTheSmsSetAsideAndTheOthersEachAPlaceBesideIt) {
  auto const places = std::make_shared<CommStreamPlaces>(2);
  auto const first = places->take();
  auto const second = places->take();
  auto const third = places->take();
  ASSERT_TRUE(first && second && third);
  EXPECT_EQ(first->part, Part::aside);
  EXPECT_EQ(second->part, Part::rest);
  EXPECT_EQ(third->part, Part::rest);
  EXPECT_FALSE(places->take()) << "two collectives could each keep what the other one needs";
}

TEST(CommStreamPlaces, APlaceIsFreeWhenWhatHeldItGoes) {
  auto const places = std::make_shared<CommStreamPlaces>(1);
  auto first = places->take();
  auto second = places->take();
  ASSERT_TRUE(first && second);
  first.reset();
  first = places->take();
  ASSERT_TRUE(first);
  EXPECT_EQ(first->part, Part::aside);
  auto const copy = second->held;
  second.reset();
  EXPECT_FALSE(places->take());
}

TEST(CommStreamPlaces, APlaceMayOutliveThem) {
  auto places = std::make_shared<CommStreamPlaces>(0);
  auto const held = places->take();
  places.reset();
  ASSERT_TRUE(held);
  EXPECT_EQ(held->part, Part::aside);
}

}  // namespace
}  // namespace ddp
