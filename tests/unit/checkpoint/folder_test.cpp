// Who can take the lock of a folder of checkpoints.
#include "checkpoint/folder.hpp"

#include <fcntl.h>
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

#include "support/errors.hpp"
#include "support/shell.hpp"

namespace ddp::testing {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

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
