// How jobs behind an mpirun end: hosts that do not answer, killed processes, signals, and what is left.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <string_view>
#include <thread>

#include "support/launcher/shell.hpp"
#include "support/launcher/two_hosts.hpp"

namespace ddp::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::Not;
using Words = std::vector<std::string>;

/// As Open MPI 4 and 5 call them.
bool is_daemon(JobProcess const& process) {
  return process.name.starts_with("orted") || process.name.starts_with("prted");
}
bool is_mpirun(JobProcess const& process) {
  return process.name.starts_with("mpirun") || process.name.starts_with("prterun");
}

/// A killed mpirun leaves its own directory.
void forgive_mpirun(LaunchedJob const& job) {
  for (auto const& entry : std::filesystem::directory_iterator(job.temporary_directory())) {
    if (entry.path().filename().string().starts_with("ompi")) std::filesystem::remove_all(entry.path());
  }
}

// L7: mpirun waits for every host, also for one that does not answer.
TEST(LauncherMpi, L7AHostThatDoesNotAnswerDelaysTheEndByTheGraceOnly) {
  LaunchedJob job(on_two_hosts({"/bin/sh", "-c",
                                "if [ $RANK = 1 ]; then read pid name state daemon rest < /proc/$PPID/stat; "
                                "kill -STOP $daemon; touch stopped; exec sleep 60; fi; "
                                "until [ -e stopped ]; do sleep 0.05; done; exit 3"},
                               {"--failure-grace", "1"}),
                  two_hosts());
  EXPECT_EQ(job.exit_code(), 3) << job.err();
  EXPECT_THAT(job.err(), HasSubstr("rank 1 did not end within 1 s: killing"));
  EXPECT_THAT(job.err(), ContainsRegex("first cause: rank 0 [^\n]* exited with code 3"));
  EXPECT_THAT(job.err(),
              ContainsRegex(
                  "consequences:\n[^\n]*  rank 1 [^\n]*(has gone, and nothing tells how|was still running)"));
  for (JobProcess const& process : job.processes()) {
    if (is_daemon(process)) kill(process.pid, SIGKILL);
  }
  EXPECT_TRUE(job.all_gone_within(5s));
  forgive_mpirun(job);
}

// The one thing that ddp-launch leaves to mpirun's words.
TEST(LauncherMpi, AHostThatMpirunCannotStartIsNamedInItsWords) {
  LaunchedJob job({"--host", "node-a:1,node-b:1", "--no-log-files", "--", "/bin/true"},
                  {.environment = {"OMPI_MCA_plm_rsh_agent=/bin/false"}});
  EXPECT_NE(job.exit_code(), 0);
  EXPECT_THAT(job.err(), ContainsRegex("mpirun: [^\n]*(unable to reliably start|failed to report back)"));
  EXPECT_THAT(job.err(), HasSubstr("first cause: mpirun (pid "));
  EXPECT_THAT(job.err(), Not(HasSubstr("rank 0")));
}

// `timeout` makes a process group of its own.
TEST(LauncherMpi, L7ARankInAGroupOfItsOwnIsToldAndEndedToo) {
  for (char const* starter : {"timeout", "setsid"}) {
    std::vector<std::string> command{starter};
    if (starter == std::string("timeout")) command.emplace_back("300");
    command.insert(command.end(),
                   {"/bin/sh", "-c", "trap 'echo told; exit 0' TERM; echo up; while :; do sleep 0.05; done"});
    LaunchedJob job(on_two_hosts(command), two_hosts());
    ASSERT_TRUE(job.shows("[0] up") && job.shows("[1] up")) << starter;
    std::this_thread::sleep_for(100ms);
    job.send(SIGTERM);
    EXPECT_EQ(job.exit_code(), 0) << starter << job.err();
    EXPECT_THAT(job.out(), HasSubstr("[1] told")) << starter;
    EXPECT_THAT(job.err(), Not(HasSubstr("first cause"))) << job.err();
    EXPECT_TRUE(job.all_gone_within(5s)) << starter;
  }
}

TEST(LauncherMpi, L10NoRankOfAKilledMpirunIsLeftWhenTheGroupStartsAgain) {
  LaunchedJob job(
      on_two_hosts({"/bin/sh", "-c",
                    "if [ $DDP_GENERATION = 1 ]; then before=$(cat beat.*); sleep 0.3; "
                    "[ \"$before\" = \"$(cat beat.*)\" ] && echo quiet; exit 0; fi; trap '' TERM; i=0; "
                    "echo up; while :; do i=$((i+1)); echo $i > beat.$RANK; sleep 0.05; done"},
                   {"--max-restarts", "1"}),
      two_hosts());
  ASSERT_TRUE(job.shows("[0] up") && job.shows("[1] up"));
  for (JobProcess const& process : job.processes()) {
    if (is_mpirun(process)) kill(process.pid, SIGKILL);
  }
  EXPECT_EQ(job.exit_code(), 0) << job.err();
  EXPECT_THAT(job.sorted_lines(), IsSupersetOf({"[0] quiet", "[1] quiet"}));
  EXPECT_TRUE(job.all_gone_within(5s));
  forgive_mpirun(job);
}

