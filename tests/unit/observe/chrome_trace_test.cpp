// The timeline of a rank, as Perfetto reads it: JSON, names, order.
#include "ddp/observe/chrome_trace.hpp"

#include <gmock/gmock.h>

#include <optional>
#include <thread>

#include "support/errors.hpp"
#include "support/trace_file.hpp"

namespace ddp::testing {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

class ChromeTraceTest : public ::testing::Test {
 protected:
  [[nodiscard]] std::filesystem::path file(std::string const& name) const { return folder_.path() / name; }
  TemporaryFolder folder_;
  ChromeTrace::Clock::time_point const now_ = ChromeTrace::Clock::now();
};

TEST_F(ChromeTraceTest, ASpanHasItsNamePlaceTimesAndArguments) {
  {
    ChromeTrace trace(folder_.path() / "made" / "here", Rank{3}, "rank 3 (cpu:0)");
    auto const unused = trace.add_track("never used");
    auto const track = trace.add_track("communication (shm)");
    EXPECT_NE(unused, track);
    trace.add({track, "bucket 3", "communication", now_ + 5ms, now_ + 7ms, 25_MiB, DType::bf16});
    trace.add({track, "barrier", "communication", now_ + 8ms, now_ + 9ms, {}, {}});
  }
  json const trace = read_trace(file("made/here/rank3.json"));
  auto const spans = spans_of(file("made/here/rank3.json"));
  ASSERT_EQ(spans.size(), 2U);
  json const& bucket = spans[0];
  EXPECT_EQ(bucket.at("name"), "bucket 3");
  EXPECT_EQ(bucket.at("cat"), "communication");
  EXPECT_EQ(bucket.at("pid"), 3);
  EXPECT_DOUBLE_EQ(bucket.at("dur").get<double>(), 2000) << "microseconds";
  EXPECT_EQ(bucket.at("args"), json::parse(R"({"bytes": 26214400, "dtype": "bf16"})"));
  EXPECT_FALSE(spans[1].contains("args"));
  EXPECT_NEAR(spans[1].at("ts").get<double>() - bucket.at("ts").get<double>(), 3000, 0.01);
  EXPECT_EQ(name_in(trace, "process_name", 3, 0), "rank 3 (cpu:0)");
  EXPECT_EQ(name_in(trace, "thread_name", 3, bucket.at("tid")), "communication (shm)");
  EXPECT_EQ(read_file(folder_.path() / "made/here/rank3.json").find("never used"), std::string::npos)
      << "a row without spans";
}

TEST_F(ChromeTraceTest, SpansStandInTheOrderOfTheirBeginningsOuterOnesFirst) {
  {
    ChromeTrace trace(folder_.path(), Rank{0}, "rank 0");
    auto const track = trace.add_track("compute");
    trace.add({track, "layer 1", "compute", now_ + 4ms, now_ + 5ms});
    trace.add({track, "layer 0", "compute", now_ + 1ms, now_ + 2ms});
    trace.add({track, "forward", "compute", now_ + 1ms, now_ + 6ms});
  }
  EXPECT_THAT(names_of(file("rank0.json")), ElementsAre("forward", "layer 0", "layer 1"));
}

TEST_F(ChromeTraceTest, NamesOfAnyBytesGiveValidJson) {
  {
    ChromeTrace trace(folder_.path(), Rank{0}, "rank \"0\"\n");
    trace.add({trace.add_track("\\"), "quote \" tab \t \xff", "", now_, now_});
  }
  EXPECT_EQ(name_in(read_trace(file("rank0.json")), "process_name", 0, 0), "rank \"0\"\n");
  EXPECT_THAT(names_of(file("rank0.json")), ElementsAre(HasSubstr("quote \" tab \t ")));
}

TEST_F(ChromeTraceTest, AnEmptyTraceIsValidFromTheStart) {
  ChromeTrace const trace(folder_.path(), Rank{0}, "rank 0");
  EXPECT_THAT(spans_of(file("rank0.json")), ::testing::IsEmpty());
}

TEST_F(ChromeTraceTest, WhatIsTooMuchIsCountedAndLeftOut) {
  {
    ChromeTrace trace(folder_.path(), Rank{0}, "rank 0", 2);
    auto const track = trace.add_track("compute");
    for (char const* const name : {"a", "b", "c", "d", "e"}) trace.add({track, name, "", now_, now_});
  }
  EXPECT_THAT(names_of(file("rank0.json")), ElementsAre("a", "b"));
  EXPECT_EQ(read_trace(file("rank0.json")).at("otherData").at("dropped"), 3);
}

TEST_F(ChromeTraceTest, SpansOfSeveralThreadsAllArrive) {
  constexpr int kThreads = 4;
  constexpr int kSpans = 500;
  {
    ChromeTrace trace(folder_.path(), Rank{0}, "rank 0");
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&] {
        auto const track = trace.add_track("thread");
        for (int i = 0; i < kSpans; ++i) trace.add({track, "span", "", now_, now_});
      });
    }
    for (auto& thread : threads) thread.join();
  }
  std::map<int, int> per_track;
  for (json const& span : spans_of(file("rank0.json"))) ++per_track[span.at("tid")];
  EXPECT_THAT(per_track, ElementsAre(std::pair(1, kSpans), std::pair(2, kSpans), std::pair(3, kSpans),
                                     std::pair(4, kSpans)));
}

TEST_F(ChromeTraceTest, AFolderThatCannotBeMadeIsAnErrorAtOnce) {
  auto const error = error_of([] { ChromeTrace const trace("/proc/none", Rank{0}, "rank 0"); });
  EXPECT_EQ(error.code(), ErrorCode::io);
  EXPECT_THAT(error.what(), HasSubstr("/proc/none"));
}

TEST_F(ChromeTraceTest, ARelativeFolderIsOneWhereverTheProgramGoes) {
  std::optional<InFolder> start(folder_.path());
  ChromeTrace trace("trace", Rank{0}, "");
  start.reset();
  EXPECT_EQ(trace.file(), file("trace") / "rank0.json");
  trace.write();
}

TEST_F(ChromeTraceTest, ATrackOfNobodyIsRefused) {
  ChromeTrace trace(folder_.path(), Rank{0}, "rank 0");
  EXPECT_THAT(message_of([&] {
                trace.add({ChromeTrace::Track{1}, "span", "", now_, now_});
              }),
              HasSubstr("there is no track 1"));
}

// In a folder that others may write to.
TEST_F(ChromeTraceTest, ALinkInThePlaceOfAFileIsNotFollowed) {
  std::ofstream(file("mine")) << "mine";
  std::filesystem::create_symlink("mine", file("rank0.json"));
  EXPECT_THAT(message_of([&] { ChromeTrace(folder_.path(), Rank{0}, "rank 0"); }),
              HasSubstr("rank0.json for writing: it is a symbolic link, which is not followed"));
  std::filesystem::create_hard_link(file("mine"), file("rank1.json"));
  EXPECT_THAT(message_of([&] { ChromeTrace(folder_.path(), Rank{1}, "rank 1"); }),
              HasSubstr("rank1.json for writing: it is there under another name too"));
  EXPECT_EQ(read_file(file("mine")), "mine");
}

}  // namespace
}  // namespace ddp::testing
