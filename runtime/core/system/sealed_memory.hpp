// Memory that another process finds through a descriptor.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>

#include "core/system/file_descriptor.hpp"

namespace ddp {

/// No process can shrink the memory while others map it. Other files have no seals.
inline constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

/// New zeroed memory; empty, with errno set, if none can be made.
[[nodiscard]] inline FileDescriptor make_sealed_memory(char const* name, std::size_t bytes) noexcept {
  FileDescriptor memory(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (memory && (::ftruncate(memory.get(), static_cast<off_t>(bytes)) != 0 ||
                 ::fcntl(memory.get(), F_ADD_SEALS, kSeals) != 0)) {
    int const problem = errno;
    memory.reset();
    errno = problem;
  }
  return memory;
}

/// Whether make_sealed_memory() made it, with that size.
[[nodiscard]] inline bool is_sealed_memory(FileDescriptor const& memory, std::size_t bytes) noexcept {
  struct stat status {};
  int const seals = ::fcntl(memory.get(), F_GET_SEALS);
  return seals >= 0 && (seals & kSeals) == kSeals && ::fstat(memory.get(), &status) == 0 &&
         static_cast<std::size_t>(status.st_size) == bytes;
}

}  // namespace ddp
