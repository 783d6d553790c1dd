// Which signal the ranks of a job get, and when: decided without a process.
#include "launcher/supervise/termination.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <csignal>

#include "launcher/process/spawn.hpp"

namespace ddp::launcher {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class EndOfAJob : public ::testing::Test {
 protected:
  EndOfAJob() : ranks_(3) {
    fcntl(pipe_.read_end.get(), F_SETFL, O_NONBLOCK);
    for (int r = 0; r < 3; ++r) ranks_[static_cast<std::size_t>(r)].rank = Rank{r};
  }
  /// With 5 s after a failure and 30 s after a signal.
  [[nodiscard]] Termination make(bool under_mpirun = false) {
    return {options_, under_mpirun, console_, [this](int signal) { sent_.push_back(signal); }};
  }
  void fail(Termination& end, std::size_t rank, std::size_t still_running,
            Termination::Clock::time_point now) {
    ranks_[rank].ended = true;
    ranks_[rank].exit_code = 3;
    end.rank_failed(ranks_[rank], ranks_.size(), still_running, now);
  }
  [[nodiscard]] std::string said() {
    std::array<char, 4096> buffer{};
    ssize_t const count = ::read(pipe_.read_end.get(), buffer.data(), buffer.size());
    return {buffer.data(), count > 0 ? static_cast<std::size_t>(count) : 0};
  }

