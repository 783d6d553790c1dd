// Memory that other processes of this host can map, without a name that could outlive them.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <iosfwd>
#include <memory>
#include <string>
#include <utility>

#include "core/system/file_descriptor.hpp"
#include "ddp/core/ids.hpp"

namespace ddp {

/// A mapping of a memfd: unmapped by the destructor. The memory lives as long as any process maps it; nothing
/// is left in /dev/shm, whatever kills the processes, and the size of /dev/shm does not limit it.
class SharedMemory {
 public:
  /// What another process of the same user on the same host needs to map the same memory.
  struct Handle {
    pid_t pid = 0;
    int fd = -1;
    std::size_t bytes = 0;
    dev_t device =
        0;  ///< of the memory's file, and its inode: what lies behind pid and fd is compared with them
    ino_t inode = 0;
  };

  /// New zeroed memory. `reserve`: take the pages now, so that a lack of memory is an error here and not a
  /// signal later. Throws Error(out_of_memory), Error(io).
  [[nodiscard]] static SharedMemory create(Bytes bytes, bool reserve);
  /// Maps memory that another process created and has not closed yet. If the handle leads to another file,
  /// throws Error(io) with what to do, without touching that file.
  [[nodiscard]] static SharedMemory open(Handle const& handle);
  /// The same for a handle that another process said as text(). Throws CommError(protocol) too.
  [[nodiscard]] static SharedMemory open(std::string const& said);

  [[nodiscard]] std::byte* data() const noexcept { return data_.get(); }
  [[nodiscard]] std::size_t bytes() const noexcept { return data_.get_deleter().bytes; }
  /// Valid until close_handle().
  [[nodiscard]] Handle handle() const noexcept;
  /// No further process can open it afterwards. Mappings stay.
  void close_handle() noexcept { fd_.reset(); }

 private:
  struct Unmap {
    std::size_t bytes;
    void operator()(std::byte* data) const noexcept;
  };
  SharedMemory(std::byte* data, std::size_t bytes, FileDescriptor fd) noexcept
      : data_(data, Unmap{bytes}), fd_(std::move(fd)) {}
  std::unique_ptr<std::byte, Unmap> data_;
  FileDescriptor fd_;
};

/// For messages between ranks.
std::ostream& operator<<(std::ostream& out, SharedMemory::Handle const& handle);

}  // namespace ddp
