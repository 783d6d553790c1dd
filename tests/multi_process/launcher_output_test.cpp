// When ranks' lines appear, and with what in front.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <fstream>

#include "support/launcher/launched_job.hpp"
#include "support/launcher/shell.hpp"

namespace ddp::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;
using Words = std::vector<std::string>;

/// One rank that is `command`, with its files in logs/.
Words rank_of(Words const& command, Words const& options = {}) {
  Words words{"--cpus", "1", "--log-dir", "logs"};
  words.insert(words.end(), options.begin(), options.end());
  words.emplace_back("--");
  words.insert(words.end(), command.begin(), command.end());
  return words;
}

std::string log_of(LaunchedJob const& job, std::string const& name) {
  return read_file(job.directory() / "logs" / name);
}

bool has_python() { return std::system("python3 -c '' >/dev/null 2>&1") == 0; }

std::string const kPrintAndDie =
    "import os, sys; print('a line'); sys.stdout.write('a part'); os.kill(os.getpid(), 9)";

// B2
TEST(LauncherLines, OfAKilledCProgramAreShownThoughItNeverFlushed) {
  LaunchedJob job(rank_of({PRINTING_RANK, "one", "two", "kill"}));
  EXPECT_EQ(job.exit_code(), 137);
  EXPECT_EQ(job.out(), "[0] one\n[0] two\n");
  EXPECT_EQ(log_of(job, "rank0.out"), "one\ntwo\n");
}

// B2
TEST(LauncherLines, AppearWhileTheProgramGoesOn) {
  LaunchedJob job(rank_of({"/bin/sh", "-c", PRINTING_RANK " first second sleep"}));
  EXPECT_TRUE(job.shows("[0] second\n"));
  job.send(SIGTERM);
  EXPECT_EQ(job.exit_code(), 143);
}

// B2
TEST(LauncherLines, OfAKilledPythonProgramAreShownToTheLastByte) {
  if (!has_python()) GTEST_SKIP() << "no python3 here (package python3)";
  LaunchedJob job(rank_of({"python3", "-c", kPrintAndDie}));
  EXPECT_EQ(job.exit_code(), 137);
  EXPECT_EQ(job.out(), "[0] a line\n[0] a part\n");
  EXPECT_EQ(log_of(job, "rank0.out"), "a line\na part");
}

// B2
TEST(LauncherLines, AreTheProgramsOwnAffairIfThatIsWanted) {
  LaunchedJob job(rank_of({PRINTING_RANK, "one", "kill"}, {"--no-line-buffering"}));
  EXPECT_EQ(job.exit_code(), 137);
  EXPECT_EQ(job.out(), "");
  LaunchedJob variables(rank_of({"/bin/sh", "-c", "echo ${PYTHONUNBUFFERED-unset} ${DDP_STDOUT-unset}"},
                                {"--no-line-buffering"}));
  EXPECT_EQ(variables.exit_code(), 0);
  EXPECT_EQ(variables.out(), "[0] unset unset\n");
}

// B2
TEST(LauncherLines, AUsersWordOnPythonsBuffersIsKept) {
  LaunchedJob job(rank_of({"/bin/sh", "-c", "echo \"<$PYTHONUNBUFFERED>\""}),
                  {.environment = {"PYTHONUNBUFFERED="}});
  EXPECT_EQ(job.exit_code(), 0);
  EXPECT_EQ(job.out(), "[0] <>\n");
}

// B2
TEST(LauncherLines, NoProgramTakesTheFilesForATerminal) {
  LaunchedJob colours(rank_of({PRINTING_RANK, "colours"}));
  EXPECT_EQ(colours.exit_code(), 0);
  EXPECT_EQ(log_of(colours, "rank0.out"), "plain\n");
  LaunchedJob bar(rank_of({"/usr/bin/printf", "1%%\\r2%%\\r\\n\\033[1mbold\\033[0m\\n"}));
  EXPECT_EQ(bar.exit_code(), 0);
  EXPECT_EQ(log_of(bar, "rank0.out"), "1%\r2%\r\n\x1b[1mbold\x1b[0m\n") << "what is written is kept as it is";
}

