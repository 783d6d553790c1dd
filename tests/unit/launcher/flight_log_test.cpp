#include "launcher/report/flight_log.hpp"

#include <gmock/gmock.h>

#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>

#include "launcher/supervise/flight_recordings.hpp"
#include "observe/flight_json.hpp"
#include "support/launcher/shell.hpp"

namespace ddp::launcher {
namespace {

using ::testing::HasSubstr;
using Names = std::vector<std::string>;

constexpr std::int64_t kStart = 1'800'000'000'000'000;
constexpr std::int64_t kSecond = 1'000'000;

// A rank that called all_reduce of so many elements, one each second, on its first communicator.
RankFlight flight(int rank, std::vector<std::uint64_t> const& counts, std::uint64_t first = 1,
                  Names const& names = {"world"}) {
  FlightRecorder::Log log;
  log.communicators = names;
  for (std::uint64_t const count : counts) {
    FlightRecorder::Entry entry;
    entry.sequence = first + log.entries.size();
    entry.count = count;
    entry.dtype = DType::f32;
    entry.time_us = kStart + static_cast<std::int64_t>(entry.sequence) * kSecond;
    std::strcpy(entry.what.data(), "all_reduce");
    std::strcpy(entry.reduction.data(), "sum");
    log.entries.push_back(entry);
  }
  log.recorded = first - 1 + counts.size();
  return {Rank{rank}, std::move(log)};
}

TEST(FlightLog, RanksThatAgreeDoNotDiffer) {
  EXPECT_EQ(first_difference(std::vector{flight(0, {1, 2, 3}), flight(1, {1, 2, 3})}), std::nullopt);
  EXPECT_EQ(first_difference(std::vector<RankFlight>{}), std::nullopt);
  EXPECT_EQ(first_difference(std::vector{flight(0, {1}), RankFlight{Rank{1}, std::nullopt}}), std::nullopt);
}

// F8
TEST(FlightLog, TheFirstDifferenceCountsAndTheMostRanksAreNamedFirst) {
  std::vector const ranks{flight(0, {1, 5, 3}), flight(1, {1, 2, 4}), flight(2, {1, 2, 3})};
  EXPECT_EQ(
      first_difference(ranks),
      "number 2 of world: ranks 1, 2 called all_reduce (sum) of f32[2]; rank 0 called all_reduce (sum) of "
      "f32[5]");
}

TEST(FlightLog, ARankThatIsBehindDiffersWhereItStopped) {
  EXPECT_EQ(first_difference(std::vector{flight(0, {1, 2, 3}), flight(1, {1, 2})}),
            "number 3 of world: rank 0 called all_reduce (sum) of f32[3]; rank 1 called nothing");
  EXPECT_EQ(first_difference(std::vector{flight(0, {1}), flight(1, {})}),
            "number 1 of world: rank 0 called all_reduce (sum) of f32[1]; rank 1 called nothing");
}

TEST(FlightLog, OnlyWhatAllRememberIsCompared) {
  EXPECT_EQ(first_difference(std::vector{flight(0, {9, 9, 7, 8}, 1), flight(1, {7, 8}, 3)}), std::nullopt);
}

TEST(FlightLog, ARankWithoutTheCommunicatorIsNotMissed) {
  EXPECT_EQ(first_difference(std::vector{flight(0, {1, 2}, 1, {"half"}), flight(1, {1}, 1, {"other half"})}),
            std::nullopt);
}

TEST(FlightLog, CommunicatorsBeyondThoseThatHaveNamesAreNotCompared) {
  Names const further{std::string(FlightRecorder::kFurtherNames)};
  EXPECT_EQ(first_difference(std::vector{flight(0, {1, 2}, 1, further), flight(1, {3}, 1, further)}),
            std::nullopt);
}

// F10
TEST(FlightLog, WhomOthersWaitForIsNamedWithTheLengthOfTheWait) {
  std::vector const ranks{flight(0, {1, 2, 3}), flight(1, {1, 2}), flight(2, {1, 2, 3})};
  auto const found = find_straggling(ranks, kStart + 6 * kSecond);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->waited, std::chrono::seconds(3));
  EXPECT_EQ(found->words,
            "rank 1 is late: ranks 0, 2 have called number 3 of world, all_reduce (sum) of f32[3], 3 s ago");
  EXPECT_EQ(find_straggling(ranks, kStart + 8 * kSecond)->key, found->key);
  EXPECT_FALSE(find_straggling(std::vector{flight(0, {1, 2}), flight(1, {1, 2})}, kStart + 90 * kSecond));
  EXPECT_FALSE(find_straggling(ranks, kStart + 6 * kSecond, kStart + 4 * kSecond)) << "R26: it was given up";
  EXPECT_TRUE(find_straggling(ranks, kStart + 6 * kSecond, kStart + 3 * kSecond));
}

TEST(FlightLog, AProcessWritesWhatTheLauncherReads) {
  FlightRecordings const memory(1);
  ASSERT_NE(memory.path(Rank{0}), "");
  EXPECT_FALSE(memory.read(Rank{0})) << "nothing is recorded yet";
  std::FILE* const file = std::fopen(memory.path(Rank{0}).c_str(), "r+");
  ASSERT_NE(file, nullptr);
  std::vector<std::uint64_t> ring(FlightRecorder::memory_bytes() / 8 + 1);
  FlightRecorder recorder(ring.data());
  FlightRecorder::Entry entry = flight(0, {256}).log->entries[0];
  entry.communicator = recorder.name("ddp/0 on cpu");
  recorder.record(entry);
  std::fwrite(ring.data(), FlightRecorder::memory_bytes(), 1, file);
  std::fclose(file);
  auto const log = memory.read(Rank{0});
  ASSERT_TRUE(log);
  EXPECT_EQ(describe_last(*log), "all_reduce (sum) of f32[256], number 1 of ddp/0 on cpu");
  auto const json = nlohmann::json::parse(flight_json(Rank{3}, log));
  EXPECT_EQ(json.at("rank"), 3);
  EXPECT_EQ(json.at("operations").at(0).at("count"), 256);
  EXPECT_EQ(json.at("operations").at(0).at("dtype"), "f32");
}

TEST(FlightLog, NoRankCanMakeItsMemorySmaller) {
  FlightRecordings const memory(1);
  EXPECT_NE(::truncate(memory.path(Rank{0}).c_str(), 10), 0) << "it is sealed";
  EXPECT_FALSE(memory.read(Rank{0})) << "nothing is recorded";
}

}  // namespace
}  // namespace ddp::launcher
