// ddp-launch at the limits that it is given: of files, of paths, of what people can read, of what was left
// behind.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <fstream>
#include <set>
#include <thread>

#include "ddp/core/text.hpp"
#include "support/launcher/launched_job.hpp"
#include "support/launcher/shell.hpp"

namespace ddp::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using Words = std::vector<std::string>;
using namespace std::chrono_literals;

constexpr rlim_t kSmall = rlim_t{64} << 10;

/// ulimit -f, for jobs that are started while this lives.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    getrlimit(RLIMIT_FSIZE, &before_);
    rlimit limit = before_;
    limit.rlim_cur = bytes;
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() { setrlimit(RLIMIT_FSIZE, &before_); }
  FileSizeLimit(FileSizeLimit const&) = delete;
  FileSizeLimit& operator=(FileSizeLimit const&) = delete;

 private:
  rlimit before_{};
};

std::size_t count(std::string const& text, std::string const& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

std::set<std::string> names_in(fs::path const& folder) {
  std::set<std::string> names;
  for (auto const& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename().string());
  return names;
}

pid_t guard_of(LaunchedJob const& job) {
  for (auto const until = std::chrono::steady_clock::now() + 10s; std::chrono::steady_clock::now() < until;
       std::this_thread::sleep_for(5ms)) {
    for (JobProcess const& process : job.processes()) {
      if (process.name == "ddp-guard\n") return process.pid;
    }
  }
  ADD_FAILURE() << "no guard";
  return 0;
}

// B10: files and shared memory of the launcher's own are limited too
TEST(FileSizeLimits, AJobGoesOnWithoutTheFilesThatAreFull) {
  FileSizeLimit const limit(kSmall);
  LaunchedJob job(Words{"--cpus", "2", "--log-dir", "logs", "--", "/bin/sh", "-c", "seq 1 50000"});
  EXPECT_EQ(job.exit_code(), 0) << job.err();
  EXPECT_EQ(count(job.out(), "\n"), 100000U) << "all of it is shown";
  for (std::string const file : {"logs/rank0.out", "logs/rank1.out"}) {
    EXPECT_EQ(count(job.err(), file + ": File too large (ulimit -f)"), 1U) << job.err();
    EXPECT_EQ(fs::file_size(job.directory() / file), kSmall);
  }
}

// B10
TEST(FileSizeLimits, ARankThatTheyEndIsReportedWithTheReason) {
  FileSizeLimit const limit(kSmall);
  LaunchedJob job(shell_ranks(1, "exec head -c 1000000 /dev/zero >data"));
  EXPECT_EQ(job.exit_code(), 128 + SIGXFSZ);
  EXPECT_THAT(job.err(), AllOf(HasSubstr("(SIGXFSZ)"), HasSubstr("beyond the limit of ulimit -f")));
}

TEST(FullDisk, WhatCannotBeShownIsSaidAndTheLogFilesGoOn) {
  LaunchedJob job(Words{"--cpus", "2", "--log-dir", "logs", "--", "/bin/sh", "-c", "seq 1 50000"},
                  {.out = "/dev/full"});
  EXPECT_EQ(job.exit_code(), 74) << job.err();
  EXPECT_EQ(count(job.err(),
                  "[ddp-launch] warning: cannot write to stdout: No space left on device; what the ranks "
                  "print is in the log files only\n"),
            1U)
      << job.err();
  EXPECT_THAT(job.err(), HasSubstr("[ddp-launch] not all output could be written; exit code 74\n"));
  for (char const* file : {"logs/rank0.out", "logs/rank1.out"}) {
    EXPECT_EQ(count(read_file(job.directory() / file), "\n"), 50000U) << file;
  }
}

TEST(FullDisk, AFailedRanksExitCodeComesFirst) {
  LaunchedJob job(shell_ranks(1, "echo words; exit 3"), {.out = "/dev/full"});
  EXPECT_EQ(job.exit_code(), 3);
  EXPECT_THAT(job.err(), HasSubstr("No space left on device; what the ranks print is lost from here on\n"));
}

TEST(FullDisk, CountsForWhatDdpLaunchItselfPrints) {
  for (Words const& words :
       {Words{"--help"}, Words{"--version"}, Words{"--cpus", "1", "--dry-run", "--", "true"},
        Words{"--cpus", "1", "--list-devices"}}) {
    LaunchedJob job(words, {.out = "/dev/full"});
    EXPECT_EQ(job.exit_code(), 74) << words.front();
    EXPECT_EQ(job.err(), "ddp-launch: cannot write to stdout: No space left on device\n");
  }
}

TEST(FullDisk, AReaderThatIsGoneIsNone) {
  LaunchedJob job(shell_ranks(1, "sleep 0.2; seq 1 50000"), {.reader_leaves = true});
  EXPECT_EQ(job.exit_code(), 0) << job.err();
  EXPECT_EQ(job.err(), "");
}

TEST(FileSizeLimits, AReportNamesNoFileAsCompleteThatIsNot) {
  FileSizeLimit const limit(kSmall);
  LaunchedJob job(Words{"--cpus", "1", "--log-dir", "logs", "--events", "events", "--", "/bin/sh", "-c",
                        "seq 1 50000; echo bad >&2; exit 3"});
  EXPECT_EQ(job.exit_code(), 3);
  EXPECT_THAT(job.err(),
              AllOf(HasSubstr("  its output, as far as it could be written: logs/rank0.out (File too large "
                              "(ulimit -f); the rest is not in it) and logs/rank0.err\n"),
                    Not(HasSubstr("all of its output"))));
  EXPECT_THAT(read_file(job.directory() / "events"),
              AllOf(Not(HasSubstr("out_file")), HasSubstr("\"err_file\":\"logs/rank0.err\"")));
}

TEST(FewDescriptors, ARefusalWithTheNumberComesBeforeAnythingStarts) {
  TemporaryFolder const folder;
  auto const run = [&](int limit,
                       int ranks) {  // in a shell: who lowers the hard limit may not raise it again
    return run_shell(folder.path(), text("ulimit -n ", limit, "\nexec " DDP_LAUNCH " --cpus ", ranks,
                                         " --log-dir logs", ranks, " -- " LAUNCHED_RANK " '*=meet'"));
  };
  auto const enough = run(24 + 7 * 8 + 10, 8);  // the ten are for descriptors that it inherits
  EXPECT_EQ(enough.exit_code, 0) << enough.err;
  EXPECT_TRUE(fs::exists(folder.path() / "logs8"));
  auto const few = run(24 + 7 * 8 + 10, 11);
  EXPECT_EQ(few.exit_code, 75);
  EXPECT_THAT(few.err,
              ::testing::ContainsRegex("ddp-launch: ddp-launch needs 1[01][0-9] file descriptors for 11 "
                                       "ranks, and may open 90: "));
  EXPECT_FALSE(fs::exists(folder.path() / "logs11")) << "nothing was begun";
}

// B10
TEST(ManyRanks, TheEndOfOneIsToldInSevenLines) {
  LaunchedJob job(
      shell_ranks(64, "[ $RANK = 7 ] && kill -KILL $$; exec sleep 100", {"--failure-grace", "0.3"}));
  EXPECT_EQ(job.exit_code(), 137);
  EXPECT_LE(count(job.err(), "\n"), 7U) << job.err();
  EXPECT_THAT(job.err(),
              AllOf(HasSubstr("first cause: rank 7 "),
                    HasSubstr("ranks 0-6,8-63: each was still running and was killed by ddp-launch\n"),
                    HasSubstr("ranks 0-6,8-63 did not end within 0.3 s: killing\n")));
}

// B10: the ranks' own words about it too
TEST(ManyRanks, WhatAllOfThemSayOfAFailureIsShownOnce) {
  LaunchedJob job(shell_ranks(64, R"(
    if [ $RANK = 7 ]; then until [ $(ls up.* | wc -l) = 63 ]; do sleep 0.05; done; exit 9; fi
    if [ $RANK = 20 ]; then words="something else"; else words="rank $RANK: rank 7 is gone"; fi
    trap 'echo "$words" >&2; exit 1' USR1
    touch up.$RANK
    while :; do sleep 0.1; done)"));
  ASSERT_TRUE(job.shows("waiting up to 5 s for the others"));
  job.send(SIGUSR1);
  EXPECT_EQ(job.exit_code(), 9);
  EXPECT_LE(count(job.err(), "\n"), 10U) << job.err();
  EXPECT_EQ(count(job.err(), ": rank 7 is gone\n"), 1U);
  EXPECT_THAT(
      job.err(),
      AllOf(HasSubstr(" lines of stderr not shown, since another rank wrote the same above"),
            HasSubstr("[20] something else\n"), HasSubstr("ranks 0-6,8-63: each exited with code 1\n")));
}

// B10
TEST(StoppedJobs, WhatTheLauncherKillsAfterTheGraceIsNoCause) {
  LaunchedJob job(shell_ranks(3, "trap '' TERM; echo up; while :; do sleep 0.05; done", {"--grace", "0.3"}));
  ASSERT_TRUE(job.shows("[0] up") && job.shows("[1] up") && job.shows("[2] up"));
  job.send(SIGTERM);
  EXPECT_EQ(job.exit_code(), 128 + SIGTERM);
  EXPECT_THAT(job.err(),
              AllOf(HasSubstr("the job was stopped by SIGTERM\n"), Not(HasSubstr("first cause")),
                    HasSubstr("ranks 0-2: each was still running and was killed by ddp-launch\n")));
}

// B10
TEST(StoppedJobs, OfSigquitTheRanksHaveTimeToEndAsOfOtherSignals) {
  LaunchedJob job(
      shell_ranks(2, "trap 'sleep 0.2; echo saved; exit 0' QUIT; echo up; while :; do sleep 0.05; done"));
  ASSERT_TRUE(job.shows("[0] up") && job.shows("[1] up"));
  std::this_thread::sleep_for(100ms);
  job.send(SIGQUIT);
  EXPECT_EQ(job.exit_code(), 0);
  EXPECT_THAT(job.sorted_lines(), ElementsAre("[0] saved", "[0] up", "[1] saved", "[1] up"));
  EXPECT_THAT(job.err(), HasSubstr("the job was stopped by SIGQUIT\n"));
}

// B10
TEST(ReusedLogFolder, HasNothingOfALargerJobAndAllThatIsNotOfALauncher) {
  TemporaryFolder folder;
  auto const run = [&](char const* ranks, char const* code) {
    LaunchedJob job(Words{"--cpus", ranks, "--log-dir", folder.path().string(), "--", "/bin/sh", "-c",
                          std::string("exit ") + code});
    EXPECT_EQ(job.exit_code(), std::stoi(code));
  };
  run("4", "3");
  EXPECT_TRUE(fs::exists(folder.path() / "rank3.err"));
  for (char const* stale : {"mpirun.out", "rank0.flight.json", "rank17.flight.json"}) {
    std::ofstream(folder.path() / stale) << "old";
  }
  std::set<std::string> others{"rank7.txt", "rank07.out", "rank9.out.gz", "rank.out", "rank-1.out", "notes"};
  for (std::string const& mine : others) std::ofstream(folder.path() / mine) << "mine";
  fs::create_symlink("notes", folder.path() / "rank8.err");
  fs::create_directory(folder.path() / "rank9.err");
  run("2", "0");
  others.insert({"rank8.err", "rank9.err", "rank0.out", "rank0.err", "rank1.out", "rank1.err"});
  EXPECT_EQ(names_in(folder.path()), others);
}

// B10: a socket's path has at most 107 bytes
TEST(LongTemporaryFolder, IsReplacedByAShortOne) {
  TemporaryFolder folder;
  fs::path const place = folder.path() / std::string(100, 'x');
  fs::create_directory(place);
  LaunchedJob job(shell_ranks(1,
                              "echo $DDP_CONTROL; stat -c %a $(dirname $DDP_CONTROL); "
                              "test -S $DDP_CONTROL && echo socket"),
                  {.environment = {"TMPDIR=" + place.string(), "DDP_LOG=info"}});
  EXPECT_EQ(job.exit_code(), 0) << job.err();
  EXPECT_THAT(job.out(), AllOf(HasSubstr("[0] 700\n"), HasSubstr("[0] socket\n"), Not(HasSubstr("xxxx"))));
  EXPECT_THAT(job.err(), HasSubstr("the control directory is made in "));
  EXPECT_THAT(names_in(place), IsEmpty());
  std::string const socket = lines(job.out()).at(0).substr(4);
  EXPECT_FALSE(fs::exists(fs::path(socket).parent_path())) << socket;
}

TEST(TemporaryFolder, ThatEveryUserMayChangeIsRefusedWithWhatToSet) {
  ddp::testing::TemporaryFolder const folder;
  fs::path const open = folder.path() / "open";
  fs::create_directories(open / "mine");
  ASSERT_EQ(chmod(open.c_str(), 0777), 0);
  fs::create_symlink(open / "mine", folder.path() / "link");
  for (fs::path const& place : {open, open / "mine", folder.path() / "link"}) {
    LaunchedJob job(shell_ranks(1, "touch started"), {.environment = {"TMPDIR=" + place.string()}});
    EXPECT_EQ(job.exit_code(), 73) << place;
    EXPECT_THAT(job.err(),
                AllOf(HasSubstr("every user may write to " + open.string() + ", which is not sticky"),
                      HasSubstr("expected TMPDIR to name a folder of your own")));
    EXPECT_FALSE(fs::exists(job.directory() / "started"));
  }
  ASSERT_EQ(chmod(open.c_str(), 01777), 0);
  LaunchedJob job(shell_ranks(1, "true"), {.environment = {"TMPDIR=" + open.string()}});
  EXPECT_EQ(job.exit_code(), 0) << job.err();
}

TEST(GivenLogLevel, ThatIsNoneIsWarnedOfOnce) {
  LaunchedJob job(program_ranks(2, {"*=meet"}), {.environment = {"DDP_LOG=inof"}});
  EXPECT_EQ(job.exit_code(), 0);
  EXPECT_EQ(job.err(),
            "[ddp] warning: DDP_LOG=inof: expected error, warning, info, debug; \"warning\" is used; did you "
            "mean info?\n");
}

TEST(GivenFiles, AHostfileWithAByteOrderMarkIsRefused) {
  LaunchedJob job({"--hostfile", "/dev/stdin", "--dry-run", "--", "/bin/true"},
                  {.input = "\xef\xbb\xbflocalhost slots=2\n"});
  EXPECT_EQ(job.exit_code(), 64);
  EXPECT_THAT(job.err(), HasSubstr("/dev/stdin:1: begins with a byte-order mark"));
}

// B10
TEST(GivenFiles, AHostfileWithoutAnEndIsRefused) {
  LaunchedJob device({"--hostfile", "/dev/zero", "--dry-run", "--", "/bin/true"});
  EXPECT_EQ(device.exit_code(10s), 64);
  EXPECT_THAT(device.err(), HasSubstr("--hostfile /dev/zero: is a device; expected a file or a pipe"));
  LaunchedJob pipe({"--hostfile", "/dev/stdin", "--dry-run", "--", "/bin/true"},
                   {.input = "localhost slots=2\n"});
  EXPECT_EQ(pipe.exit_code(10s), 0) << pipe.err();
  EXPECT_THAT(pipe.out(), HasSubstr("mpi: 2 ranks"));
}

// B10
TEST(Leftovers, OfALauncherKilledTogetherWithItsGuardAreRemovedByTheNext) {
  TemporaryFolder folder;
  LaunchedJob::Settings const there{.environment = {"TMPDIR=" + folder.path().string()}};
  {
    LaunchedJob job(shell_ranks(1, "echo up; exec sleep 60"), there);
    ASSERT_TRUE(job.shows("[0] up"));
    pid_t const guard = guard_of(job);
    ASSERT_GT(guard, 0);
    job.send(SIGSTOP);  // it would get another guard
    kill(guard, SIGKILL);
    job.send(SIGKILL);
    EXPECT_EQ(job.exit_code(), 137);
  }
  auto const left = names_in(folder.path());
  ASSERT_EQ(left.size(), 1U) << "nobody could remove it";
  std::string const about_to_lock = "ddp-0123456789abcdef";
  std::string const other_host = "ddp-fedcba9876543210";
  std::set<std::string> const others{about_to_lock, other_host, "ddp-notes", "ddp-0123456789abcdef0"};
  for (std::string const& name : others) {
    fs::create_directory(folder.path() / name);
    fs::permissions(folder.path() / name, fs::perms::owner_all);
  }
  std::ofstream(folder.path() / other_host / "owner.of another host") << "";
  LaunchedJob living(
      shell_ranks(1,
                  "echo up; until [ -e go ]; do sleep 0.05; done; test -S $DDP_CONTROL && echo still there"),
      there);
  ASSERT_TRUE(living.shows("[0] up"));
  auto now = names_in(folder.path());
  EXPECT_EQ(now.count(*left.begin()), 0U) << "swept";
  EXPECT_EQ(now.size(), 5U);
  LaunchedJob other(shell_ranks(1, "true"), there);
  EXPECT_EQ(other.exit_code(), 0);
  EXPECT_EQ(names_in(folder.path()), now) << "of a launcher that lives";
  std::ofstream(living.directory() / "go") << "";
  EXPECT_EQ(living.exit_code(), 0);
  EXPECT_THAT(living.out(), HasSubstr("[0] still there"));
  EXPECT_EQ(names_in(folder.path()), others);
}

}  // namespace
}  // namespace ddp::testing
