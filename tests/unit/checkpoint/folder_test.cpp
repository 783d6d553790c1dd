// Who can take the lock of a folder of checkpoints.
#include "checkpoint/folder.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>

#include "support/errors.hpp"
#include "support/launcher/shell.hpp"

namespace ddp::testing {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// Whether the folder is free.
bool can_be_held(fs::path const& folder) {
  try {
    CheckpointFolder const held(folder, Deadline::after(milliseconds(100)));
    return true;
  } catch (Error const& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_state) << error.what();
    return false;
  }
}

mode_t mode_of(fs::path const& path) {
  struct stat status {};
  EXPECT_EQ(::stat(path.c_str(), &status), 0) << path;
  return status.st_mode & 0777U;
}

/// A process of another user that takes every lock which it can get of `folder` and of the file in it.
class OtherUser {
 public:
  explicit OtherUser(fs::path const& folder) {
    std::array<int, 2> ready{-1, -1};
    EXPECT_EQ(::pipe2(ready.data(), O_CLOEXEC), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      constexpr unsigned kNobody = 65534;
      bool const other = ::setgroups(0, nullptr) == 0 && ::setgid(kNobody) == 0 && ::setuid(kNobody) == 0;
      for (fs::path const& path : {folder, folder / ".lock"}) {
        ::flock(::open(path.c_str(), O_RDONLY), LOCK_EX | LOCK_NB);
        struct flock whole {};
        whole.l_type = F_WRLCK;
        ::fcntl(::open(path.c_str(), O_RDWR), F_OFD_SETLK, &whole);
      }
      char const word = other ? 'y' : 'n';
      [[maybe_unused]] auto const told = ::write(ready[1], &word, 1);
      ::pause();
    }
    ::close(ready[1]);
    char word = 'n';
    is_other_ = ::read(ready[0], &word, 1) == 1 && word == 'y';
    ::close(ready[0]);
  }
  ~OtherUser() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  OtherUser(OtherUser const&) = delete;
  OtherUser& operator=(OtherUser const&) = delete;
  [[nodiscard]] bool is_other() const noexcept { return is_other_; }

 private:
  pid_t pid_ = -1;
  bool is_other_ = false;
};

class CheckpointFolderLock : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(::chmod(outer_.path().c_str(), 0755), 0);
    ASSERT_EQ(::mkdir(folder_.c_str(), 0755), 0);
    ASSERT_EQ(::chmod(folder_.c_str(), 0755), 0);
  }
  TemporaryFolder outer_;
  fs::path folder_ = outer_.path() / "checkpoints";
};

TEST_F(CheckpointFolderLock, IsHeldByOneAtATimeAlsoWithinAProcess) {
  {
    CheckpointFolder const first(folder_, Deadline::after(milliseconds(100)));
    EXPECT_FALSE(can_be_held(folder_));
  }
  EXPECT_TRUE(can_be_held(folder_));
}

// B10
TEST_F(CheckpointFolderLock, WhoMayOnlyReadTheFolderCannotTakeIt) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can act as another user";
  EXPECT_TRUE(can_be_held(folder_));
  EXPECT_EQ(mode_of(folder_ / ".lock"), 0600U);
  OtherUser const reader(folder_);
  ASSERT_TRUE(reader.is_other());
  EXPECT_TRUE(can_be_held(folder_));
}

// B10: several users may train in one folder, by a group that may write there
TEST_F(CheckpointFolderLock, WhoMayWriteToTheFolderMayTakeIt) {
  ASSERT_EQ(::chmod(folder_.c_str(), 0775), 0);
  EXPECT_TRUE(can_be_held(folder_));
  EXPECT_EQ(mode_of(folder_ / ".lock"), 0660U);
  if (::geteuid() != 0) GTEST_SKIP() << "only root can act as another user";
  ASSERT_EQ(::chown(folder_.c_str(), 0, 65534), 0);
  EXPECT_TRUE(can_be_held(folder_));
  OtherUser const member(folder_);
  EXPECT_FALSE(can_be_held(folder_));
}

