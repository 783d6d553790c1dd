// Faults of ranks that train: the survivors get an error at once, and ddp-launch names the first cause.
#include <gmock/gmock.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fstream>
#include <functional>
#include <thread>

#include "ddp/core/text.hpp"
#include "support/launcher/launched_job.hpp"
#include "support/launcher/shell.hpp"
#include "support/launcher/terminal.hpp"

namespace ddp::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

std::vector<std::string> training(int ranks, std::string const& fault, int faulty_rank) {
  return {"--cpus", std::to_string(ranks),      "--no-log-files", "--", DDP_TRAINING_RANK,
          fault,    std::to_string(faulty_rank)};
}

TEST(TrainingFaults, F1AKilledRankIsNamedWithinASecondAndEveryOtherRankGetsAnError) {
  LaunchedJob job(training(3, "kill-in-all-reduce", 1));
  ASSERT_TRUE(job.shows("dies in 0.1 s"));
  auto const alive = std::chrono::steady_clock::now();
  ASSERT_TRUE(job.shows("rank 1 (pid"));
  auto const named = std::chrono::steady_clock::now();
  EXPECT_LT(named - alive, 1100ms);
  // Both survivors were in the middle of an all-reduce.
  EXPECT_EQ(job.exit_code(), 137);
  EXPECT_LT(std::chrono::steady_clock::now() - named, 4s) << "survivors waited for the grace to pass";
  for (std::string const survivor : {"0", "2"}) {
    EXPECT_THAT(job.err(), ContainsRegex("\\[" + survivor +
                                         "\\] peer_lost: [^\n]*rank 1 is gone \\(killed by signal 9"));
  }
  EXPECT_THAT(job.err(), HasSubstr("SIGKILL"));
  EXPECT_THAT(job.err(), HasSubstr("all_reduce"));
  EXPECT_THAT(job.err(), HasSubstr("last progress since the start: step 20\n"))
      << "told once a second at most";
  EXPECT_THAT(job.err(), HasSubstr("first cause: rank 1"));
}

TEST(TrainingFaults, F4ARankThatExits0WithoutLeavingIsTheFirstCause) {
  LaunchedJob job(training(2, "exit-early", 1));
  EXPECT_NE(job.exit_code(), 0);
  EXPECT_THAT(job.err(), HasSubstr("left before the others"));
  EXPECT_THAT(job.err(), HasSubstr("peer_lost: rank 1 is gone"));
}

TEST(TrainingFaults, ARankThatLeavesInOrderWhileOthersNeedItIsNamedByThem) {
  LaunchedJob job(training(2, "return", 1));
  EXPECT_EQ(job.exit_code(), 3);
  EXPECT_THAT(job.err(),
              ContainsRegex(
                  "peer_lost: rank 1 is gone \\(left the group\\) [^\n]*; if its data ended "
                  "before that of others: set DistributedDataParallel::Options::uneven and call join\\(\\)"));
}

// The one that waits first gives up first: the one in the barrier, or the one that still trains.
TEST(UnevenBatches, ATimeoutSaysWhichRankEndedItsLoopAndWhatToCall) {
  LaunchedJob barrier(training(2, "data-ends", 1), {.environment = {"DDP_TIMEOUT=1"}});
  EXPECT_EQ(barrier.exit_code(), 3);
  EXPECT_THAT(barrier.err(),
              ContainsRegex("timeout: control plane: [^\n]*missing: 0; rank 1 came here after 20 "
                            "steps: if others have more data, [^\n]*set_weight\\(0\\)"));
  LaunchedJob step(training(2, "data-ends-late", 1), {.environment = {"DDP_TIMEOUT=1"}});
  EXPECT_EQ(step.exit_code(), 3);
  EXPECT_THAT(step.err(),
              ContainsRegex("timeout: rank 0 waited 1 s [^\n]*for rank 1; [^\n]*; rank 1 waits in "
                            "World::barrier\\(\\); if its data ended [^\n]*set_weight\\(0\\)"));
}

TEST(TrainingFaults, F7DifferentShapesAreTheSameErrorOnEveryRank) {
  LaunchedJob job(training(3, "shapes", 2));
  EXPECT_EQ(job.exit_code(), 3);
  std::string const message =
      "mismatch: rank 2: parameter 0 \"weight\" is f32[3000] on cpu here, f32[2000] on cpu on rank 0";
  for (char const* const rank : {"[0] ", "[1] ", "[2] "}) EXPECT_THAT(job.err(), HasSubstr(rank + message));
}

