// What is known of ranks from what they say and how they end, and which end is the first cause.
#include "launcher/supervise/outcome_recorder.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <limits>
#include <utility>

#include "launcher/mpirun/mpi_rank_guard.hpp"
#include "launcher/report/report.hpp"
#include "support/errors.hpp"
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
  /// Three ranks behind an mpirun.
  [[nodiscard]] OutcomeRecorder start_mpirun() {
    plan_.mpi_ranks = 3;
    return start(1);
  }
  /// What the guard of a rank on host "b" tells.
  [[nodiscard]] static ControlServer::Event guard_of(int rank, RankEnd const& end) {
    return {.kind = Kind::ended,
            .rank = Rank{rank},
            .process = 70 + rank,
            .host = "b",
            .words = encode_rank_end(end)};
  }
  /// Status as of waitpid().
  static constexpr int exited(int code) { return code << 8; }
  static constexpr std::size_t kMpirun = 3;

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
  EXPECT_EQ(to_string(outcome.error->failure), "and where");
  EXPECT_EQ(outcome.error->code, "mismatch");
  EXPECT_EQ(outcome.error->failure.code, ErrorCode::mismatch);
}

TEST_F(RecordedOutcomes, AnErrorFileThatIsAFifoIsNotWaitedFor) {
  OutcomeRecorder recorder = start(1);
  ASSERT_EQ(mkfifo(error_file(directory(), Rank{0}).c_str(), 0600), 0);
  EXPECT_FALSE(recorder.ended(0, {.exit_code = 1}, false, at(1ms)).error);
}

TEST_F(RecordedOutcomes, ProgressIsNewsOnce) {
  OutcomeRecorder recorder = start(2);
  EXPECT_TRUE(recorder.note_progress(Rank{1}, {7}));
  EXPECT_FALSE(recorder.note_progress(Rank{1}, {7}));
  EXPECT_TRUE(recorder.note_progress(Rank{1}, {8}));
  EXPECT_EQ(recorder.ranks()[1].progress, Progress{8});
  EXPECT_FALSE(recorder.ranks()[0].progress);
}

TEST_F(RecordedOutcomes, WhatIsSaidForARankThatIsNotThereIsDropped) {
  OutcomeRecorder recorder = start(1);
  recorder.take(error(1, ErrorCode::mismatch), at(1ms));
  EXPECT_FALSE(recorder.ranks()[0].error);
}

TEST_F(RecordedOutcomes, C4BehindAnMpirunEachRankEndsAsItsGuardTells) {
  OutcomeRecorder recorder = start_mpirun();
  EXPECT_EQ(recorder.running(), 3U);
  EXPECT_FALSE(recorder.heard_of_ranks());
  recorder.take(error(2, ErrorCode::mismatch), at(1ms));
  recorder.take(error(0, ErrorCode::peer_lost), at(2ms));
  recorder.ended(guard_of(0, {.status = exited(1)}), at(3ms));
  RankOutcome const& second = recorder.ended(guard_of(2, {.status = SIGABRT | 0x80,
                                                          .device = {DeviceKind::cuda, DeviceIndex{1}},
                                                          .gpu = "GPU-7",
                                                          .oom = OomWatch{{"memory.events", 3}, 4, 5s}}),
                                             at(4ms));
  EXPECT_EQ(second.signal, SIGABRT);
  EXPECT_TRUE(second.core_dumped);
  EXPECT_TRUE(second.oom && second.oom->rose());
  EXPECT_EQ(second.oom->within, 5s);
  recorder.ended(guard_of(1, {.status = exited(0)}), at(5ms));
  EXPECT_EQ(recorder.running(), 0U);
  recorder.ended(recorder.place_of(0), {.exit_code = 134}, false, at(6ms));
  recorder.no_more_is_heard(false, at(7ms));
  JobOutcome const job{"a", "./train", recorder.ranks(), 0};
  EXPECT_EQ(named_cause(job), std::size_t{2});
  std::string const words = report(job);
  EXPECT_NE(words.find("first cause: rank 2 (pid 72, cuda:1 = GPU-7) on b was killed by signal 6"),
            std::string::npos)
      << words;
  EXPECT_EQ(words.find("mpirun"), std::string::npos) << words;
  EXPECT_EQ(job_exit_code(job), 134);
}

