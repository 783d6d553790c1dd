// ddp-launch --max-restarts: the whole group again, and nothing of the old one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>

#include "support/launcher/launched_job.hpp"
#include "support/launcher/shell.hpp"

namespace ddp::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

std::vector<std::string> restarting(int restarts, int ranks, std::string const& script) {
  return shell_ranks(ranks, script, {"--max-restarts", std::to_string(restarts), "--no-prefix"});
}

TEST(LauncherRestart, L10AFailedGroupStartsAgainWithANewGenerationAndANewControlSocket) {
  LaunchedJob job(restarting(3, 2, R"(
    echo "generation $DDP_GENERATION of $TORCHELASTIC_MAX_RESTARTS, restart $TORCHELASTIC_RESTART_COUNT, rank $RANK"
    echo $DDP_CONTROL >>control.$RANK
    [ $DDP_GENERATION = 2 ] || [ $RANK = 0 ] || exit 3)"));
  EXPECT_EQ(job.exit_code(), 0) << job.err();
  EXPECT_THAT(job.sorted_lines(),
              ElementsAre("generation 0 of 3, restart 0, rank 0", "generation 0 of 3, restart 0, rank 1",
                          "generation 1 of 3, restart 1, rank 0", "generation 1 of 3, restart 1, rank 1",
                          "generation 2 of 3, restart 2, rank 0", "generation 2 of 3, restart 2, rank 1"));
  EXPECT_THAT(job.err(), HasSubstr("first cause: rank 1"));
  EXPECT_THAT(job.err(), HasSubstr("[ddp-launch] restart 1 of 3\n"));
  EXPECT_THAT(job.err(), HasSubstr("[ddp-launch] restart 2 of 3, in 1 s\n"));
  auto const sockets = lines(read_file(job.directory() / "control.0"));
  ASSERT_EQ(sockets.size(), 3U);
  EXPECT_NE(sockets[0], sockets[1]);
  EXPECT_NE(sockets[1], sockets[2]);
}

TEST(LauncherRestart, L10NothingOfTheOldGroupLivesWhenTheNewOneStarts) {
  // Every rank leaves a child, and rank 0 does not want to end.
  LaunchedJob job(shell_ranks(2, R"(
    if [ $DDP_GENERATION = 0 ]; then
      sleep 1000 & echo $! >child.$RANK
      [ $RANK = 1 ] && { while [ ! -e child.0 ]; do sleep 0.01; done; exit 5; }
      trap '' TERM INT; while :; do sleep 0.1; done
    fi
    for child in child.0 child.1; do kill -0 $(cat $child) 2>/dev/null && echo "$child lives"; done
    exit 0)",
                              {"--max-restarts", "1", "--failure-grace", "0.2"}));
  EXPECT_EQ(job.exit_code(), 0) << job.err();
  EXPECT_EQ(job.out(), "");
  EXPECT_THAT(job.err(), HasSubstr("killing"));
}

TEST(LauncherRestart, L10GivesUpAfterTwoRestartsWithoutAStepAndSaysSo) {
  LaunchedJob job(restarting(50, 1, "echo run; exit 9"));
  EXPECT_EQ(job.exit_code(), 9);
  EXPECT_THAT(job.sorted_lines(), ElementsAre("run", "run", "run"));
  EXPECT_THAT(job.err(), HasSubstr("no restart: 2 in a row ended before their first step\n"));
}

TEST(LauncherRestart, L10StopsWhenAllRestartsAreUsed) {
  LaunchedJob job(restarting(1, 2, "echo run; kill -KILL $$"));
  EXPECT_EQ(job.exit_code(), 137);
  EXPECT_THAT(job.sorted_lines(), ElementsAre("run", "run", "run", "run"));
  EXPECT_THAT(job.err(), HasSubstr("no restart is left: 1 of 1 were used\n"));
}

TEST(LauncherRestart, ASignalEndsTheJobAndNotTheGeneration) {
  LaunchedJob job(restarting(5, 2, "echo started; sleep 100"));
  ASSERT_TRUE(job.shows("started"));
  job.send(SIGTERM);
  EXPECT_EQ(job.exit_code(), 143);
  EXPECT_THAT(job.err(), Not(HasSubstr("restart")));
}

TEST(LauncherRestart, ASignalBetweenTwoGenerationsEndsTheJob) {
  LaunchedJob job(restarting(5, 1, "exit 9"));
  ASSERT_TRUE(job.shows("restart 2 of 5, in 1 s"));
  job.send(SIGTERM);
  EXPECT_EQ(job.exit_code(), 143);
  EXPECT_THAT(job.err(), HasSubstr("the job was stopped by SIGTERM before the restart"));
}

TEST(LauncherRestart, LogFilesKeepAllGenerations) {
  LaunchedJob job({"--cpus", "1", "--log-dir", "logs", "--max-restarts", "1", "--quiet", "--", "/bin/sh",
                   "-c", "echo generation $DDP_GENERATION; exit $((1 - DDP_GENERATION))"});
  EXPECT_EQ(job.exit_code(), 0) << job.err();
  EXPECT_EQ(read_file(job.directory() / "logs" / "rank0.out"), "generation 0\ngeneration 1\n");
}

TEST(LauncherRestart, AProgramThatIsNotThereIsNotTriedAgain) {
  LaunchedJob job({"--cpus", "1", "--max-restarts", "3", "--no-log-files", "--", "./nothing"});
  EXPECT_EQ(job.exit_code(), 127);
  EXPECT_THAT(job.err(), Not(HasSubstr("restart")));
}

}  // namespace
}  // namespace ddp::testing
