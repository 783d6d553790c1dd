// What is known of ranks from what they say and how they end, and which end is the first cause.
#include "launcher/supervise/outcome_recorder.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <limits>
#include <utility>

#include "launcher/report/report.hpp"
#include "support/launcher/shell.hpp"

namespace ddp::launcher {
namespace {

using namespace std::chrono_literals;
using Kind = ControlServer::Event::Kind;

class RecordedOutcomes : public ::testing::Test {
 protected:
  /// Of ranks whose processes are not there.
  [[nodiscard]] OutcomeRecorder start(int ranks) {
    OutcomeRecorder recorder(plan_, directory(), events_);
    for (int r = 0; r < ranks; ++r) recorder.started({Rank{r}, Device{}}, std::numeric_limits<pid_t>::max());
    return recorder;
  }
  [[nodiscard]] std::string directory() const { return folder_.path().string(); }
  [[nodiscard]] static ControlServer::Event error(int rank, ErrorCode code) {
    return {.kind = Kind::error, .rank = Rank{rank}, .failure = {.code = code, .detail = "its words"}};
  }
  [[nodiscard]] static OutcomeRecorder::Clock::time_point at(std::chrono::milliseconds moment) {
    return OutcomeRecorder::Clock::time_point{} + 1h + moment;
  }
  void write_error(int rank, std::string const& json) const {
    std::ofstream(error_file(directory(), Rank{rank})) << json;
  }
  /// One that three ranks are behind, and that says this itself.
  [[nodiscard]] RankOutcome failed_mpirun(std::string const& words = "",
                                          std::vector<ControlServer::Event> const& said = {}) {
    plan_.mpi_ranks = 3;
    OutcomeRecorder recorder = start(1);
    for (auto const& event : said) recorder.take(event, at(0ms));
    recorder.ended(0, {.exit_code = 1}, false, at(1ms));
    Pipe pipe = make_pipe();
    EXPECT_EQ(write(pipe.write_end.get(), words.data(), words.size()), static_cast<ssize_t>(words.size()));
    pipe.write_end.reset();
    FileDescriptor const nowhere(open("/dev/null", O_WRONLY | O_CLOEXEC));
    Console console(options_, nowhere.get(), nowhere.get());
    RankStream err(
        3, OutputStream::err, std::move(pipe.read_end), [](std::optional<Rank>) { return LogFile{}; }, false);
    err.finish(console);
    recorder.last_words(0, err);
    return recorder.ranks()[0];
  }