// B8
TEST(TrainingFaults, F3AStoppedRankIsTheFirstCauseAndKilledAtTheEnd) {
  auto words = training(3, "stop", 1);
  words.insert(words.begin(), {"--failure-grace", "1"});
  LaunchedJob job(words, {.environment = {"DDP_TIMEOUT=1.5"}});
  EXPECT_EQ(job.exit_code(), 3) << "the stopped rank has no code of its own";
  EXPECT_THAT(job.err(),
              ContainsRegex("timeout: rank [02] waited 1.5 s [^\n]*for rank 1; [^\n]*raise [^\n]*DDP_TIMEOUT"
                            "[^\n]*; rank 1 \\(process [0-9]+\\) is stopped by a signal"));
  EXPECT_THAT(job.err(),
              ContainsRegex("first cause: rank 1 [^\n]*was stopped by a signal \\(SIGSTOP, Ctrl-Z\\), "
                            "and then was killed by ddp-launch\n[^\n]*the others waited for it"));
  EXPECT_THAT(job.err(), ContainsRegex("consequences:\n[^\n]*rank 0 [^\n]*exited with code 3"));
  EXPECT_THAT(job.err(),
              ContainsRegex("number [0-9]+ of ddp/0 on cpu: ranks 0, 2 called [^\n]*rank 1 called nothing"));
}

TEST(TrainingFaults, R13ACommHookThatNeverReturnsEndsTheJobAtTheDeadlineOfTheOthers) {
  auto words = training(3, "hook-waits", 1);
  words.insert(words.begin(), {"--failure-grace", "1"});
  LaunchedJob job(words, {.environment = {"DDP_TIMEOUT=1.5"}});
  ASSERT_TRUE(job.shows("training"));
  auto const training = std::chrono::steady_clock::now();
  EXPECT_NE(job.exit_code(), 0);
  EXPECT_LT(std::chrono::steady_clock::now() - training, 10s);
  for (char const* const rank : {"0", "2"}) {  // of which one gives up first
    EXPECT_THAT(job.err(),
                ContainsRegex(text("\\[", rank, "\\] [^\n]*rank [02] waited 1.5 s [^\n]*for rank 1;")));
  }
  EXPECT_THAT(job.err(), ContainsRegex("rank 1 [^\n]*was killed by ddp-launch"));
}

// B8: also where the launcher alone knows
TEST(StoppedRank, IsTheFirstCauseOfADeadlineOfTheControlPlane) {
  LaunchedJob job(program_ranks(2, {"1=stop", "*=meet-within-2s"}, {"--failure-grace", "0.5"}));
  EXPECT_EQ(job.exit_code(), 1);
  EXPECT_THAT(job.err(),
              ContainsRegex("timeout: [^\n]*; rank 1 \\(process [0-9]+\\) is stopped by a signal"));
  EXPECT_THAT(job.err(), ContainsRegex("first cause: rank 1 [^\n]*was stopped by a signal"));
}

TEST(StoppedRank, IsNamedAndKilledAfterTheDeadlineThoughAllOthersHaveEnded) {
  LaunchedJob job(program_ranks(3, {"1=meet-and-stop", "*=meet"}), {.environment = {"DDP_TIMEOUT=1.5"}});
  EXPECT_EQ(job.exit_code(), 1) << "it has no code of its own";
  EXPECT_THAT(job.err(), ContainsRegex("rank 1 [^\n]* has been stopped by a signal \\(SIGSTOP, Ctrl-Z\\) for "
                                       "1.5 s \\(DDP_TIMEOUT\\), and the other ranks have ended: killing; "
                                       "kill -CONT [0-9]+ in time lets it go on"));
  EXPECT_THAT(job.err(),
              ContainsRegex("first cause: rank 1 [^\n]*was stopped by a signal [^\n]*, and then was "
                            "killed by ddp-launch\n[^\n]*the others had ended"));
}

TEST(StoppedRank, IsNotTheCauseOfACrash) {
  LaunchedJob job(program_ranks(3, {"0=segv", "1=stop", "*=meet"}, {"--failure-grace", "0.5"}));
  EXPECT_EQ(job.exit_code(), 139);
  EXPECT_THAT(job.err(), HasSubstr("first cause: rank 0 "));
  EXPECT_THAT(job.err(),
              ContainsRegex("rank 1 [^\n]*was stopped by a signal [^\n]*was killed by ddp-launch"));
}

