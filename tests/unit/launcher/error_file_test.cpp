// What ddp-launch makes of the error files of ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bootstrap/failure_json.hpp"
#include "launcher/report/outcome.hpp"

namespace ddp::launcher {
namespace {

TEST(ErrorFile, IsReadLeniently) {
  auto const ours = parse_error_file(R"({"rank":0,"code":"mismatch","message":"m","pid":1})");
  ASSERT_TRUE(ours);
  EXPECT_EQ(ours->code, "mismatch");
  EXPECT_EQ(ours->failure.code, ErrorCode::mismatch);
  EXPECT_EQ(to_string(ours->failure), "m");
  auto const torch = parse_error_file(R"({"message":{"message":"RuntimeError: x","extraInfo":{}}})");
  ASSERT_TRUE(torch);
  EXPECT_EQ(to_string(torch->failure), "RuntimeError: x");
  auto const foreign = parse_error_file(R"({"code":"E42","message":"m"})");
  ASSERT_TRUE(foreign);
  EXPECT_EQ(foreign->code, "E42");
  EXPECT_FALSE(follows_another(foreign->failure));
  auto const odd = parse_error_file(R"({"code":3,"message":"m","ranks":"all"})");
  ASSERT_TRUE(odd);
  EXPECT_EQ(to_string(odd->failure), "m");
  for (char const* other : {"", "{", "[]", "3", "{}", R"({"message":3})", R"({"message":{}})", "\xff"}) {
    EXPECT_FALSE(parse_error_file(other)) << other;
  }
}

// L8
TEST(ErrorFile, HasEveryFieldOfAFailure) {
  for (Failure const& failure : {Failure{.code = ErrorCode::peer_lost,
                                .manner = Failure::Manner::killed,
                                .ranks = {Rank{2}, Rank{1}},
                                .host = "b",
                                .status = 9,
                                .operation = "barrier",
                                .by = Rank{0},
                                .waited = std::chrono::milliseconds(300),
                                .ended_by = Rank{3}},
                                 Failure{.code = ErrorCode::io, .detail = "disk gone"}}) {
    auto const read = parse_error_file(failure_json(failure));
    ASSERT_TRUE(read);
    EXPECT_EQ(read->failure, failure);
    EXPECT_EQ(read->code, to_string(failure.code));
  }
}

// B12
TEST(ErrorFile, OfPyTorchHasItsCallstack) {
  auto const error = parse_error_file(
      R"({"message":{"message":"ValueError: x","extraInfo":{"py_callstack":"a\nb\n","timestamp":"86400"}}})");
  ASSERT_TRUE(error);
  EXPECT_EQ(to_string(error->failure), "ValueError: x");
  EXPECT_THAT(error->callstack, ::testing::ElementsAre("a", "b"));
  for (char const* odd : {R"({"message":{"message":"m","extraInfo":3}})",
                          R"({"message":{"message":"m","extraInfo":{"py_callstack":[]}}})"}) {
    auto const lenient = parse_error_file(odd);
    ASSERT_TRUE(lenient) << odd;
    EXPECT_TRUE(lenient->callstack.empty()) << odd;
  }
}

}  // namespace
}  // namespace ddp::launcher