// A helper that a rank forked outlives it where the rank is killed.
TEST_F(CheckpointFolderLock, AForkedProcessHasNoShareInIt) {
  auto held = std::make_unique<CheckpointFolder>(folder_, Deadline::after(milliseconds(100)));
  pid_t const helper = ::fork();
  if (helper == 0) {
    ::pause();
    ::_exit(0);
  }
  EXPECT_FALSE(can_be_held(folder_)) << "it is the parent's as before";
  held.reset();
  EXPECT_TRUE(can_be_held(folder_));
  ::kill(helper, SIGKILL);
  ::waitpid(helper, nullptr, 0);
}

TEST_F(CheckpointFolderLock, WhatAForkedProcessDestroysIsNotItsParents) {
  auto held = std::make_unique<CheckpointFolder>(folder_, Deadline::after(milliseconds(100)));
  pid_t const child = ::fork();
  if (child == 0) {
    held.reset();
    ::_exit(can_be_held(folder_) ? 1 : 0);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_FALSE(can_be_held(folder_));
}

TEST_F(CheckpointFolderLock, OtherDescriptorsOfItsFileDoNotEndIt) {
  CheckpointFolder const held(folder_, Deadline::after(milliseconds(100)));
  static_cast<void>(read_file(folder_ / ".lock"));  // as a copy of the whole folder does
  pid_t const other = ::fork();
  if (other == 0) ::_exit(can_be_held(folder_) ? 1 : 0);
  int status = -1;
  ::waitpid(other, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST_F(CheckpointFolderLock, APrivateFileInItsPlaceIsRefusedAndStaysPrivate) {
  ASSERT_EQ(::chmod(folder_.c_str(), 0777), 0);
  fs::path const secret = outer_.path() / "secret";
  std::ofstream(secret) << "mine";
  ASSERT_EQ(::chmod(secret.c_str(), 0600), 0);
  fs::create_hard_link(secret, folder_ / ".lock");
  auto const refusal = [&] {
    return message_of([&] { CheckpointFolder(folder_, Deadline::after(milliseconds(100))); });
  };
  EXPECT_THAT(refusal(), HasSubstr("found a file that has 2 names (hard links); remove it"));
  EXPECT_EQ(mode_of(secret), 0600U);
  fs::remove(folder_ / ".lock");
  fs::rename(secret, folder_ / ".lock");
  EXPECT_THAT(refusal(), HasSubstr("found a file of 4 B; remove it"));
  EXPECT_EQ(mode_of(folder_ / ".lock"), 0600U);
}

TEST_F(CheckpointFolderLock, AFolderThatOthersMayWriteToIsSaidOnce) {
  auto const said = [&](mode_t mode) {
    EXPECT_EQ(::chmod(folder_.c_str(), mode), 0);
    ::testing::internal::CaptureStderr();
    {
      CheckpointFolder held(folder_, Deadline::after(milliseconds(100)));
      held.prune(1);
    }
    return lines(::testing::internal::GetCapturedStderr());
  };
  EXPECT_THAT(said(0755), IsEmpty());
  EXPECT_THAT(said(0777), ElementsAre(HasSubstr("all users may write to " + folder_.string())));
  if (::geteuid() != 0) return;
  ASSERT_EQ(::chown(folder_.c_str(), 0, 65534), 0);
  EXPECT_THAT(said(0775), ElementsAre(HasSubstr("members of group 65534 may write to")));
}

TEST_F(CheckpointFolderLock, AFileOfItsNameThatIsNoneIsRefused) {
  ASSERT_EQ(::mkfifo((folder_ / ".lock").c_str(), 0600), 0);
  auto const error = error_of([&] { CheckpointFolder(folder_, Deadline::after(milliseconds(100))); });
  EXPECT_EQ(error.code(), ErrorCode::io);
  fs::remove(folder_ / ".lock");
  fs::create_symlink("elsewhere", folder_ / ".lock");
  EXPECT_EQ(error_of([&] { CheckpointFolder(folder_, Deadline::after(milliseconds(100))); }).code(),
            ErrorCode::io);
  EXPECT_FALSE(fs::exists(folder_ / "elsewhere"));
}

}  // namespace
}  // namespace ddp::testing