  Options options_;
  Pipe pipe_ = make_pipe();
  Console console_{options_, pipe_.write_end.get(), pipe_.write_end.get()};
  std::vector<RankOutcome> ranks_;
  std::vector<int> sent_;
  Termination::Clock::time_point const begin_ = Termination::Clock::time_point{} + 1h;
};

TEST_F(EndOfAJob, ASignalIsPassedOnAndWhoDoesNotEndWithinTheGraceIsKilled) {
  Termination end = make();
  EXPECT_FALSE(end.begun());
  end.pass_on(SIGTERM, begin_);
  EXPECT_EQ(said(), "[ddp-launch] SIGTERM: passed on to the ranks, which have 30 s to end\n");
  EXPECT_TRUE(end.begun());
  EXPECT_EQ(end.signal(), SIGTERM);
  ranks_[1].ended = true;
  end.enforce(ranks_, begin_ + 30s - 1ms);
  EXPECT_THAT(sent_, ElementsAre(SIGTERM));
  end.enforce(ranks_, begin_ + 30s);
  EXPECT_THAT(sent_, ElementsAre(SIGTERM, SIGKILL));
  EXPECT_EQ(said(), "[ddp-launch] ranks 0,2 did not end within 30 s: killing\n");
  EXPECT_TRUE(end.killed());
}

TEST_F(EndOfAJob, NewsForTheRanksAreNotTheEnd) {
  Termination end = make();
  end.pass_on(SIGUSR1, begin_);
  end.pass_on(SIGUSR2, begin_);
  EXPECT_THAT(sent_, ElementsAre(SIGUSR1, SIGUSR2));
  EXPECT_FALSE(end.begun());
  EXPECT_FALSE(end.deadline());
}

TEST_F(EndOfAJob, TheFirstFailureIsNamedAndLaterOnesDoNotProlongTheGrace) {
  Termination end = make();
  fail(end, 2, 2, begin_);
  EXPECT_THAT(said(), HasSubstr("exited with code 3; waiting up to 5 s for the others"));
  fail(end, 1, 1, begin_ + 4s);
  EXPECT_THAT(said(), IsEmpty());
  EXPECT_EQ(end.deadline(), begin_ + 5s);
  end.enforce(ranks_, begin_ + 5s);
  EXPECT_THAT(sent_, ElementsAre(SIGKILL));
  EXPECT_EQ(said(), "[ddp-launch] rank 0 did not end within 5 s: killing\n");
}

TEST_F(EndOfAJob, AFailureWithNoRankLeftIsLeftToTheReport) {
  Termination end = make();
  fail(end, 0, 0, begin_);
  EXPECT_TRUE(end.failure_seen());
  EXPECT_THAT(said(), IsEmpty());
  EXPECT_FALSE(end.deadline());
}

TEST_F(EndOfAJob, ASignalAfterAFailureDoesNotProlongItsGrace) {
  Termination end = make();
  fail(end, 0, 2, begin_);
  end.pass_on(SIGTERM, begin_ + 1s);
  EXPECT_TRUE(end.failed_before_signal());
  EXPECT_EQ(end.deadline(), begin_ + 5s);
}

TEST_F(EndOfAJob, AFailureAfterASignalIsItsConsequenceAndNeedsNoWord) {
  Termination end = make();
  end.pass_on(SIGTERM, begin_);
  static_cast<void>(said());
  fail(end, 0, 2, begin_ + 1s);
  EXPECT_THAT(said(), IsEmpty());
  EXPECT_FALSE(end.failed_before_signal());
  EXPECT_EQ(end.deadline(), begin_ + 30s);
}

TEST_F(EndOfAJob, ASecondInterruptKillsAtOnceButOneKeyPressIsOneInterrupt) {
  Termination end = make();
  end.pass_on(SIGINT, begin_);
  EXPECT_THAT(said(), HasSubstr("; a second Ctrl-C kills them"));
  end.pass_on(SIGINT, begin_ + 100ms);
  EXPECT_THAT(sent_, ElementsAre(SIGINT));
  end.pass_on(SIGINT, begin_ + 1s);
  EXPECT_THAT(sent_, ElementsAre(SIGINT, SIGKILL));
  EXPECT_EQ(said(), "[ddp-launch] second interrupt: killing the ranks\n");
}

TEST_F(EndOfAJob, WhatNotEvenSigkillEndsIsGivenUp) {
  Termination end = make();
  end.exec_failed(begin_);
  EXPECT_THAT(sent_, ElementsAre(SIGKILL));
  end.enforce(ranks_, begin_ + 9s);
  EXPECT_FALSE(end.given_up(begin_ + 9s));
  end.exec_failed(begin_ + 9s);  // another rank's: the wait is not longer for it
  EXPECT_TRUE(end.given_up(begin_ + 10s));
}

TEST_F(EndOfAJob, TimeInWhichAllWereStoppedIsNoGrace) {
  Termination end = make();
  end.leave_out(1h);
  EXPECT_FALSE(end.deadline());
  end.pass_on(SIGHUP, begin_);
  end.leave_out(1h);
  EXPECT_EQ(end.deadline(), begin_ + 1h + 30s);
}

TEST_F(EndOfAJob, MpirunWhichWouldDieOfSigquitGetsSigterm) {
  Termination end = make(true);
  end.pass_on(SIGQUIT, begin_);
  EXPECT_THAT(said(), HasSubstr("SIGQUIT: passed on to mpirun"));
  EXPECT_THAT(sent_, ElementsAre(SIGTERM));
  EXPECT_EQ(end.signal(), SIGQUIT);
}

TEST_F(EndOfAJob, MpirunIsToldToEndTheRanksThatAFailureHasNotEnded) {
  ranks_[2].title = "mpirun";
  Termination end = make(true);
  fail(end, 0, 1, begin_);
  end.enforce(ranks_, begin_ + 5s);
  EXPECT_THAT(said(), HasSubstr("rank 1 did not end within 5 s: killing"));
  EXPECT_THAT(sent_, ElementsAre(SIGTERM));
  EXPECT_FALSE(end.killed());
  end.enforce(ranks_, begin_ + 7s);
  EXPECT_THAT(said(), HasSubstr("mpirun did not end within 2 s: killing it"));
  EXPECT_THAT(sent_, ElementsAre(SIGTERM, SIGKILL));
  EXPECT_TRUE(end.killed());
}

TEST_F(EndOfAJob, AnMpirunThatDoesNotEndAfterTheRanksOfAFailedJobIsKilled) {
  ranks_[2].title = "mpirun";
  Termination end = make(true);
  fail(end, 0, 1, begin_);
  fail(end, 1, 0, begin_ + 1s);
  end.only_mpirun_is_left(begin_ + 1s);
  end.enforce(ranks_, begin_ + 5s);
  EXPECT_THAT(said(), HasSubstr("mpirun did not end within 5 s: killing"));
  EXPECT_THAT(sent_, ElementsAre(SIGKILL));
}

TEST_F(EndOfAJob, AnMpirunMayTakeItsTimeAfterRanksThatEndedWell) {
  Termination end = make(true);
  end.only_mpirun_is_left(begin_);
  EXPECT_EQ(end.deadline(), std::nullopt);
}

}  // namespace
}  // namespace ddp::launcher
