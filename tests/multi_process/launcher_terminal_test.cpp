// What ranks find instead of the terminal that ddp-launch has.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/ioctl.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include "support/launcher/launched_job.hpp"
#include "support/launcher/shell.hpp"
#include "support/launcher/terminal.hpp"

namespace ddp::testing {
namespace {

using Words = std::vector<std::string>;

/// ddp-launch's stdin and stdout are a terminal of 30 rows and 100 columns; its stderr is a pipe.
class OnATerminal : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!open_terminal()) GTEST_SKIP() << "no pseudo-terminal here: " << std::strerror(errno);
  }
  void resize(unsigned short rows, unsigned short columns) const {
    winsize const window{rows, columns, 0, 0};
    ASSERT_EQ(ioctl(terminal_->leader.get(), TIOCSWINSZ, &window), 0);
  }
  /// Of a new terminal for each job: the end of its session hangs the old one up.
  [[nodiscard]] LaunchedJob::Settings settings() {
    terminal_ = open_terminal();
    resize(30, 100);
    return {.out = ptsname(terminal_->leader.get()), .terminal = terminal_->follower.get()};
  }
  /// The words of options, then a script that each rank runs.
  static Words job_of(Words words, std::string const& script) {
    words.insert(words.end(), {"--log-dir", "logs", "--", "/bin/sh", "-c", script});
    return words;
  }
  static std::string log_of(LaunchedJob const& job, std::string const& name) {
    return read_file(job.directory() / "logs" / name);
  }
  std::optional<Terminal> terminal_;
};

std::string const kIsTerminal = "for f in 1 2; do [ -t $f ] && echo $f is one; done; ";

TEST_F(OnATerminal, TheOnlyRankHasOneOfTheColumnsThatThePrefixLeaves) {
  LaunchedJob job(job_of({"--cpus", "1"}, kIsTerminal + "stty size <&1"), settings());
  EXPECT_EQ(job.exit_code(), 0) << job.err();
  EXPECT_EQ(log_of(job, "rank0.out"), "1 is one\n30 96\n");
  LaunchedJob bare(job_of({"--cpus", "1", "--no-prefix"}, "stty size <&1"), settings());
  EXPECT_EQ(bare.exit_code(), 0);
  EXPECT_EQ(log_of(bare, "rank0.out"), "30 100\n");
}

TEST_F(OnATerminal, TheFilesHaveTheBytesThatTheRankWroteToItsEnd) {
  LaunchedJob job(job_of({"--cpus", "1"}, "printf '1%%\\r2%%\\r\\n'; seq 1 500; printf end"), settings());
  EXPECT_EQ(job.exit_code(), 0);
  std::string expected = "1%\r2%\r\n";
  for (int i = 1; i <= 500; ++i) expected += std::to_string(i) + "\n";
  EXPECT_EQ(log_of(job, "rank0.out"), expected + "end");
}

TEST_F(OnATerminal, ANewSizeReachesTheRank) {
  LaunchedJob job(
      job_of({"--cpus", "1"}, "trap 'stty size <&1 >&2' WINCH; echo up >&2; while :; do sleep 0.05; done"),
      settings());
  ASSERT_TRUE(job.shows("[0] up"));
  resize(40, 120);
  EXPECT_TRUE(job.shows("[0] 40 116"));
  job.send(SIGTERM);
  EXPECT_EQ(job.exit_code(), 143);
}

TEST_F(OnATerminal, CtrlCReachesTheRankAsAlways) {
  LaunchedJob job(
      job_of({"--cpus", "1"}, "trap 'echo saved >&2; exit 0' INT; echo up >&2; while :; do sleep 0.05; done"),
      settings());
  ASSERT_TRUE(job.shows("[0] up"));
  terminal_->type("\x03");
  EXPECT_TRUE(job.shows("[0] saved"));
  EXPECT_EQ(job.exit_code(), 0);
}

TEST_F(OnATerminal, WhatIsTypedReachesTheRank) {
  LaunchedJob job(job_of({"--cpus", "1"}, "read -r line; echo got $line"), settings());
  terminal_->type("hello\n");
  EXPECT_EQ(job.exit_code(), 0);
  EXPECT_EQ(log_of(job, "rank0.out"), "got hello\n");
}

TEST_F(OnATerminal, OfSeveralRanksOneHasItIfThatIsWantedAndTheOthersKnowItsSize) {
  std::string const script = kIsTerminal + "echo $COLUMNS $LINES";
  LaunchedJob job(job_of({"--cpus", "2"}, script), settings());
  EXPECT_EQ(job.exit_code(), 0);
  for (char const* file : {"rank0.out", "rank1.out"}) EXPECT_EQ(log_of(job, file), "96 30\n");
  LaunchedJob leader(job_of({"--cpus", "2", "--terminal"}, script), settings());
  EXPECT_EQ(leader.exit_code(), 0);
  EXPECT_EQ(log_of(leader, "rank0.out"), "1 is one\n96 30\n");
  EXPECT_EQ(log_of(leader, "rank1.out"), "96 30\n");
  LaunchedJob other(job_of({"--cpus", "2", "--terminal", "--only-rank", "1"}, script), settings());
  EXPECT_EQ(other.exit_code(), 0);
  EXPECT_EQ(log_of(other, "rank0.out"), "96 30\n");
  EXPECT_EQ(log_of(other, "rank1.out"), "1 is one\n96 30\n");
}

TEST_F(OnATerminal, ARankWhoseOutputIsNotShownHasNone) {
  for (Words const& hidden : {Words{"--quiet"}, Words{"--tee", "err"}}) {
    Words words{"--cpus", "1"};
    words.insert(words.end(), hidden.begin(), hidden.end());
    LaunchedJob job(job_of(words, kIsTerminal + "echo end"), settings());
    EXPECT_EQ(job.exit_code(), 0);
    EXPECT_EQ(log_of(job, "rank0.out"), "end\n") << hidden.front();
  }
}

TEST(WithoutATerminal, RanksHaveAUsualSizeOrTheUsers) {
  std::string const script = "[ -t 1 ] && echo terminal; echo $COLUMNS $LINES";
  LaunchedJob job(shell_ranks(1, script), {.environment = {"COLUMNS=200"}});
  EXPECT_EQ(job.exit_code(), 0);
  EXPECT_EQ(job.out(), "[0] 200 24\n");
}

}  // namespace
}  // namespace ddp::testing
