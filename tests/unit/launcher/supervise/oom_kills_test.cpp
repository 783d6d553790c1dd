#include "launcher/report/oom_kills.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <fstream>

#include "ddp/core/text.hpp"
#include "launcher/report/report.hpp"
#include "support/launcher/shell.hpp"

namespace ddp::launcher {
namespace {

using namespace std::chrono_literals;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

/// A made-up /proc and /sys.
class MadeUpKernel : public ::testing::Test {
 protected:
  void write(std::string const& name, std::string const& content) const {
    auto const path = root_.path() / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << content;
  }
  [[nodiscard]] std::optional<OomKills> read() const { return read_oom_kills(root_.path()); }
  ddp::testing::TemporaryFolder root_;
};

std::string const kEvents = "low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0\n";

// B11
TEST_F(MadeUpKernel, TellsTheKillsOfTheCgroup) {
  write("proc/self/cgroup", "0::/user.slice/job:1\n");
  write("sys/fs/cgroup/user.slice/job:1/memory.events", kEvents);
  write("sys/fs/cgroup/user.slice/memory.events", "oom_kill 99\n");
  auto const kills = read();
  ASSERT_TRUE(kills);
  EXPECT_EQ(kills->count, 2U);
  EXPECT_THAT(kills->file, EndsWith("sys/fs/cgroup/user.slice/job:1/memory.events"));
}

// B11
TEST_F(MadeUpKernel, ACgroupWithoutACountIsCountedAboveIt) {
  write("proc/self/cgroup", "0::/user.slice/job/part\n");
  write("sys/fs/cgroup/user.slice/memory.events", "oom_kill 7\n");
  ASSERT_TRUE(read());
  EXPECT_EQ(read()->count, 7U);
}

// B11
TEST_F(MadeUpKernel, AContainerThatSeesItsOwnCgroupAsTheRootIsFound) {
  write("proc/self/cgroup", "0::/../../docker/4711\n");
  write("sys/fs/cgroup/memory.events", "oom_kill 1\n");
  ASSERT_TRUE(read());
  EXPECT_EQ(read()->count, 1U);
}

// B11
TEST_F(MadeUpKernel, TellsThemWithCgroupV1AndWithBoth) {
  write("proc/self/cgroup", "5:cpu,cpuacct:/\n4:memory:/job\n1:name=systemd:/\n0::/other\n");
  write("sys/fs/cgroup/memory/job/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n");
  write("sys/fs/cgroup/other/memory.events", "oom_kill 99\n");
  ASSERT_TRUE(read());
  EXPECT_EQ(read()->count, 5U);
  EXPECT_THAT(read()->file, EndsWith("memory/job/memory.oom_control"));
}

// B11
TEST_F(MadeUpKernel, ThatTellsNothingIsANormalAnswer) {
  EXPECT_FALSE(read());
  write("proc/self/cgroup", "0::/job\n");
  EXPECT_FALSE(read());
  write("sys/fs/cgroup/job/memory.events", "oom_kill many\n");
  EXPECT_FALSE(read());
  write("sys/fs/cgroup/job/memory.events", "low 0\n");
  EXPECT_FALSE(read());
}

// B11: what was killed long ago says nothing, and who is killed takes a while to end.
TEST_F(MadeUpKernel, ALookFromHalfAMinuteBeforeAFailureIsWhatItIsComparedWith) {
  auto const file = [&](int kills) {
    write("sys/fs/cgroup/job/memory.events", text("oom_kill ", kills, "\n"));
  };
  write("proc/self/cgroup", "0::/job\n");
  file(1);
  OomLooks looks(root_.path());
  OomLooks::Clock::time_point const start{};
  EXPECT_FALSE(looks.at_a_failure(start)) << "nobody has looked";
  auto const before_at = [&](std::chrono::milliseconds when, std::chrono::seconds within) {
    auto const found = looks.at_a_failure(start + when);
    EXPECT_EQ(found->within, within);
    return found->before.count;
  };
  looks.look(start);
  file(2);
  looks.look(start + 29s);
  EXPECT_EQ(before_at(29500ms, 30s), 1U) << "the first, as long as there is no other";
  looks.look(start + 31s);
  EXPECT_EQ(before_at(32s, 32s), 1U) << "the latest is too young";
  EXPECT_EQ(before_at(61s, 30s), 2U);
  file(3);
  looks.look(start + 70s);
  EXPECT_EQ(before_at(71s, 40s), 2U);
  EXPECT_TRUE(looks.at_a_failure(start + 71s)->rose());
  looks.look(start + 110s);
  EXPECT_EQ(before_at(111s, 41s), 3U);
  EXPECT_FALSE(looks.at_a_failure(start + 111s)->rose());
}

/// The report of a job of two whose rank 1 failed.
std::string report_of(int signal, int exit_code, std::optional<OomWatch> oom) {
  JobOutcome job;
  job.host = "host";
  for (int r = 0; r < 2; ++r) {
    RankOutcome rank;
    rank.rank = Rank{r};
    rank.ended = true;
    job.ranks.push_back(rank);
  }
  job.ranks[1].signal = signal;
  job.ranks[1].exit_code = exit_code;
  job.ranks[1].oom = std::move(oom);
  return report(job);
}

// B11
TEST(OomReport, SaysWhetherTheKernelEndedARankForWantOfMemory) {
  OomKills const before{"/sys/fs/cgroup/job/memory.events", 2};
  EXPECT_THAT(
      report_of(SIGKILL, 0, OomWatch{before, 3, 42s}),
      HasSubstr("  oom_kill of /sys/fs/cgroup/job/memory.events rose from 2 to 3 in the last 42 s: the "
                "kernel's out-of-memory killer, unless that ended another process of the cgroup\n"));
  std::string const somebody = report_of(SIGKILL, 0, OomWatch{before, 2, 42s});
  EXPECT_THAT(somebody, HasSubstr("not by the kernel's out-of-memory killer (oom_kill of "
                                  "/sys/fs/cgroup/job/memory.events stayed at 2)"));
  EXPECT_THAT(somebody, Not(HasSubstr("often")));
  EXPECT_THAT(report_of(SIGKILL, 0, std::nullopt), HasSubstr("often the kernel's"));
}

// B11: a data loader's end makes the rank fail by an error
TEST(OomReport, SaysThatAProcessBesideTheRankWasEnded) {
  OomKills const before{"/e", 0};
  EXPECT_THAT(
      report_of(0, 1, OomWatch{before, 1, 7s}),
      HasSubstr("  oom_kill of /e rose from 0 to 1 in the last 7 s: the kernel's out-of-memory killer ended "
                "another process of the cgroup\n"));
  EXPECT_THAT(report_of(0, 1, OomWatch{before, 0, 7s}), Not(HasSubstr("memory")));
  EXPECT_THAT(report_of(SIGSEGV, 0, OomWatch{before, 0, 7s}), Not(HasSubstr("out-of-memory")));
}

}  // namespace
}  // namespace ddp::launcher
