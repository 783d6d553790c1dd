#include "support/fakes/file_faults.hpp"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdarg>

namespace ddp::testing {
namespace {

std::atomic<int> calls_left{0};  // 0: not armed
std::atomic<FileFault> planned{FileFault::kill};
std::atomic<int> planned_error{0};

}  // namespace

// Whether this call is to fail; kills where that is the plan.
static bool meets_fault() {
  if (calls_left.load() <= 0 || calls_left.fetch_sub(1) != 1) return false;
  if (planned.load() != FileFault::error) ::kill(::getpid(), SIGKILL);
  errno = planned_error.load();
  return true;
}

// For pwrite(): whether this call is the one, and is to be done by half.
static bool is_half_write() { return planned.load() == FileFault::half && calls_left.load() == 1; }

void arm_file_fault(FileFault fault, int nth, int error_number) {
  planned = fault;
  planned_error = error_number;
  calls_left = nth;
}

bool disarm_file_fault() { return calls_left.exchange(0) <= 0; }

}  // namespace ddp::testing

using ddp::testing::meets_fault;

// The linker takes these instead of the C library's.
extern "C" {

int open(char const* path, int flags, ...) {
  std::va_list more;
  va_start(more, flags);
  mode_t const mode = (flags & O_CREAT) != 0 ? va_arg(more, mode_t) : 0;
  va_end(more);
  if ((flags & O_CREAT) != 0 && meets_fault()) return -1;
  return static_cast<int>(::syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}

int openat(int folder, char const* path, int flags, ...) {
  std::va_list more;
  va_start(more, flags);
  mode_t const mode = (flags & O_CREAT) != 0 ? va_arg(more, mode_t) : 0;
  va_end(more);
  if ((flags & O_CREAT) != 0 && meets_fault()) return -1;
  return static_cast<int>(::syscall(SYS_openat, folder, path, flags, mode));
}

ssize_t pwrite(int file, void const* bytes, size_t count, off_t offset) {
  if (ddp::testing::is_half_write()) ::syscall(SYS_pwrite64, file, bytes, count / 2, offset);
  if (meets_fault()) return -1;
  return ::syscall(SYS_pwrite64, file, bytes, count, offset);
}

int ftruncate(int file, off_t bytes) noexcept {
  if (meets_fault()) return -1;
  return static_cast<int>(::syscall(SYS_ftruncate, file, bytes));
}

int fsync(int file) {
  if (meets_fault()) return -1;
  return static_cast<int>(::syscall(SYS_fsync, file));
}

int rename(char const* from, char const* to) noexcept {
  if (meets_fault()) return -1;
  return static_cast<int>(::syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}

int renameat(int folder, char const* from, int other, char const* to) noexcept {
  if (meets_fault()) return -1;
  return static_cast<int>(::syscall(SYS_renameat2, folder, from, other, to, 0));
}

int mkdir(char const* path, mode_t mode) noexcept {
  if (meets_fault()) return -1;
  return static_cast<int>(::syscall(SYS_mkdirat, AT_FDCWD, path, mode));
}

int symlink(char const* target, char const* link) noexcept {
  if (meets_fault()) return -1;
  return static_cast<int>(::syscall(SYS_symlinkat, target, AT_FDCWD, link));
}

}  // extern "C"
