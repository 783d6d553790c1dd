// L14: a fixed binary schema with limits.
#include "bootstrap/wire.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace ddp::wire {
namespace {

using ::testing::ElementsAre;

constexpr Limits kRoomy{ControlPlane::kMaxKey, 1 << 20};

Frame sample(int i) {
  return {i % 2 == 0 ? Type::put : Type::done, 0x0102030405060708ULL + static_cast<std::uint64_t>(i),
          std::string(static_cast<std::size_t>(i % 7), 'k'),
          std::string(static_cast<std::size_t>(i * 37 % 1000), 'v')};
}

void expect_equal(Frame const& found, Frame const& expected) {
  EXPECT_EQ(found.type, expected.type);
  EXPECT_EQ(found.request, expected.request);
  EXPECT_EQ(found.key, expected.key);
  EXPECT_EQ(found.value, expected.value);
}

// Feeds `bytes` in the pieces given; every frame that came out.
std::vector<Frame> decode(std::string const& bytes, std::function<std::size_t()> const& piece,
                          Limits limits = kRoomy) {
  Decoder decoder(limits);
  std::vector<Frame> frames;
  for (std::size_t at = 0; at < bytes.size();) {
    std::size_t const count = std::min(piece(), bytes.size() - at);
    std::span<char const> part(bytes.data() + at, count);
    at += count;
    while (auto frame = decoder.take(part)) frames.push_back(std::move(*frame));
    EXPECT_TRUE(part.empty()) << "everything is taken";
  }
  EXPECT_FALSE(decoder.inside_frame());
  return frames;
}

TEST(Wire, TheHeaderIsLittleEndianAndFixed) {
  std::string const bytes = encode({Type::gather, 0x1122334455667788ULL, "key", "value"});
  EXPECT_EQ(bytes,
            std::string("DDPC\x09\x00\x04\x00\x88\x77\x66\x55\x44\x33\x22\x11\x03\x00\x00\x00\x05\x00\x00\x00"
                        "keyvalue",
                        kHeaderSize + 8));
}

TEST(Wire, FramesSurviveAnySplittingAndMerging) {
  std::string stream;
  for (int i = 0; i < 60; ++i) stream += encode(sample(i));
  std::mt19937 random(1);
  for (std::size_t const most : {std::size_t{1}, std::size_t{2}, std::size_t{23}, std::size_t{24},
                                 std::size_t{25}, std::size_t{500}, stream.size()}) {
    std::uniform_int_distribution<std::size_t> size(1, most);
    auto const frames = decode(stream, [&] { return most == stream.size() ? most : size(random); });
    ASSERT_EQ(frames.size(), 60U) << "pieces of at most " << most;
    for (int i = 0; i < 60; ++i) expect_equal(frames[static_cast<std::size_t>(i)], sample(i));
  }
}

TEST(Wire, AFrameWithoutKeyAndValueIsWhole) {
  auto const frames = decode(encode({Type::leave, 5, {}, {}}), [] { return 1U; });
  ASSERT_EQ(frames.size(), 1U);
  EXPECT_EQ(frames[0].type, Type::leave);
}

TEST(Wire, KnowsWhetherAFrameHasBegun) {
  Decoder decoder(kRoomy);
  std::string const bytes = encode(sample(3));
  EXPECT_FALSE(decoder.inside_frame());
  std::span<char const> part(bytes.data(), 1);
  EXPECT_FALSE(decoder.take(part).has_value());
  EXPECT_TRUE(decoder.inside_frame());
  part = std::span<char const>(bytes).subspan(1);
  EXPECT_TRUE(decoder.take(part).has_value());
  EXPECT_FALSE(decoder.inside_frame());
}

struct Violation {
  char const* name;
  std::string bytes;
  Limits limits;
};

std::string with_byte(std::size_t at, char value) {
  std::string bytes = encode({Type::put, 1, "key", "value"});
  bytes[at] = value;
  return bytes;
}

class WireViolation : public ::testing::TestWithParam<Violation> {};
INSTANTIATE_TEST_SUITE_P(
    , WireViolation,
    ::testing::Values(
        Violation{"Garbage", std::string(24, 'x'), kRoomy}, Violation{"Zeros", std::string(24, '\0'), kRoomy},
        Violation{"Magic", with_byte(0, 'X'), kRoomy}, Violation{"Version", with_byte(4, 1), kRoomy},
        Violation{"TypeZero", with_byte(6, 0), kRoomy}, Violation{"TypeInTheGap", with_byte(6, 14), kRoomy},
        Violation{"TypeHigh", with_byte(7, 1), kRoomy}, Violation{"LongKey", with_byte(17, 2), kRoomy},
        Violation{"HugeKey", with_byte(19, '\xff'), kRoomy},
        Violation{"HugeValue", with_byte(23, '\xff'), kRoomy},
        Violation{"AnythingButASmallJoinAtFirst",
                  encode({Type::put, 1, std::string(kBeforeJoin.key + 1, 'k'), ""}), kBeforeJoin},
        Violation{"ALargeFirstFrame", encode({Type::join, 1, "", std::string(kBeforeJoin.value + 1, 'x')}),
                  kBeforeJoin}),
    [](auto const& violation) { return violation.param.name; });

TEST_P(WireViolation, IsRefusedAsSoonAsTheHeaderIsThere) {
  Decoder decoder(GetParam().limits);
  std::span<char const> header(GetParam().bytes.data(), kHeaderSize - 1);
  EXPECT_FALSE(decoder.take(header).has_value());
  std::span<char const> last(GetParam().bytes.data() + kHeaderSize - 1, 1);
  try {
    static_cast<void>(decoder.take(last));
    FAIL() << "expected an error";
  } catch (Error const& error) {
    EXPECT_EQ(error.code(), ErrorCode::protocol);
  }
}

TEST(Wire, JoinFitsIntoItsLimit) {
  Join const join{Rank{3}, 70000, 5, 123, std::string(1000, 'h')};
  EXPECT_LE(encode_join(join).size(), kBeforeJoin.value);
  Join const read = decode_join(encode_join(join));
  EXPECT_EQ(read.rank, 3);
  EXPECT_EQ(read.size, 70000);
  EXPECT_EQ(read.generation, 5);
  EXPECT_EQ(read.process, 123);
  EXPECT_EQ(read.host, std::string(kLongestHost, 'h'));
}

TEST(Wire, AGroupIsAsLongAsItsRuns) {
  auto const back = [](std::vector<Rank> const& group) {
    std::string const bytes = encode_group(group);
    Reader reader(bytes);
    EXPECT_EQ(decode_group(reader, 2000), group);
    return bytes.size();
  };
  EXPECT_EQ(back(all_ranks(1024)), 16U);
  std::vector<Rank> every_eighth;
  for (int r = 3; r < 1024; r += 8) every_eighth.emplace_back(r);
  EXPECT_EQ(back(every_eighth), 16U);
  EXPECT_EQ(back({}), 4U);
  EXPECT_EQ(back({Rank{5}}), 16U);
  std::vector<Rank> irregular;
  for (int r = 0; r < 1000; ++r) irregular.emplace_back(r * r);
  EXPECT_LE(back(irregular), from_rank(1000).value - ControlPlane::kMaxValue) << "the longest";
}

TEST(Wire, PayloadsComeBackAsTheyWere) {
  std::string const group = encode_group(std::vector<Rank>{Rank{2}, Rank{0}}) + "rest";
  Reader reader(group);
  EXPECT_THAT(decode_group(reader, 3), ElementsAre(Rank{2}, Rank{0}));
  EXPECT_EQ(reader.rest(), "rest");

  Failure const failure{.code = ErrorCode::peer_lost,
                        .manner = Failure::Manner::killed,
                        .ranks = {Rank{7}, Rank{2}},
                        .host = "node7",
                        .status = 9,
                        .operation = "operation 4, barrier",
                        .by = Rank{0},
                        .waited = std::chrono::milliseconds(300),
                        .detail = "why",
                        .ended_by = Rank{3}};
  EXPECT_EQ(decode_failure(encode_failure(failure)), failure);
  EXPECT_EQ(decode_lost(encode_failure(failure)), failure);
  EXPECT_EQ(decode_failure(encode_failure({})), Failure{});
}

TEST(Wire, WhatIsTooLongOfAFailureIsCutTheDetailFirst) {
  Failure failure{.ranks = std::vector<Rank>(1000, Rank{4}),
                  .host = std::string(1000, 'h'),
                  .operation = std::string(1000, 'o'),
                  .detail = std::string(1000, 'd')};
  std::string const bytes = encode_failure(failure, 512);
  EXPECT_EQ(bytes.size(), 512U);
  Failure const cut = decode_failure(bytes);
  EXPECT_EQ(cut.ranks.size(), 32U);
  EXPECT_EQ(cut.host, std::string(64, 'h'));
  EXPECT_EQ(cut.operation, std::string(64, 'o'));
  EXPECT_FALSE(cut.detail.empty());
  failure = {.operation = "short", .detail = std::string(1000, 'd')};
  EXPECT_GT(decode_failure(encode_failure(failure, 512)).detail.size(), 400U);
}

TEST(Wire, PayloadsThatLieAreRefused) {
  auto const refused = [](auto call) {
    try {
      call();
      return false;
    } catch (Error const& error) {
      return error.code() == ErrorCode::protocol;
    }
  };
  std::string const high("\xff\xff\xff\xff\xff\xff\xff\xff", 8);
  EXPECT_TRUE(refused([&] { static_cast<void>(decode_join("")); }));
  EXPECT_TRUE(refused([&] { static_cast<void>(decode_join("1234567")); }));
  EXPECT_TRUE(refused([&] { static_cast<void>(decode_join(high)); }));
  EXPECT_TRUE(refused([&] { static_cast<void>(decode_failure(high)); }));
  EXPECT_TRUE(refused([&] { static_cast<void>(decode_lost(encode_failure({}))); })) << "of no rank";
  EXPECT_TRUE(refused([&] {
    std::string const group = encode_group(std::vector<Rank>(3));
    Reader reader(group);
    static_cast<void>(decode_group(reader, 2));
  })) << "more ranks than the job has";
  EXPECT_TRUE(refused([&] {
    std::string bytes;
    append_u32(bytes, 1000000);  // a count with nothing behind it reserves nothing
    static_cast<void>(decode_values(bytes));
  }));
  auto const group_is_refused = [&](std::initializer_list<std::uint32_t> words) {
    std::string bytes;
    for (std::uint32_t const word : words) append_u32(bytes, word);
    Reader reader(bytes);
    return refused([&] { static_cast<void>(decode_group(reader, 4)); });
  };
  EXPECT_FALSE(group_is_refused({1, 3, 3, static_cast<std::uint32_t>(-1)}));
  EXPECT_TRUE(group_is_refused({1, 1, 3, static_cast<std::uint32_t>(-1)})) << "rank -1";
  EXPECT_TRUE(group_is_refused({1, 0x7fffffff, 2, 1})) << "past the largest rank";
  EXPECT_TRUE(group_is_refused({1, 0, 0, 1})) << "a run of none";
  EXPECT_TRUE(group_is_refused({2, 0, 1, 0, 1, 1, 0})) << "not the shortest form";
  EXPECT_TRUE(group_is_refused({1000000})) << "a count with nothing behind it";
  EXPECT_TRUE(refused([&] {
    std::string bytes;
    for (std::uint32_t const word : {1U, 1U << 30U, 0U}) append_u32(bytes, word);
    static_cast<void>(decode_values(bytes));
  })) << "a few bytes that stand for many values";
  Reader rank("123");
  EXPECT_TRUE(refused([&] { static_cast<void>(decode_rank(rank)); }));
  EXPECT_TRUE(refused([&] { static_cast<void>(decode_values(std::string(5, '\0'))); }));
}

}  // namespace
}  // namespace ddp::wire