// B7: longer than the deadline, while ranks wait for one that would have come in time
class CtrlZ : public ::testing::Test {
 protected:
  static std::string running_ranks(LaunchedJob const& job) {
    std::string names;
    for (JobProcess const& process : job.processes()) {
      // D: a shell whose child was stopped between vfork() and exec() waits for it.
      bool const stands = process.state == 'T' || process.state == 'D';
      if (!stands && !process.name.starts_with("ddp-guard")) names += process.name;
    }
    return names;
  }
  static void stop_and_go_on(LaunchedJob& job, std::function<void()> const& press) {
    ASSERT_TRUE(job.shows("comes later"));
    press();
    ASSERT_TRUE(job.stops());
    // The kernel tells a rank that is running now a moment later.
    for (auto const until = std::chrono::steady_clock::now() + 5s; running_ranks(job) != "";) {
      ASSERT_LT(std::chrono::steady_clock::now(), until) << running_ranks(job);
      std::this_thread::sleep_for(5ms);
    }
    std::this_thread::sleep_for(3s);
    job.send(SIGCONT);
  }
  static void stop_and_go_on(LaunchedJob& job) {
    stop_and_go_on(job, [&] { job.send(SIGTSTP); });
  }
};

TEST_F(CtrlZ, StopsTheRanksTooAndNoDeadlineOfACollectiveRuns) {
  LaunchedJob job(training(3, "late", 1), {.environment = {"DDP_TIMEOUT=2"}});
  stop_and_go_on(job);
  EXPECT_EQ(job.exit_code(), 0) << job.err();
  EXPECT_EQ(job.err(), "");
}

TEST_F(CtrlZ, NoDeadlineOfTheControlPlaneRuns) {
  LaunchedJob job(program_ranks(3, {"1=meet-late", "*=meet-within-2s"}));
  stop_and_go_on(job);
  EXPECT_EQ(job.exit_code(), 0) << job.err();
}

TEST_F(CtrlZ, NoGraceRuns) {
  LaunchedJob job(shell_ranks(2,
                              "[ $RANK = 1 ] && exit 3; sleep 0.3; echo comes later; "
                              "i=0; while [ $i -lt 25 ]; do sleep 0.02; i=$((i+1)); done; echo has ended",
                              {"--failure-grace", "2.5"}));
  stop_and_go_on(job);
  EXPECT_EQ(job.exit_code(), 3);
  EXPECT_THAT(job.out(), HasSubstr("[0] has ended\n"));
}

TEST_F(CtrlZ, IsAKeyOnTheTerminal) {
  auto const terminal = open_terminal();
  if (!terminal) GTEST_SKIP() << "no pseudo-terminal here: " << std::strerror(errno);
  LaunchedJob job(training(2, "late", 1),
                  {.environment = {"DDP_TIMEOUT=2"}, .terminal = terminal->follower.get()});
  stop_and_go_on(job, [&] { terminal->type("\x1a"); });
  EXPECT_EQ(job.exit_code(), 0) << job.err();
}

// Nobody could send it a SIGCONT: "ssh -t host ddp-launch …", "xterm -e", a service.
TEST_F(CtrlZ, DoesNotStopAJobThatNoShellCanContinue) {
  auto const ranks = shell_ranks(2,
                                 "trap 'echo goes on; exit 0' CONT; echo up; "
                                 "i=0; while [ $i -lt 3000 ]; do sleep 0.01; i=$((i+1)); done; exit 9");
  LaunchedJob service(ranks, {.shell = false});
  ASSERT_TRUE(service.shows("[0] up") && service.shows("[1] up"));
  service.send(SIGTSTP);
  EXPECT_EQ(service.exit_code(20s), 0);
  EXPECT_EQ(service.sorted_lines(),
            (std::vector<std::string>{"[0] goes on", "[0] up", "[1] goes on", "[1] up"}));
  auto const terminal = open_terminal();
  if (!terminal) GTEST_SKIP() << "no pseudo-terminal here: " << std::strerror(errno);
  LaunchedJob job(ranks, {.terminal = terminal->follower.get(), .shell = false});
  ASSERT_TRUE(job.shows("[0] up") && job.shows("[1] up"));
  terminal->type("\x1a");
  EXPECT_EQ(job.exit_code(20s), 0);
  EXPECT_EQ(job.sorted_lines(), (std::vector<std::string>{"[0] goes on", "[0] up", "[1] goes on", "[1] up"}));
}

