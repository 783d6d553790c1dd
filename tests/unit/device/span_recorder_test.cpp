// Spans of work on streams: when it ran, in the host's time, without the host waiting.
#include "ddp/device/span_recorder.hpp"

#include <gmock/gmock.h>

#include <atomic>
#include <thread>

#include "device/stream/event_clock.hpp"
#include "support/errors.hpp"
#include "support/trace_file.hpp"

namespace ddp::testing {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using namespace std::chrono_literals;

class SpanRecorderTest : public ::testing::Test {
 protected:
  [[nodiscard]] std::vector<json> spans() const {
    trace_->write();
    return spans_of(trace_->file());
  }
  [[nodiscard]] std::vector<std::string> names() const {
    trace_->write();
    return names_of(trace_->file());
  }

  TemporaryFolder folder_;
  std::shared_ptr<ChromeTrace> trace_ = std::make_shared<ChromeTrace>(folder_.path(), Rank{0}, "rank 0");
  HostStream stream_;
};

void sleep_on(HostStream& stream, int milliseconds) {
  stream.enqueue([milliseconds] { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); });
}

// For longer than an event serves as the base of times.
TEST(EventClock, GivesTheHostsTimeHoweverLongItRuns) {
  EventClock clock{Device{}};
  HostStream stream;
  Event event{Device{}};
  for (int i = 0; i < 5; ++i) {
    auto const before = EventClock::Clock::now();
    event.record(stream);
    stream.synchronize();
    auto const after = EventClock::Clock::now();
    auto const time = clock.time_of(event);
    EXPECT_GT(time, before - 1ms) << i;
    EXPECT_LT(time, after + 1ms) << i;
    if (i == 3) clock.compare();
    std::this_thread::sleep_for(550ms);
  }
}

TEST_F(SpanRecorderTest, TimesWorkWithoutMakingTheHostWait) {
  std::atomic<bool> may_end{false};
  {
    SpanRecorder recorder(trace_, "compute", Device{});
    auto const outer = recorder.begin(stream_);
    auto const inner = recorder.begin(stream_);
    stream_.synchronize();  // both have begun, however late the stream's thread got a core
    stream_.enqueue([&may_end] { may_end.wait(false); });
    recorder.end(inner, stream_, {"layer", 7, "compute", 4_KiB, DType::f32});
    sleep_on(stream_, 30);
    recorder.end(outer, stream_, {.what = "backward", .category = "compute"});
    // A host that had waited for the stream would not get here.
    std::this_thread::sleep_for(50ms);
    may_end = true;
    may_end.notify_all();
    stream_.synchronize();
  }
  ASSERT_THAT(names(), ElementsAre("backward", "layer 7"));
  auto const found = spans();
  EXPECT_GE(found[0].at("dur").get<double>(), 79'000);
  EXPECT_GE(found[1].at("dur").get<double>(), 49'000);
  EXPECT_LT(found[1].at("dur").get<double>(), found[0].at("dur").get<double>());
  EXPECT_EQ(found[1].at("args"), json::parse(R"({"bytes": 4096, "dtype": "f32"})"));
}

TEST_F(SpanRecorderTest, RecordsOnlyWhileTheTraceDoes) {
  SpanRecorder recorder(trace_, "compute", Device{});
  for (bool const on : {false, true, false}) {
    trace_->record(on);
    auto const span = recorder.begin(stream_);
    EXPECT_EQ(span.has_value(), on);
    recorder.end(span, stream_, {.what = on ? "on" : "off"});
  }
  stream_.synchronize();
  recorder.flush();
  EXPECT_THAT(names(), ElementsAre("on"));
}

TEST_F(SpanRecorderTest, ADroppedSpanIsNotShown) {
  SpanRecorder recorder(trace_, "compute", Device{});
  recorder.drop(recorder.begin(stream_), stream_);
  recorder.end(recorder.begin(stream_), stream_, {.what = "kept"});
  stream_.synchronize();
  recorder.flush();
  EXPECT_THAT(names(), ElementsAre("kept"));
}

TEST_F(SpanRecorderTest, KeepsManyMoreSpansThanItHasRoomFor) {
  constexpr std::size_t kSpans = 100;
  {
    SpanRecorder recorder(trace_, "compute", Device{}, 4);
    for (std::size_t i = 0; i < kSpans; ++i) {
      recorder.end(recorder.begin(stream_), stream_, {.what = "span", .index = i});
      stream_.synchronize();
    }
  }
  auto const found = names();
  ASSERT_EQ(found.size(), kSpans);
  EXPECT_EQ(found.front(), "span 0");
  EXPECT_EQ(found.back(), "span 99");
}

TEST_F(SpanRecorderTest, LeavesOutWhatComesWhileAllRoomIsTaken) {
  SpanRecorder recorder(trace_, "compute", Device{}, 2);
  sleep_on(stream_, 50);
  for (std::size_t i = 0; i < 5; ++i) {
    recorder.end(recorder.begin(stream_), stream_, {.what = "span", .index = i});
  }
  stream_.synchronize();
  recorder.flush();
  EXPECT_THAT(names(), ElementsAre("span 0", "span 1"));
}

TEST_F(SpanRecorderTest, WorkThatFailedHasNoEndAndHarmsNothing) {
  {
    SpanRecorder recorder(trace_, "compute", Device{});
    recorder.end(recorder.begin(stream_), stream_, {.what = "before"});
    auto const span = recorder.begin(stream_);
    stream_.enqueue([] { throw Error(ErrorCode::io, "broken"); });
    recorder.end(span, stream_, {.what = "failed"});
    EXPECT_THAT(message_of([&] { stream_.synchronize(); }), ::testing::HasSubstr("broken"));
  }
  EXPECT_THAT(names(), ElementsAre("before"));
}

TEST_F(SpanRecorderTest, AScopedSpanEndsWithItsScope) {
  SpanRecorder recorder(trace_, "compute", Device{});
  {
    ScopedSpan const outer(&recorder, stream_, {.what = "outer"});
    ScopedSpan const none(nullptr, stream_, {.what = "none"});
    ScopedSpan const inner(&recorder, stream_, {.what = "inner"});
  }
  stream_.synchronize();
  recorder.flush();
  EXPECT_THAT(names(), ElementsAre("outer", "inner"));
}

}  // namespace
}  // namespace ddp::testing
