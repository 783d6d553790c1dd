// A rank that takes more memory than its cgroup may have.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <optional>

#include "launcher/report/oom_kills.hpp"
#include "support/launcher/launched_job.hpp"

namespace ddp::testing {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

/// A cgroup below this process's own, with little memory. Whoever is started between enter() and leave() is
/// in it.
class SmallCgroup {
 public:
  static std::optional<SmallCgroup> make() {
    auto const kills = launcher::read_oom_kills();
    if (!kills || geteuid() != 0) return std::nullopt;
    SmallCgroup group;
    group.parent_ = std::filesystem::path(kills->file).parent_path();
    group.path_ = group.parent_ / ("ddp-test-" + std::to_string(getpid()));
    if (::access((group.parent_ / "cgroup.procs").c_str(), W_OK) != 0) return std::nullopt;
    std::error_code problem;
    std::filesystem::create_directory(group.path_, problem);
    if (problem) return std::nullopt;
    constexpr char const* kLimit = "100000000";
    bool const v1 = std::filesystem::exists(group.path_ / "memory.limit_in_bytes");
    bool const limited =
        v1 ? write(group.path_ / "memory.limit_in_bytes", kLimit)
           : write(group.path_ / "memory.max", kLimit) && write(group.path_ / "memory.swap.max", "0");
    if (v1) write(group.path_ / "memory.memsw.limit_in_bytes", kLimit);
    if (limited && group.enter()) {
      group.leave();
      return group;
    }
    rmdir(group.path_.c_str());
    return std::nullopt;
  }
  bool enter() const { return write(path_ / "cgroup.procs", std::to_string(getpid())); }
  bool leave() const { return write(parent_ / "cgroup.procs", std::to_string(getpid())); }
  void remove() const { EXPECT_EQ(rmdir(path_.c_str()), 0) << path_; }

 private:
  static bool write(std::filesystem::path const& file, std::string const& words) {
    std::ofstream out(file);
    out << words << std::flush;
    return out.good();
  }
  std::filesystem::path parent_;
  std::filesystem::path path_;
};

// B11
TEST(OutOfMemory, TheKernelsWordIsInTheReport) {
  auto const group = SmallCgroup::make();
  if (!group) GTEST_SKIP() << "no cgroup here in which this user may make another";
  ASSERT_TRUE(group->enter());
  {
    LaunchedJob job(shell_ranks(1, "exec tail /dev/zero"));  // it keeps the line that never ends
    EXPECT_TRUE(group->leave());
    EXPECT_EQ(job.exit_code(), 137);
    EXPECT_THAT(job.err(), ContainsRegex("oom_kill of .*/ddp-test-.* rose from 0 to 1 in the last [0-9]+ s: "
                                         "the kernel's out-of-memory killer"));
  }
  group->remove();
}

// B11
TEST(OutOfMemory, AKillOfAPersonsIsNotTheKernels) {
  if (!launcher::read_oom_kills()) GTEST_SKIP() << "the kernel does not tell of out-of-memory kills here";
  LaunchedJob job(shell_ranks(1, "kill -KILL $$"));
  EXPECT_EQ(job.exit_code(), 137);
  EXPECT_THAT(job.err(), HasSubstr("killed from outside, and not by the kernel's out-of-memory killer"));
}

}  // namespace
}  // namespace ddp::testing