TEST_F(RecordedOutcomes, C4ARankOfWhichNothingIsHeardWasLostWhenItsConnectionClosed) {
  for (bool const closed : {false, true}) {
    OutcomeRecorder recorder = start_mpirun();
    recorder.take({.kind = Kind::joined, .rank = Rank{1}, .process = 71, .host = "c"}, at(1ms));
    if (closed) recorder.take({.kind = Kind::disconnected, .rank = Rank{1}}, at(2ms));
    recorder.ended(guard_of(0, {.status = exited(3)}), at(3ms));
    recorder.ended(guard_of(2, {.status = exited(0)}), at(3ms));
    recorder.ended(kMpirun, {.signal = SIGKILL}, true, at(4ms));
    recorder.no_more_is_heard(false, at(5ms));
    JobOutcome const job{"a", "./train", recorder.ranks(), 0};
    EXPECT_EQ(named_cause(job), std::size_t{closed ? 1U : 0U});
    EXPECT_EQ(job_exit_code(job), closed ? 1 : 3);
    EXPECT_NE(report(job).find("rank 1 (pid 71)" + std::string(closed ? " on c" : "") +
                               " has gone, and nothing tells how"),
              std::string::npos)
        << report(job);
  }
}

TEST_F(RecordedOutcomes, C4ADaemonOfMpirunThatEndsIsTheCauseUnlessMpirunWasKilled) {
  for (bool const mpirun_killed : {false, true}) {
    OutcomeRecorder recorder = start_mpirun();
    recorder.ended(guard_of(1, {.status = SIGKILL, .why = RankEnd::Why::without_mpirun}), at(1ms));
    recorder.ended(guard_of(0, {.status = SIGTERM, .why = RankEnd::Why::told_to}), at(2ms));
    recorder.ended(kMpirun, {.exit_code = mpirun_killed ? 0 : 1, .signal = mpirun_killed ? SIGKILL : 0},
                   false, at(3ms));
    recorder.no_more_is_heard(false, at(4ms));
    JobOutcome const job{"a", "./train", recorder.ranks(), 0};
    EXPECT_EQ(named_cause(job), mpirun_killed ? kMpirun : std::size_t{1});
    EXPECT_EQ(job_exit_code(job), 137);
  }
}

// Open MPI 5: the guards of mpirun's own host see its end before those of the other host have told theirs.
TEST_F(RecordedOutcomes, C4AnMpirunThatExitsWithoutADaemonIsNoCauseNorAreTheRanksOfItsHost) {
  plan_.host = "a";
  OutcomeRecorder recorder = start_mpirun();
  for (int const rank : {0, 1}) {
    auto event = guard_of(rank, {.status = SIGKILL, .why = RankEnd::Why::without_mpirun});
    if (rank == 0) event.host = "a";
    recorder.ended(event, at(1ms + rank * 1ms));
  }
  recorder.ended(guard_of(2, {.status = SIGTERM, .why = RankEnd::Why::told_to}), at(3ms));
  recorder.ended(kMpirun, {.exit_code = 1}, false, at(4ms));
  recorder.no_more_is_heard(false, at(5ms));
  EXPECT_EQ(named_cause({"a", "./train", recorder.ranks(), 0}), std::size_t{1});
}

TEST_F(RecordedOutcomes, AnMpirunThatStartsNothingIsTheCauseAndNoRankIsBlamed) {
  OutcomeRecorder recorder = start_mpirun();
  recorder.ended(kMpirun, {.exit_code = 213}, false, at(1ms));
  recorder.no_more_is_heard(false, at(2ms));
  JobOutcome const job{"a", "./train", recorder.ranks(), 0};
  EXPECT_EQ(named_cause(job), kMpirun);
  EXPECT_EQ(report(job).find("rank"), std::string::npos) << report(job);
  EXPECT_EQ(job_exit_code(job), 213);
}

TEST_F(RecordedOutcomes, ARankWhoseGuardWasKilledIsTheCauseWhereTheOthersWereToldToEnd) {
  OutcomeRecorder recorder = start_mpirun();
  for (int r = 0; r < 3; ++r) {
    recorder.take({.kind = Kind::joined, .rank = Rank{r}, .process = 70 + r, .host = "b"}, at(1ms));
  }
  for (int r : {0, 2}) {
    recorder.ended(guard_of(r, {.status = SIGTERM, .why = RankEnd::Why::told_to}), at(2ms));
  }
  recorder.ended(kMpirun, {.exit_code = 137}, false, at(3ms));
  recorder.no_more_is_heard(false, at(4ms));
  JobOutcome const job{"a", "./train", recorder.ranks(), 0};
  EXPECT_EQ(named_cause(job), std::size_t{1});
}

