#include "comm/shared_memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ostream>
#include <sstream>

#include "core/system/sealed_memory.hpp"
#include "ddp/core/error.hpp"
#include "ddp/core/text.hpp"
#include "device/memory/host_memory.hpp"

namespace ddp {
namespace {

std::byte* map(int fd, std::size_t bytes) {
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) {
    throw_errno(text("mapping ", to_string(Bytes{bytes}), " of shared memory"), errno,
                ErrorCode::out_of_memory);
  }
  return static_cast<std::byte*>(memory);
}

}  // namespace

SharedMemory SharedMemory::create(Bytes bytes, bool reserve) {
  FileDescriptor fd = make_sealed_memory("ddp", bytes.value);
  if (!fd)
    throw_errno(text("making ", to_string(bytes), " of shared memory"), errno, ErrorCode::out_of_memory);
  if (reserve) {
    if (Bytes const available = host_memory().free; bytes > available) {
      throw Error(ErrorCode::out_of_memory, text("reserving ", to_string(bytes), " of shared memory: ",
                                                 to_string(available), " are available"));
    }
    int const error = ::posix_fallocate(fd.get(), 0, static_cast<off_t>(bytes.value));
    if (error != 0) {
      throw_errno(text("reserving ", to_string(bytes), " of shared memory"), error, ErrorCode::out_of_memory);
    }
  }
  std::byte* const data = map(fd.get(), bytes.value);
  return {data, bytes.value, std::move(fd)};
}

// If /proc is of another PID namespace, the number means another process, whose file must not be touched. So
// the file is opened for writing only after it was recognised.
SharedMemory SharedMemory::open(Handle const& handle) {
  std::string const path = text("/proc/", handle.pid, "/fd/", handle.fd);
  constexpr char const* kAdvice =
      "ranks that share memory must be processes of one user in one PID namespace, with that namespace's "
      "/proc; in separate containers share the PID namespace, or use another backend";
  FileDescriptor const found(::open(path.c_str(), O_PATH | O_CLOEXEC));
  struct stat status {};
  if (!found || ::fstat(found.get(), &status) != 0) {
    int const error = errno;
    // A process that may not look into another one gets EACCES, whatever the file is.
    char const* const advice =
        error == EACCES
            ? "the kernel lets this process not look into that one: it is another user's, or hides itself, "
              "since its program is setuid or setgid, has file capabilities (getcap), has changed its user "
              "or called prctl(PR_SET_DUMPABLE, 0). Start ranks as one user, without these, or call "
              "prctl(PR_SET_DUMPABLE, 1) before World::init()"
            : kAdvice;
    throw_errno(text("opening shared memory of process ", handle.pid, " through ", path, " (", advice, ")"),
                error);
  }
  FileDescriptor memory;
  if (status.st_dev == handle.device && status.st_ino == handle.inode)
    memory = FileDescriptor(::open(text("/proc/self/fd/", found.get()).c_str(), O_RDWR | O_CLOEXEC));
  if (!memory || !is_sealed_memory(memory, handle.bytes)) {
    throw Error(ErrorCode::io,
                text(path, " is not the ", to_string(Bytes{handle.bytes}), " of shared memory that process ",
                     handle.pid, " offered, but another file: ", kAdvice));
  }
  return {map(memory.get(), handle.bytes), handle.bytes, FileDescriptor()};
}

std::ostream& operator<<(std::ostream& out, SharedMemory::Handle const& handle) {
  return out << handle.pid << ' ' << handle.fd << ' ' << handle.bytes << ' ' << handle.device << ' '
             << handle.inode;
}

SharedMemory SharedMemory::open(std::string const& said) {
  Handle handle;
  Classic<std::istringstream> in(said);
  if (!(in >> handle.pid >> handle.fd >> handle.bytes >> handle.device >> handle.inode)) {
    throw CommError(ErrorCode::protocol, text("a rank of this host offers shared memory as \"", said,
                                              "\"; do all ranks run the same version of this library?"));
  }
  return open(handle);
}

void SharedMemory::Unmap::operator()(std::byte* data) const noexcept { ::munmap(data, bytes); }

SharedMemory::Handle SharedMemory::handle() const noexcept {
  struct stat status {};
  ::fstat(fd_.get(), &status);
  return {::getpid(), fd_.get(), bytes(), status.st_dev, status.st_ino};
}

}  // namespace ddp
