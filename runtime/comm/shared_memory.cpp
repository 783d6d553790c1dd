#include "comm/shared_memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdint>
#include <fstream>
#include <sstream>
#include <utility>

#include "ddp/core/error.hpp"
#include "ddp/core/text.hpp"

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

// Bytes that the kernel says can be taken without swapping (proc(5), MemAvailable). Asking for more than that
// would not fail: it would call the out-of-memory killer.
std::size_t available_memory() {
  std::ifstream in("/proc/meminfo");
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string name;
    std::size_t kibibytes = 0;
    if (words >> name >> kibibytes && name == "MemAvailable:") return kibibytes << 10;
  }
  return SIZE_MAX;
}

class Descriptor {
 public:
  explicit Descriptor(int fd) noexcept : fd_(fd) {}
  Descriptor(Descriptor const&) = delete;
  Descriptor& operator=(Descriptor const&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  [[nodiscard]] int get() const noexcept { return fd_; }
  [[nodiscard]] int release() noexcept { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

}  // namespace

SharedMemory SharedMemory::create(Bytes bytes, bool reserve) {
  Descriptor fd(::memfd_create("ddp", MFD_CLOEXEC));
  if (fd.get() < 0) throw_errno("memfd_create for shared memory", errno);
  auto const length = static_cast<off_t>(bytes.value);
  if (::ftruncate(fd.get(), length) != 0) {
    throw_errno(text("sizing shared memory to ", to_string(bytes)), errno, ErrorCode::out_of_memory);
  }
  if (reserve) {
    std::size_t const available = available_memory();
    if (bytes.value > available) {
      throw Error(ErrorCode::out_of_memory,
                  text("reserving ", to_string(bytes), " of shared memory: this host has ",
                       to_string(Bytes{available}), " available"));
    }
    int const error = ::posix_fallocate(fd.get(), 0, length);
    if (error != 0) {
      throw_errno(text("reserving ", to_string(bytes), " of shared memory"), error, ErrorCode::out_of_memory);
    }
  }
  std::byte* const data = map(fd.get(), bytes.value);
  return {data, bytes.value, fd.release()};
}

SharedMemory SharedMemory::open(Handle const& handle) {
  std::string const path = text("/proc/", handle.pid, "/fd/", handle.fd);
  Descriptor const fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (fd.get() < 0) {
    throw_errno(
        text("opening shared memory of process ", handle.pid, " through ", path,
             " (ranks that share memory must be processes of one user in one PID namespace; in separate "
             "containers share the PID namespace, or use another backend)"),
        errno);
  }
  return {map(fd.get(), handle.bytes), handle.bytes, -1};
}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      fd_(std::exchange(other.fd_, -1)) {}

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(fd_, other.fd_);
  return *this;
}

SharedMemory::~SharedMemory() {
  close_handle();
  if (data_ != nullptr) ::munmap(data_, bytes_);
}

SharedMemory::Handle SharedMemory::handle() const noexcept { return {::getpid(), fd_, bytes_}; }

void SharedMemory::close_handle() noexcept {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

std::string host_identity() {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  char name[HOST_NAME_MAX + 1] = {};
  ::gethostname(name, HOST_NAME_MAX);
  // Processes that see each other's numbers under /proc are in one PID namespace.
  char pid_namespace[64] = {};
  [[maybe_unused]] auto const length =
      ::readlink("/proc/self/ns/pid", pid_namespace, sizeof(pid_namespace) - 1);
  return text(name, "/", boot, "/", pid_namespace);
}

}  // namespace ddp
