// Timelines of ranks side by side, as ddp-bench puts them.
#include "merge_traces.hpp"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <thread>

#include "ddp/observe/chrome_trace.hpp"
#include "support/errors.hpp"
#include "support/trace_file.hpp"

namespace ddp::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

class MergedTraces : public ::testing::Test {
 protected:
  [[nodiscard]] std::filesystem::path file(std::string const& name) const { return folder_.path() / name; }
  TemporaryFolder folder_;
  ChromeTrace::Clock::time_point const now_ = ChromeTrace::Clock::now();
};

// The second rank started later, so its own time begins later.
TEST_F(MergedTraces, MergedRanksShareOneClock) {
  auto moment = now_;
  for (int const rank : {10, 2}) {
    std::this_thread::sleep_for(20ms);
    ChromeTrace trace(folder_.path(), Rank{rank}, "rank " + std::to_string(rank));
    moment = now_ + 100ms;
    trace.add({trace.add_track("compute"), "same moment", "", moment, moment + 1ms});
  }
  auto const merged = folder_.path() / "merged.json";
  EXPECT_THAT(bench::merge_traces(folder_.path(), merged), ElementsAre(Rank{2}, Rank{10}));
  auto const spans = spans_of(merged);
  ASSERT_EQ(spans.size(), 2U);
  EXPECT_EQ(spans[0].at("pid"), 2);
  EXPECT_EQ(spans[1].at("pid"), 10);
  EXPECT_NEAR(spans[0].at("ts").get<double>(), spans[1].at("ts").get<double>(), 1000);
  EXPECT_DOUBLE_EQ(spans[1].at("dur").get<double>(), 1000);
  EXPECT_EQ(name_in(read_trace(merged), "process_name", 10, 0), "rank 10");
  auto const alone = [&](char const* name) { return spans_of(file(name)).at(0).at("ts").get<double>(); };
  EXPECT_GT(alone("rank10.json") - alone("rank2.json"), 15'000) << "apart, each begins at its own time";
}

TEST_F(MergedTraces, AMergeTakesOnlyRanksFilesAndCanBeRepeated) {
  { ChromeTrace const trace(folder_.path(), Rank{1}, "rank 1"); }
  for (char const* const other : {"rank.json", "rank01.json", "rank-1.json", "rank1.json.old", "notes.txt"}) {
    std::ofstream(folder_.path() / other) << "no trace";
  }
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(bench::merge_traces(folder_.path(), folder_.path() / "merged.json"), ElementsAre(Rank{1}));
  }
}

TEST_F(MergedTraces, AMergeSaysWhichFileIsNoTrace) {
  { ChromeTrace const trace(folder_.path(), Rank{0}, "rank 0"); }
  auto const merge = [&] {
    static_cast<void>(bench::merge_traces(folder_.path(), folder_.path() / "merged.json"));
  };
  for (char const* const content :
       {"", "{", "[]", "{}", R"({"otherData": {"unix_ns": "x"}, "traceEvents": []})",
        R"({"otherData": {"unix_ns": 1}, "traceEvents": 7})"}) {
    std::ofstream(folder_.path() / "rank7.json") << content;
    EXPECT_THAT(message_of(merge), HasSubstr("rank7.json")) << content;
  }
}

TEST_F(MergedTraces, AMergeWaitsForNoFifo) {
  ASSERT_EQ(::mkfifo(file("rank0.json").c_str(), 0600), 0);
  EXPECT_THAT(
      message_of([&] { static_cast<void>(bench::merge_traces(folder_.path(), file("merged.json"))); }),
      HasSubstr("is no regular file"));
}

TEST_F(MergedTraces, AMergeOfNothingIsAnError) {
  auto const merge = [](std::filesystem::path const& folder) {
    return error_of([&] { static_cast<void>(bench::merge_traces(folder, folder / "merged.json")); }).code();
  };
  EXPECT_EQ(merge(folder_.path()), ErrorCode::not_found);
  EXPECT_EQ(merge(folder_.path() / "missing"), ErrorCode::io);
}

}  // namespace
}  // namespace ddp::testing
