// ddp-launch --events, read as a machine would.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <nlohmann/json.hpp>

#include "support/launcher/launched_job.hpp"
#include "support/launcher/shell.hpp"

namespace ddp::testing {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::UnorderedElementsAre;
using Words = std::vector<std::string>;

/// Every line as an object, with what each must have.
std::vector<json> events_of(LaunchedJob const& job) {
  std::string const content = read_file(job.directory() / "events.jsonl");
  EXPECT_TRUE(content.ends_with("\n"));
  std::vector<json> events;
  double last = 0.0;
  for (std::string const& line : lines(content)) {
    json event = json::parse(line, nullptr, false);
    EXPECT_TRUE(event.is_object()) << line;
    if (!event.is_object()) continue;
    EXPECT_THAT(event.value("time", ""), MatchesRegex("[0-9-]+T[0-9:]+\\.[0-9][0-9][0-9]Z")) << line;
    EXPECT_GE(event.value("unix_time", 0.0), last) << line;
    EXPECT_FALSE(event.value("job", "").empty()) << line;
    EXPECT_TRUE(event.contains("generation")) << line;
    last = event.value("unix_time", 0.0);
    events.push_back(std::move(event));
  }
  if (events.empty()) events.push_back(json::object());  // what is looked for in it fails the test
  return events;
}

Words names_of(std::vector<json> const& events) {
  Words names;
  for (json const& event : events) names.push_back(event.value("event", ""));
  return names;
}

/// The events of that name, in their order.
std::vector<json> only(std::vector<json> const& events, std::string const& name) {
  std::vector<json> some;
  for (json const& event : events) {
    if (event.value("event", "") == name) some.push_back(event);
  }
  return some;
}

Words const kEvents{"--events", "events.jsonl"};

// B13
TEST(LauncherEvents, OfAJobThatGoesWellAreStartRanksAndEnd) {
  LaunchedJob job(program_ranks(2, {"*=meet"}, kEvents));
  EXPECT_EQ(job.exit_code(), 0) << job.err();
  auto const events = events_of(job);
  ASSERT_EQ(events.size(), 6U);
  json const& start = events.front();
  EXPECT_EQ(start.at("event"), "start");
  EXPECT_EQ(start.at("engine"), "local");
  EXPECT_EQ(start.at("size"), 2);
  EXPECT_EQ(start.at("pid"), job.pid());
  EXPECT_EQ(start.at("command").back(), "*=meet");
  EXPECT_EQ(start.at("devices").at(1), json({{"rank", 1}, {"device", "cpu:0"}}));
  EXPECT_EQ(start.at("max_restarts"), 0);
  EXPECT_FALSE(start.contains("log_dir")) << "there are no log files";
  for (char const* name : {"rank_up", "rank_joined"}) {
    auto const some = only(events, name);
    ASSERT_EQ(some.size(), 2U) << name;
    EXPECT_THAT((std::vector<int>{some[0].at("rank").get<int>(), some[1].at("rank").get<int>()}),
                UnorderedElementsAre(0, 1));
    EXPECT_GT(some[0].at("pid"), 1);
  }
  json const& end = events.back();
  EXPECT_EQ(end.at("event"), "end");
  EXPECT_EQ(end.at("exit_code"), 0);
  EXPECT_GE(end.at("seconds"), 0.0);
  EXPECT_FALSE(end.contains("first_cause"));
  ASSERT_EQ(end.at("ranks").size(), 2U);
  for (json const& rank : end.at("ranks")) {
    EXPECT_EQ(rank.at("exit_code"), 0);
    EXPECT_EQ(rank.at("failed"), false);
    EXPECT_EQ(rank.at("left"), true);
  }
}

// B13
TEST(LauncherEvents, OfAFailureHaveTheReportsFacts) {
  LaunchedJob job({"--cpus", "2", "--log-dir", "logs", "--events", "events.jsonl", "--", LAUNCHED_RANK,
                   "1=mismatch", "*=meet"});
  EXPECT_EQ(job.exit_code(), 5);
  auto const events = events_of(job);
  auto const steps = only(events, "step");
  ASSERT_EQ(steps.size(), 1U);
  EXPECT_EQ(steps[0].at("rank"), 1);
  EXPECT_EQ(steps[0].at("step"), 41);
  EXPECT_EQ(steps[0].at("progress"), "step 41");
  auto const failures = only(events, "failure");
  ASSERT_EQ(failures.size(), 2U);
  EXPECT_EQ(failures[0].at("rank"), 1);
  EXPECT_EQ(failures[0].at("exit_code"), 5);
  EXPECT_EQ(failures[0].at("consequence"), false);
  EXPECT_EQ(failures[0].at("error").at("code"), "mismatch");
  EXPECT_EQ(failures[1].at("rank"), 0);
  EXPECT_EQ(failures[1].at("consequence"), true);
  json const& error = failures[1].at("error");
  EXPECT_EQ(error.at("code"), "peer_lost");
  EXPECT_EQ(error.at("manner"), "exited");
  EXPECT_EQ(error.at("ranks"), json::array({1}));
  EXPECT_EQ(error.at("status"), 5);
  json const& end = events.back();
  EXPECT_EQ(end.at("event"), "end");
  EXPECT_EQ(end.at("exit_code"), 5);
  json const& cause = end.at("first_cause");
  EXPECT_EQ(cause.at("rank"), 1);
  EXPECT_EQ(cause.at("words"), "exited with code 5");
  EXPECT_EQ(cause.at("error").at("message"), "shapes differ:\n[2] here, [3] on rank 0");
  EXPECT_EQ(cause.at("progress"), "step 41");
  EXPECT_EQ(cause.at("last_stderr"), json::array({"about to give up"}));
  EXPECT_EQ(cause.at("err_file"), "logs/rank1.err");
  EXPECT_EQ(events.front().at("log_dir"), "logs");
}

// B13
TEST(LauncherEvents, OfASignalHaveItsName) {
  LaunchedJob job(shell_ranks(2, "[ $RANK = 1 ] && kill -KILL $$; sleep 0.2; exit 1", kEvents));
  EXPECT_EQ(job.exit_code(), 137);
  auto const cause = events_of(job).back().at("first_cause");
  EXPECT_EQ(cause.at("signal"), 9);
  EXPECT_EQ(cause.at("signal_name"), "SIGKILL");
  LaunchedJob stopped(shell_ranks(1, "echo up; sleep 60", kEvents));
  ASSERT_TRUE(stopped.shows("up"));
  stopped.send(SIGTERM);
  EXPECT_EQ(stopped.exit_code(), 143);
  json const end = events_of(stopped).back();
  EXPECT_EQ(end.at("stopped_by"), "SIGTERM");
  EXPECT_EQ(end.at("exit_code"), 143);
  EXPECT_FALSE(end.contains("first_cause")) << "nothing failed";
}

// B13
TEST(LauncherEvents, OfARestartNameTheGenerationThatComes) {
  LaunchedJob job(shell_ranks(1, "echo words >&2; exit $((7 - 7 * DDP_GENERATION))",
                              {"--max-restarts", "2", "--events", "events.jsonl"}));
  EXPECT_EQ(job.exit_code(), 0) << job.err();
  auto const events = events_of(job);
  EXPECT_THAT(names_of(events), ElementsAre("start", "rank_up", "failure", "restart", "rank_up", "end"));
  std::vector<int> generations;
  for (json const& event : events) generations.push_back(event.at("generation").get<int>());
  EXPECT_THAT(generations, ElementsAre(0, 0, 0, 1, 1, 1));
  json const& restart = events[3];
  EXPECT_EQ(restart.at("delay"), 0.0);
  EXPECT_EQ(restart.at("exit_code"), 7) << "of the generation before";
  EXPECT_EQ(restart.at("first_cause").at("last_stderr"), json::array({"words"}));
  EXPECT_EQ(events.back().at("exit_code"), 0);
}

// B13
TEST(LauncherEvents, AreAddedToTheFileAndAreWholeLinesWhateverRanksWrite) {
  LaunchedJob job(shell_ranks(1, "printf 'bad \\377 byte\\n' >&2; exit 1", kEvents),
                  {.prepare = [](std::filesystem::path const& directory) {
                    std::ofstream(directory / "events.jsonl")
                        << R"({"event":"end","time":"2026-01-31T12:00:00.000Z","unix_time":1.0,)"
                        << R"("job":"earlier","generation":0})" << '\n';
                  }});
  EXPECT_EQ(job.exit_code(), 1);
  auto const events = events_of(job);
  EXPECT_THAT(names_of(events), ElementsAre("end", "start", "rank_up", "failure", "end"));
  EXPECT_EQ(events.front().at("job"), "earlier");
  EXPECT_EQ(events.back().at("first_cause").at("last_stderr"), json::array({"bad \xef\xbf\xbd byte"}));
}

// B13
TEST(LauncherEvents, AFileThatCannotBeWrittenIsRefusedBeforeARankStarts) {
  for (std::string const file : {"/no/such/folder/events", "/dev/null", "/proc"}) {
    LaunchedJob job(shell_ranks(1, "touch started", {"--events", file}));
    EXPECT_EQ(job.exit_code(), 73);
    EXPECT_THAT(job.err(), HasSubstr("--events " + file + ": "));
    EXPECT_TRUE(std::filesystem::is_empty(job.directory()));
  }
  LaunchedJob link(shell_ranks(1, "touch started", kEvents),
                   {.prepare = [](std::filesystem::path const& directory) {
                     std::filesystem::create_symlink("elsewhere", directory / "events.jsonl");
                   }});
  EXPECT_EQ(link.exit_code(), 73);
  EXPECT_THAT(link.err(), HasSubstr("--events events.jsonl: it is a symbolic link"));
  EXPECT_FALSE(std::filesystem::exists(link.directory() / "elsewhere"));
}

// B13: as with log files
TEST(LauncherEvents, AFileThatIsSomethingElsesTooOrAnothersIsRefused) {
  LaunchedJob hard(shell_ranks(1, "touch started", kEvents),
                   {.prepare = [](std::filesystem::path const& directory) {
                     std::ofstream(directory / "precious") << "untouched";
                     std::filesystem::create_hard_link(directory / "precious", directory / "events.jsonl");
                   }});
  EXPECT_EQ(hard.exit_code(), 73);
  EXPECT_THAT(hard.err(), HasSubstr("--events events.jsonl: it is there under another name too"));
  EXPECT_EQ(read_file(hard.directory() / "precious"), "untouched");
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a file to another user";
  LaunchedJob theirs(shell_ranks(1, "touch started", kEvents),
                     {.prepare = [](std::filesystem::path const& directory) {
                       std::ofstream(directory / "events.jsonl") << "theirs";
                       EXPECT_EQ(chown((directory / "events.jsonl").c_str(), 65534, 65534), 0);
                     }});
  EXPECT_EQ(theirs.exit_code(), 73);
  EXPECT_THAT(theirs.err(), HasSubstr("--events events.jsonl: it belongs to user 65534; expected a regular"));
  EXPECT_EQ(read_file(theirs.directory() / "events.jsonl"), "theirs");
}

}  // namespace
}  // namespace ddp::testing
