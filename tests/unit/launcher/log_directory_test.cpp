#include "launcher/output/log_directory.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "launcher/process/exit_code.hpp"
#include "support/launcher/shell.hpp"

namespace ddp::launcher {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class LogFolder : public ::testing::Test {
 protected:
  [[nodiscard]] std::string path(std::string const& name) const { return (folder_.path() / name).string(); }

  /// Why the folder is refused; empty if it is not.
  static std::string refusal(std::string const& path) {
    try {
      LogDirectory const directory(path);
    } catch (ExitError const& error) {
      EXPECT_EQ(error.exit_code(), exit_code::kCannotCreate);
      return error.what();
    }
    return {};
  }

  ddp::testing::TemporaryFolder folder_;
};

void write_into(LogDirectory const& directory, std::string const& name, std::string const& words,
                bool append = false) {
  auto const opened = directory.open(name, append);
  ASSERT_TRUE(opened.file) << opened.problem;
  ASSERT_EQ(write(opened.file.get(), words.data(), words.size()), static_cast<ssize_t>(words.size()));
}

TEST_F(LogFolder, IsMadeWithThoseAboveItAndUsedAgain) {
  LogDirectory const directory(path("a/b/c"));
  write_into(directory, "rank0.out", "long words");
  LogDirectory const again(path("a/b/c/"));
  write_into(again, "rank0.out", "new");
  EXPECT_EQ(ddp::testing::read_file(path("a/b/c/rank0.out")), "new") << "emptied";
  write_into(again, "rank0.out", " more", true);
  EXPECT_EQ(ddp::testing::read_file(path("a/b/c/rank0.out")), "new more");
}

TEST_F(LogFolder, ThatCannotBeMadeIsRefusedForTheFirstReason) {
  std::ofstream(path("file")) << "no folder";
  EXPECT_THAT(refusal(path("file/above/logs")), AllOf(HasSubstr(path("file")), HasSubstr("Not a directory")));
  EXPECT_THAT(refusal("/proc/nothing/above/logs"), HasSubstr("/proc/nothing/above: No such file"));
}

// B4
TEST_F(LogFolder, ThatIsALinkIsRefused) {
  std::filesystem::create_directory(path("elsewhere"));
  std::filesystem::create_directory_symlink("elsewhere", path("logs"));
  EXPECT_THAT(refusal(path("logs")), HasSubstr("it is a symbolic link: name the folder"));
  EXPECT_THAT(refusal(path("logs/")), HasSubstr("it is a symbolic link")) << "the slash would follow it";
  std::filesystem::create_directory_symlink("nowhere", path("dangling"));
  EXPECT_THAT(refusal(path("dangling")), HasSubstr("it is a symbolic link"));
  EXPECT_EQ(refusal(path("elsewhere")), "");
}

// B4
TEST_F(LogFolder, OfAnotherUserOrOfEverybodyIsRefused) {
  std::filesystem::create_directory(path("open"));
  ASSERT_EQ(chmod(path("open").c_str(), 0777), 0);
  EXPECT_THAT(refusal(path("open")), HasSubstr("every user may write to it: chmod o-w " + path("open")));
  EXPECT_EQ(refusal(path("open/inside")), "") << "as advised";
  ASSERT_EQ(chmod(path("open").c_str(), 01777), 0);
  EXPECT_EQ(refusal(path("open")), "") << "only the owner of a file can replace it there";
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a folder to another user";
  std::filesystem::create_directory(path("theirs"));
  ASSERT_EQ(chown(path("theirs").c_str(), 65534, 65534), 0);
  EXPECT_THAT(refusal(path("theirs")), HasSubstr("it belongs to user 65534, and this is user 0"));
}

// B4
TEST_F(LogFolder, WhatStandsInPlaceOfAFileIsNotWritten) {
  LogDirectory const directory(path("logs"));
  std::ofstream(path("precious")) << "untouched";
  std::filesystem::create_symlink("../precious", path("logs/link"));
  std::filesystem::create_hard_link(path("precious"), path("logs/hard"));
  std::filesystem::create_directory(path("logs/folder"));
  ASSERT_EQ(mkfifo(path("logs/fifo").c_str(), 0600), 0);
  for (bool const append : {false, true}) {
    EXPECT_THAT(directory.open("link", append).problem, HasSubstr("symbolic link"));
    EXPECT_THAT(directory.open("hard", append).problem, HasSubstr("under another name too"));
    EXPECT_THAT(directory.open("fifo", append).problem, HasSubstr("no regular file")) << "and nobody waits";
    EXPECT_FALSE(directory.open("folder", append).file);
  }
  EXPECT_EQ(ddp::testing::read_file(path("precious")), "untouched");
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a file to another user";
  std::ofstream(path("logs/theirs")) << "theirs";
  ASSERT_EQ(chown(path("logs/theirs").c_str(), 65534, 65534), 0);
  EXPECT_THAT(directory.open("theirs", false).problem, HasSubstr("it belongs to user 65534"));
  EXPECT_EQ(ddp::testing::read_file(path("logs/theirs")), "theirs");
}

// B4
TEST_F(LogFolder, StaysTheOneThatWasOpenedWhateverTakesItsPlace) {
  LogDirectory const directory(path("logs"));
  std::filesystem::rename(path("logs"), path("moved"));
  std::filesystem::create_directory(path("other"));
  std::filesystem::create_directory_symlink("other", path("logs"));
  write_into(directory, "rank0.out", "words");
  EXPECT_EQ(ddp::testing::read_file(path("moved/rank0.out")), "words");
  EXPECT_TRUE(std::filesystem::is_empty(path("other")));
}

}  // namespace
}  // namespace ddp::launcher