// B10: of the signal itself mpirun would die without a word to them. It kills the others as soon as one rank
// has ended (Open MPI 4.1: SIGCHLD ends its sleep), so each waits for the other's word.
TEST(LauncherMpi, AtASigquitTheRanksAreToldToEnd) {
  LaunchedJob job(
      {"--engine", "mpi", "--cpus", "2", "--no-log-files", "--", "/bin/sh", "-c",
       "trap 'touch told.$RANK; until [ -e told.0 ] && [ -e told.1 ]; do sleep 0.01; done; exit 0' TERM; "
       "echo up; while :; do sleep 0.05; done"});
  ASSERT_TRUE(job.shows("[0] up") && job.shows("[1] up"));
  std::this_thread::sleep_for(100ms);  // the word comes after the trap, but not by much
  job.send(SIGQUIT);
  job.exit_code();
  EXPECT_TRUE(std::filesystem::exists(job.directory() / "told.0"));
  EXPECT_TRUE(std::filesystem::exists(job.directory() / "told.1"));
  EXPECT_THAT(job.err(), HasSubstr("the job was stopped by SIGQUIT"));
}

TEST(LauncherMpi, L7WhatAKilledDaemonOfMpirunHasLeftIsRemoved) {
  LaunchedJob job(on_two_hosts({LAUNCHED_RANK, "*=stay"}), two_hosts());
  ASSERT_TRUE(job.shows("[0] joined"));
  ASSERT_TRUE(job.shows("[1] joined"));
  auto const folders = [&] {
    Words found;
    for (char const* const host : {"ompi-node-a", "ompi-node-b"}) {
      std::error_code none;
      auto const folder = job.temporary_directory().parent_path() / host;
      for (auto const& entry : std::filesystem::recursive_directory_iterator(folder, none)) {
        std::string const name = entry.path().filename();  // "jf.0"; of Open MPI 5 "prted.4711"
        if (name.starts_with("jf.") || name.starts_with("prted.")) found.push_back(entry.path());
      }
    }
    return found;
  };
  EXPECT_FALSE(folders().empty());
  for (JobProcess const& process : job.processes()) {
    if (is_daemon(process)) kill(process.pid, SIGKILL);
  }
  EXPECT_NE(job.exit_code(), 0);
  EXPECT_TRUE(job.all_gone_within(5s));
  auto const end = std::chrono::steady_clock::now() + 5s;  // the guard removes them after the rank has ended
  while (!folders().empty() && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(20ms);
  EXPECT_THAT(folders(), ElementsAre());
}

// L7: programs that know nothing of MPI too, and their children.
class LauncherMpiKilled : public ::testing::TestWithParam<char const*> {};

TEST_P(LauncherMpiKilled, L7NoRankIsLeft) {
  LaunchedJob job(on_two_hosts({"/bin/sh", "-c", "sleep 60 & echo started; sleep 60"}), two_hosts());
  ASSERT_TRUE(job.shows("[0] started"));
  ASSERT_TRUE(job.shows("[1] started"));
  for (JobProcess const& process : job.processes()) {
    if (std::string_view(GetParam()) == "mpirun" ? is_mpirun(process) : process.name.starts_with(GetParam()))
      kill(process.pid, SIGKILL);
  }
  EXPECT_TRUE(job.all_gone_within(5s));
  EXPECT_EQ(job.exit_code(), 137);
}

TEST_P(LauncherMpiKilled, NothingOfMpiIsLeftInSharedMemory) {
  LaunchedJob job({"--engine", "mpi", "--cpus", "2", "--no-log-files", "--", LAUNCHED_RANK, "*=stay"});
  ASSERT_TRUE(job.shows("[0] joined"));
  ASSERT_TRUE(job.shows("[1] joined"));
  auto const segments = shared_memory_of(job.processes());
  EXPECT_EQ(segments.size(), 2U);
  for (JobProcess const& process : job.processes()) {
    if (std::string_view(GetParam()) == "mpirun" ? is_mpirun(process) : process.name.starts_with(GetParam()))
      kill(process.pid, SIGKILL);
  }
  EXPECT_TRUE(job.all_gone_within(5s));
  EXPECT_EQ(job.exit_code(), 137);
  for (std::string const& file : segments) EXPECT_FALSE(std::filesystem::exists(file)) << file;
}

INSTANTIATE_TEST_SUITE_P(, LauncherMpiKilled, ::testing::Values("ddp-launch", "mpirun"), [](auto const& who) {
  return std::string(who.param == std::string("mpirun") ? "Mpirun" : "Launcher");
});

}  // namespace
}  // namespace ddp::testing