TEST_F(RecordedOutcomes, OfAJobThatASignalStoppedNeitherMpirunNorARankThatObeyedIsACause) {
  for (bool const ends_well : {false, true}) {
    OutcomeRecorder recorder = start_mpirun();
    recorder.ended(guard_of(0, {.status = ends_well ? exited(0) : SIGTERM, .why = RankEnd::Why::told_to}),
                   at(1ms));
    recorder.ended(guard_of(1, {.status = ends_well ? exited(0) : exited(143)}), at(2ms));
    recorder.ended(guard_of(2, {.status = exited(0)}), at(2ms));
    recorder.ended(kMpirun, {.exit_code = 1}, false, at(3ms));
    recorder.no_more_is_heard(true, at(4ms));
    JobOutcome const job{"a", "./train", recorder.ranks(), SIGINT};
    EXPECT_EQ(named_cause(job), std::nullopt);
    EXPECT_EQ(report(job), "[ddp-launch] the job was stopped by SIGINT\n");
    EXPECT_EQ(job_exit_code(job), ends_well ? 0 : 130);
  }
}

TEST(RankEnds, OfAnotherVersionAreRefusedAndWhatIsTooLongIsLeftOut) {
  for (char const* other : {"", "1:0", "1:01:31:01:00:", "x"}) {
    EXPECT_EQ(ddp::testing::error_of([&] { static_cast<void>(decode_rank_end(other)); }).code(),
              ErrorCode::protocol)
        << other;
  }
  RankEnd const end{.oom = OomWatch{{std::string(2000, 'f'), 1}, 2, 3s}};
  EXPECT_FALSE(decode_rank_end(encode_rank_end(end)).oom);
}

TEST_F(RecordedOutcomes, R26WhenTheOthersGoOnALossIsNoCauseAndWhatTheySaidOfItIsForgotten) {
  OutcomeRecorder recorder = start(3);
  recorder.ended(2, {.signal = SIGKILL}, false, at(1ms));
  recorder.take(error(0, ErrorCode::peer_lost), at(2ms));
  write_error(0, R"({"message":"rank 2 is gone"})");
  recorder.take({.kind = Kind::rebuilt, .rank = Rank{0}, .membership = {1, {Rank{0}, Rank{1}}}}, at(3ms));
  EXPECT_TRUE(recorder.ranks()[2].survived);
  EXPECT_FALSE(first_cause(recorder.ranks()));
  EXPECT_FALSE(recorder.ranks()[0].error);
  recorder.ended(0, {.signal = SIGSEGV}, false, at(4ms));
  EXPECT_FALSE(recorder.ranks()[0].error) << "nor is its file read";
  recorder.ended(1, {.exit_code = 1}, false, at(5ms));
  EXPECT_EQ(first_cause(recorder.ranks()), std::size_t{0});
}

TEST_F(RecordedOutcomes, R26WhatARankSaidThatLeftBeforeTheOthersWentOnIsKept) {
  OutcomeRecorder recorder = start(3);
  recorder.ended(2, {.signal = SIGKILL}, false, at(1ms));
  recorder.take(error(0, ErrorCode::peer_lost), at(2ms));
  recorder.take({.kind = Kind::left, .rank = Rank{0}}, at(3ms));
  recorder.take({.kind = Kind::rebuilt, .rank = Rank{1}, .membership = {1, {Rank{1}}}}, at(4ms));
  recorder.ended(0, {}, false, at(5ms));
  recorder.ended(1, {}, false, at(6ms));
  EXPECT_TRUE(ignored_a_loss(recorder.ranks()[0]));
  EXPECT_EQ(ended_well(recorder.ranks()), 1U);
}

TEST_F(RecordedOutcomes, R26WhoCameTooLateToARebuildSaysSo) {
  OutcomeRecorder recorder = start(3);
  recorder.take({.kind = Kind::late, .rank = Rank{1}}, at(1ms));
  recorder.take({.kind = Kind::rebuilt, .rank = Rank{0}, .membership = {1, {Rank{0}, Rank{2}}}}, at(2ms));
  RankOutcome const& late = recorder.ended(1, {.signal = SIGKILL}, true, at(3ms));
  EXPECT_TRUE(late.survived);
  EXPECT_EQ(describe_end(late, 3),
            "was killed by ddp-launch, since it did not come to World::rebuild() in time");
}

}  // namespace
}  // namespace ddp::launcher