TEST_F(CtrlZ, AStoppedJobCanBeEnded) {
  LaunchedJob job(shell_ranks(2, "echo up; exec sleep 60"));
  ASSERT_TRUE(job.shows("[0] up") && job.shows("[1] up"));
  job.send(SIGTSTP);
  ASSERT_TRUE(job.stops());
  job.send(SIGTERM);
  job.send(SIGCONT);
  EXPECT_EQ(job.exit_code(10s), 143);
  LaunchedJob killed(shell_ranks(2, "echo up; exec sleep 60"));
  ASSERT_TRUE(killed.shows("[0] up") && killed.shows("[1] up"));
  killed.send(SIGTSTP);
  ASSERT_TRUE(killed.stops());
  killed.send(SIGKILL);
  EXPECT_TRUE(killed.all_gone_within(2s));
  EXPECT_EQ(killed.exit_code(10s), 137);
}

TEST(TrainingFaults, F8RanksThatCallDifferentCollectivesAreToldWhichAndWhere) {
  LaunchedJob job(training(3, "order", 2));
  EXPECT_EQ(job.exit_code(), 3);
  EXPECT_THAT(job.err(), HasSubstr("first differ at number 1 of world: ranks 0, 1 called all_reduce (sum) of "
                                   "f32[4194304]; rank 2 called broadcast from rank 0 of f32[4194304]"));
  EXPECT_THAT(job.err(), HasSubstr("last collective: "));
}

TEST(TrainingFaults, F8EveryRanksLastCollectivesAreWrittenAlsoThoseOfAKilledOne) {
  TemporaryFolder const folder;
  std::string const logs = folder.path() / "logs";
  LaunchedJob job({"--cpus", "2", "--log-dir", logs, "--", DDP_TRAINING_RANK, "kill-in-all-reduce", "1"});
  EXPECT_EQ(job.exit_code(), 137);
  EXPECT_THAT(job.err(), HasSubstr("the last collectives of all ranks: " + logs + "/rank*.flight.json"));
  for (int rank = 0; rank < 2; ++rank) {
    std::string const json = read_file(text(logs, "/rank", rank, ".flight.json"));
    EXPECT_THAT(json, HasSubstr(text("\"rank\": ", rank)));
    EXPECT_THAT(json, HasSubstr("\"communicator\": \"ddp/0 on cpu\""));
    EXPECT_THAT(json, HasSubstr("\"operation\": \"all_reduce\""));
  }
}

TEST(TrainingFaults, F10ASlowRankIsNamedAndNothingIsKilled) {
  LaunchedJob job(training(3, "slow", 1));
  EXPECT_EQ(job.exit_code(), 0) << job.err();
  EXPECT_THAT(job.err(),
              ContainsRegex("warning: rank 1 is late: ranks 0, 2 have called number [0-9]+ of ddp/0 on cpu"));
  EXPECT_THAT(job.err(), Not(HasSubstr("killing")));
}

TEST(TrainingFaults, R20TheSlowestRankOfARunningJobIsShown) {
  auto arguments = training(3, "slow-steps", 1);
  arguments.insert(arguments.begin(), {"--events", "events.jsonl"});
  LaunchedJob job(arguments, {.environment = {"DDP_STATISTICS=statistics"}});
  EXPECT_EQ(job.exit_code(), 0) << job.err();
  EXPECT_THAT(job.err(),
              ContainsRegex("step [0-9]+, [0-9]+[.][0-9] ms a step; the slowest is rank 1 [(]cpu:0[)], for "
                            "which others wait [0-9]+[.][0-9] ms a step"));
  EXPECT_THAT(read_file(job.directory() / "events.jsonl"),
              ContainsRegex("\"step_ms\":[0-9.]+,\"slowest\":1,\"late_ms\":[0-9.]+"));
  for (char const* const file : {"rank0.ddp-0.jsonl", "rank1.ddp-0.jsonl", "rank2.ddp-0.jsonl"}) {
    EXPECT_TRUE(std::filesystem::exists(job.directory() / "statistics" / file)) << file;
  }
}

TEST(TrainingFaults, F9ADeadlineListsTheRankThatNeverCallsInit) {
  LaunchedJob job(training(3, "no-init", 1), {.environment = {"DDP_INIT_TIMEOUT=1"}});
  EXPECT_EQ(job.exit_code(), 3);
  EXPECT_THAT(job.err(), HasSubstr("timeout: "));
  EXPECT_THAT(job.err(), ContainsRegex("rank 1[^0-9]"));
  EXPECT_THAT(job.err(), Not(HasSubstr("missing: rank 0")));
}

