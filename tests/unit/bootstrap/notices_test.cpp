#include "bootstrap/notices.hpp"

#include <gtest/gtest.h>

#include "ddp/core/text.hpp"

namespace ddp::testing {
namespace {

TEST(Notices, TheLatestAreKeptForWhoeverListensLater) {
  Notices notices;
  notices.deliver("nobody listens", Rank{0}, "");
  for (std::size_t i = 0; i < Notices::kMostKept; ++i) notices.deliver("a", Rank{1}, text(i, ';'));
  std::string heard;
  auto const hear = [&](Rank from, std::string_view bytes) { heard += text(from, ':', bytes); };
  auto listening = notices.listen("nobody listens", hear);
  EXPECT_EQ(heard, "") << "the oldest was dropped";
  listening = notices.listen("a", hear);
  EXPECT_TRUE(heard.starts_with("1:0;1:1;1:2;")) << heard;
  EXPECT_TRUE(heard.ends_with(text("1:", Notices::kMostKept - 1, ';'))) << heard;
  heard.clear();
  listening.reset();
  notices.deliver("a", Rank{1}, "later");
  EXPECT_EQ(heard, "");
  listening = notices.listen("a", hear);
  EXPECT_EQ(heard, "1:later") << "each once";
}

}  // namespace
}  // namespace ddp::testing