  Options options_;
  Plan plan_;
  EventLog events_;
  ddp::testing::TemporaryFolder folder_;
};

TEST_F(RecordedOutcomes, WhoOnlyFollowedAnotherIsNotTheFirstCauseThoughItEndsFirst) {
  OutcomeRecorder recorder = start(3);
  recorder.take(error(2, ErrorCode::peer_lost), at(1ms));
  recorder.ended(2, {.exit_code = 1}, false, at(2ms));
  recorder.ended(0, {.signal = SIGSEGV}, false, at(3ms));
  EXPECT_EQ(first_cause(recorder.ranks()), std::size_t{0});
}

TEST_F(RecordedOutcomes, AnErrorThatWasReportedCountsFromThenOn) {
  OutcomeRecorder recorder = start(2);
  recorder.take(error(1, ErrorCode::mismatch), at(1ms));
  recorder.ended(0, {.exit_code = 3}, false, at(2ms));
  recorder.ended(1, {.exit_code = 4}, false, at(5ms));
  EXPECT_EQ(first_cause(recorder.ranks()), std::size_t{1});
}

TEST_F(RecordedOutcomes, WhatTheLauncherKilledIsNotTheFirstCause) {
  OutcomeRecorder recorder = start(2);
  recorder.ended(0, {.signal = SIGKILL}, true, at(1ms));
  recorder.ended(1, {.exit_code = 3}, false, at(2ms));
  EXPECT_EQ(first_cause(recorder.ranks()), std::size_t{1});
}

TEST_F(RecordedOutcomes, WhoJoinedAndEndsWithoutLeavingLeavesEarly) {
  OutcomeRecorder recorder = start(2);
  for (int r = 0; r < 2; ++r) recorder.take({Kind::joined, Rank{r}, 42}, at(1ms));
  recorder.take({Kind::left, Rank{0}, 42}, at(2ms));
  EXPECT_FALSE(left_early(recorder.ended(0, {}, false, at(3ms)), 2));
  EXPECT_TRUE(left_early(recorder.ended(1, {}, false, at(4ms)), 2));
}

TEST_F(RecordedOutcomes, WhatARankWroteSaysMoreThanWhatItReported) {
  OutcomeRecorder recorder = start(1);
  recorder.take(error(0, ErrorCode::mismatch), at(1ms));
  write_error(0, R"({"message":"and where"})");
  RankOutcome const& outcome = recorder.ended(0, {.exit_code = 1}, false, at(2ms));
  ASSERT_TRUE(outcome.error);
  EXPECT_EQ(describe_error(outcome), "and where");
  EXPECT_EQ(outcome.error->code, "mismatch");
  EXPECT_EQ(outcome.error->failure.code, ErrorCode::mismatch);
}

TEST_F(RecordedOutcomes, AnErrorFileThatIsAFifoIsNotWaitedFor) {
  OutcomeRecorder recorder = start(1);
  ASSERT_EQ(mkfifo(error_file(directory(), Rank{0}).c_str(), 0600), 0);
  EXPECT_FALSE(recorder.ended(0, {.exit_code = 1}, false, at(1ms)).error);
}

TEST_F(RecordedOutcomes, WhatIsSaidForARankThatIsNotThereIsDropped) {
  OutcomeRecorder recorder = start(1);
  recorder.take(error(1, ErrorCode::mismatch), at(1ms));
  EXPECT_FALSE(recorder.ranks()[0].error);
}

TEST_F(RecordedOutcomes, BehindAnMpirunTheCulpritIsWhoseErrorFollowedNoOther) {
  write_error(0, R"({"code":"peer_lost","message":"rank 2 is gone","time":"2026-01-31T12:00:00.100Z"})");
  write_error(2, R"({"code":"mismatch","message":"other sizes","time":"2026-01-31T12:00:00.200Z"})");
  RankOutcome const mpirun = failed_mpirun();
  EXPECT_EQ(mpirun.culprit, Rank{2});
  ASSERT_TRUE(mpirun.error);
  EXPECT_EQ(describe_error(mpirun), "rank 2: other sizes");
}

// Ranks of other hosts write no file here.
TEST_F(RecordedOutcomes, C4BehindAnMpirunRanksSayTheirErrorsToTheServer) {
  RankOutcome const mpirun = failed_mpirun(
      "", {error(0, ErrorCode::peer_lost), error(2, ErrorCode::mismatch), error(2, ErrorCode::io)});
  EXPECT_EQ(mpirun.culprit, Rank{2});
  ASSERT_TRUE(mpirun.error);
  EXPECT_EQ(mpirun.error->code, "mismatch") << "its first one";
  EXPECT_EQ(describe_error(mpirun), "rank 2: its words");
}

TEST_F(RecordedOutcomes, BehindAnMpirunTheCulpritIsNeverWhoOnlyLostAnotherRank) {
  write_error(0, R"({"code":"peer_lost","message":"…","manner":"exited","ranks":[2],"host":"b","by":0})");
  EXPECT_EQ(failed_mpirun().culprit, Rank{2});
  RankOutcome const named = failed_mpirun("  Process name: [[5983,1],0]\n  Exit code:    1\n");
  EXPECT_EQ(named.culprit, Rank{2}) << "mpirun saw only that rank 0 ended first";
  EXPECT_EQ(named.lost_host, "");
}

TEST_F(RecordedOutcomes, BehindAnMpirunTheCauseIsTheHostThatItLost) {
  std::string const words =
      "ORTE has lost communication with a remote daemon.\n\n  HNP daemon   : [[5983,0],0] on node a\n"
      "  Remote daemon: [[5983,0],1] on node b\n";
  RankOutcome mpirun = failed_mpirun(words);
  EXPECT_EQ(mpirun.lost_host, "b");
  write_error(0, R"({"code":"peer_lost","message":"…","manner":"exited","ranks":[2],"host":"b","by":0})");
  mpirun = failed_mpirun(words);
  EXPECT_EQ(mpirun.lost_host, "b");
  EXPECT_EQ(mpirun.culprit, std::nullopt);
  JobOutcome job{"a", "./train", {mpirun}, 0};
  EXPECT_NE(
      report(job).find("first cause: host b, where mpirun's daemon ended or cannot be reached; mpirun "),
      std::string::npos);
  write_error(1, R"({"code":"mismatch","message":"other sizes"})");
  mpirun = failed_mpirun(words);
  EXPECT_EQ(mpirun.lost_host, "") << "a rank knows better";
  EXPECT_EQ(mpirun.culprit, Rank{1});
}

// B8
TEST_F(RecordedOutcomes, BehindAnMpirunTheCulpritOfADeadlineIsTheRankThatItFoundStopped) {
  write_error(0, R"({"code":"aborted","message":"the group was ended by rank 2"})");
  write_error(2, R"({"code":"timeout","message":"…","manner":"stopped","ranks":[1,0],"by":2})");
  RankOutcome const mpirun = failed_mpirun();
  EXPECT_EQ(mpirun.culprit, Rank{1});
  ASSERT_TRUE(mpirun.error);
  EXPECT_EQ(mpirun.error->code, "timeout");
}

}  // namespace
}  // namespace ddp::launcher
