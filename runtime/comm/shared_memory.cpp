#include "comm/shared_memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <utility>

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
  FileDescriptor fd(::memfd_create("ddp", MFD_CLOEXEC));
  if (fd.get() < 0) throw_errno("memfd_create for shared memory", errno);
  auto const length = static_cast<off_t>(bytes.value);
  if (::ftruncate(fd.get(), length) != 0) {
    throw_errno(text("sizing shared memory to ", to_string(bytes)), errno, ErrorCode::out_of_memory);
  }
  if (reserve) {
    if (Bytes const available = host_memory().free; bytes > available) {
      throw Error(ErrorCode::out_of_memory, text("reserving ", to_string(bytes), " of shared memory: ",
                                                 to_string(available), " are available"));
    }
    int const error = ::posix_fallocate(fd.get(), 0, length);
    if (error != 0) {
      throw_errno(text("reserving ", to_string(bytes), " of shared memory"), error, ErrorCode::out_of_memory);
    }
  }
  std::byte* const data = map(fd.get(), bytes.value);
  return {data, bytes.value, std::move(fd)};
}

SharedMemory SharedMemory::open(Handle const& handle) {
  std::string const path = text("/proc/", handle.pid, "/fd/", handle.fd);
  FileDescriptor const fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (fd.get() < 0) {
    throw_errno(
        text("opening shared memory of process ", handle.pid, " through ", path,
             " (ranks that share memory must be processes of one user in one PID namespace; in separate "
             "containers share the PID namespace, or use another backend)"),
        errno);
  }
  return {map(fd.get(), handle.bytes), handle.bytes, FileDescriptor()};
}

void SharedMemory::Unmap::operator()(std::byte* data) const noexcept { ::munmap(data, bytes); }

SharedMemory::Handle SharedMemory::handle() const noexcept { return {::getpid(), fd_.get(), bytes()}; }

void SharedMemory::close_handle() noexcept { fd_.reset(); }

}  // namespace ddp