// B2
TEST(LauncherLines, WhatARanksProgramsWriteElsewhereStaysBuffered) {
  LaunchedJob job(rank_of({"/bin/sh", "-c", PRINTING_RANK " one kill >own.txt; wc -c <own.txt"}));
  EXPECT_EQ(job.exit_code(), 0) << job.err();
  EXPECT_EQ(job.out(), "[0] 0\n");
}

// B13
TEST(LauncherTimestamps, StandInFrontOfEachLineOnTheTerminalAndInTheFiles) {
  LaunchedJob job(rank_of({"/bin/sh", "-c", "echo one; printf '1%%\\r2%%\\r\\n'; echo err >&2; printf end"},
                          {"--timestamps"}));
  EXPECT_EQ(job.exit_code(), 0);
  std::string const time = "[0-9]+-[0-9][0-9]-[0-9][0-9]T[0-9][0-9]:[0-9][0-9]:[0-9][0-9].[0-9]+Z ";
  EXPECT_THAT(
      lines(log_of(job, "rank0.out")),
      ElementsAre(MatchesRegex(time + "one"), MatchesRegex(time + "1%\r2%\r"), MatchesRegex(time + "end")));
  EXPECT_THAT(log_of(job, "rank0.err"), MatchesRegex(time + "err\n"));
  EXPECT_THAT(job.out(),
              MatchesRegex("\\[0\\] " + time + "one\n\\[0\\] " + time + "1%.*\\[0\\] " + time + "end\n"));
  EXPECT_THAT(job.err(), MatchesRegex("\\[0\\] " + time + "err\n"));
}

TEST(LauncherTimestamps, AreOfRanksOnly) {
  LaunchedJob job(rank_of({"/bin/sh", "-c", "echo last words >&2; exit 3"}, {"--timestamps"}));
  EXPECT_EQ(job.exit_code(), 3);
  EXPECT_THAT(job.err(), HasSubstr("\n[ddp-launch] first cause: rank 0"));
}

// B4
TEST(LauncherLogFiles, ALinkInPlaceOfOneIsNotFollowed) {
  LaunchedJob job(
      {"--cpus", "2", "--log-dir", "logs", "--", "/bin/sh", "-c", "echo out; echo err >&2; exit 1"},
      {.prepare = [](std::filesystem::path const& directory) {
        std::filesystem::create_directory(directory / "logs");
        std::ofstream(directory / "precious") << "untouched";
        std::filesystem::create_symlink("../precious", directory / "logs/rank0.out");
        std::filesystem::create_symlink("../new", directory / "logs/rank1.err");
      }});
  EXPECT_EQ(job.exit_code(), 1);
  EXPECT_EQ(read_file(job.directory() / "precious"), "untouched");
  EXPECT_FALSE(std::filesystem::exists(job.directory() / "new"));
  EXPECT_EQ(log_of(job, "rank1.out"), "out\n") << "the others are written";
  EXPECT_THAT(job.err(), HasSubstr("warning: cannot write logs/rank0.out: it is a symbolic link"));
  EXPECT_THAT(job.err(), HasSubstr("warning: cannot write logs/rank1.err: it is a symbolic link"));
}

// B4
TEST(LauncherLogFiles, AFolderOfAnotherUserIsRefusedWithWhatToDo) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a folder to another user";
  auto const give_away = [](std::filesystem::path const& directory) {
    std::filesystem::create_directory(directory / "logs");
    EXPECT_EQ(chown((directory / "logs").c_str(), 65534, 65534), 0);
  };
  LaunchedJob job(rank_of({"/usr/bin/touch", "started"}), {.prepare = give_away});
  EXPECT_EQ(job.exit_code(), 73);
  EXPECT_THAT(job.err(), HasSubstr("--log-dir logs: it belongs to user 65534, and this is user 0"));
  EXPECT_THAT(job.err(), HasSubstr("such as logs/logs"));
  EXPECT_FALSE(std::filesystem::exists(job.directory() / "started"));
  EXPECT_TRUE(std::filesystem::is_empty(job.directory() / "logs"));
}

}  // namespace
}  // namespace ddp::testing