TEST(TrainingFaults, L8AnUncaughtExceptionIsTheReportedFirstCause) {
  LaunchedJob job(training(2, "uncaught", 0));
  EXPECT_EQ(job.exit_code(), 134);
  EXPECT_THAT(job.err(), HasSubstr("first cause: rank 0"));
  EXPECT_THAT(job.err(), HasSubstr("the loss is not a number"));
}

TEST(TrainingFaults, ABadValueInTheEnvironmentEndsInOrderThoughNobodyCatchesTheError) {
  struct Case {
    char const* variable;
    char const* words;
  };
  for (Case const& each :
       {Case{"DDP_TIMEOUT=soon", "[ddp] error: DDP_TIMEOUT=soon: expected a number of seconds"},
        Case{"DDP_COMM_SMS=some", "[ddp] error: DDP_COMM_SMS=some: expected a whole number"},
        Case{"DDP_BACKEND=pigeon", "no backend \"pigeon\""}}) {
    LaunchedJob job(training(1, "uncaught", 0), {.environment = {each.variable}});
    EXPECT_EQ(job.exit_code(), 64) << each.variable;
    EXPECT_THAT(job.err(), HasSubstr(each.words));
    EXPECT_THAT(job.err(), Not(HasSubstr("terminate called")));
  }
}

TEST(TrainingFaults, AnExceptionThatMainCatchesCountsAsAFailureToo) {
  LaunchedJob job(training(2, "exception", 0));
  EXPECT_EQ(job.exit_code(), 4);
  EXPECT_THAT(job.err(), HasSubstr("first cause: rank 0"));
  EXPECT_THAT(job.err(), HasSubstr("failed: the loss is not a number"));
}

TEST(TrainingFaults, L8ARankThatTakesLongToEndAfterItsExceptionIsTheFirstCauseAllTheSame) {
  LaunchedJob job(training(2, "exception-slow-exit", 0));
  EXPECT_EQ(job.exit_code(), 4);
  EXPECT_THAT(job.err(), HasSubstr("first cause: rank 0"));
  EXPECT_THAT(job.err(),
              HasSubstr("its error: invalid_state: rank 0 destroyed ddp/0 by an exception, after step 20"));
  EXPECT_THAT(job.err(), ContainsRegex("consequences:\n[^\n]*rank 1 [^\n]*exited with code 3: aborted"));
}

/// Three ranks that fail, with links in place of the files of `linked`, which all lead to "precious".
LaunchedJob job_with_linked_flight_files(std::vector<int> const& linked) {
  return {{"--cpus", "3", "--log-dir", "logs", "--", DDP_TRAINING_RANK, "exit-early", "1"},
          {.prepare = [linked](std::filesystem::path const& directory) {
            std::filesystem::create_directory(directory / "logs");
            std::ofstream(directory / "precious") << "untouched";
            for (int const rank : linked) {
              std::filesystem::create_symlink("../precious",
                                              directory / text("logs/rank", rank, ".flight.json"));
            }
          }}};
}

// B4
TEST(TrainingFaults, LastCollectivesAreNotWrittenThroughALink) {
  auto job = job_with_linked_flight_files({0});
  EXPECT_NE(job.exit_code(), 0);
  EXPECT_EQ(read_file(job.directory() / "precious"), "untouched");
  EXPECT_THAT(job.err(), HasSubstr("warning: cannot write logs/rank0.flight.json: it is a symbolic link"));
  EXPECT_EQ(job.err().find("cannot write"), job.err().rfind("cannot write")) << job.err();
  for (char const* file : {"logs/rank1.flight.json", "logs/rank2.flight.json"}) {
    EXPECT_THAT(read_file(job.directory() / file), HasSubstr("all_reduce")) << file;
  }
  EXPECT_THAT(job.err(), HasSubstr("the last collectives of ranks 1-2: logs/rank*.flight.json\n"));
}

TEST(TrainingFaults, LastCollectivesThatCannotBeWrittenForOneReasonAreSaidTogether) {
  auto job = job_with_linked_flight_files({0, 2});
  EXPECT_NE(job.exit_code(), 0);
  EXPECT_EQ(read_file(job.directory() / "precious"), "untouched");
  EXPECT_THAT(job.err(), HasSubstr("warning: cannot write logs/rank*.flight.json of ranks 0,2: it is a "
                                   "symbolic link"));
  EXPECT_EQ(job.err().find("cannot write"), job.err().rfind("cannot write")) << job.err();
  EXPECT_THAT(job.err(), HasSubstr("the last collectives of rank 1: logs/rank*.flight.json\n"));
}

}  // namespace
}  // namespace ddp::testing
