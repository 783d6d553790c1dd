#include "launcher/options/given_file.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "core/file_descriptor.hpp"
#include "ddp/core/ids.hpp"
#include "ddp/core/text.hpp"
#include "launcher/process/exit_code.hpp"

namespace ddp::launcher {
namespace {

constexpr std::size_t kMost = (1_MiB).value;

char const* what_it_is(mode_t mode) {
  if (S_ISDIR(mode)) return "is a directory";
  if (S_ISCHR(mode) || S_ISBLK(mode)) return "is a device";
  return "is no file";
}

}  // namespace

std::string read_given_file(std::string const& option, std::string const& path, Deadline deadline) {
  auto const refuse = [&](auto const&... reason) {
    throw ExitError(exit_code::kUsage, text(option, " ", path, ": ", reason...));
  };
  // Without O_NONBLOCK a FIFO would be waited for here.
  FileDescriptor const file(open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  struct stat status {};
  if (!file || fstat(file.get(), &status) != 0) refuse(std::strerror(errno));
  if (!S_ISREG(status.st_mode) && !S_ISFIFO(status.st_mode)) {
    refuse(what_it_is(status.st_mode), "; expected a file or a pipe");
  }
  std::string content;
  std::array<char, (64_KiB).value> piece{};
  for (;;) {
    pollfd waiting{file.get(), POLLIN, 0};  // a regular file is always ready
    if (poll(&waiting, 1, static_cast<int>(deadline.remaining().count())) == 0) {
      refuse("this pipe has not ended within ", seconds(deadline.allowed()), " s");
    }
    ssize_t const count = ::read(file.get(), piece.data(), piece.size());
    if (count == 0) return content;
    if (count < 0 && errno != EINTR && errno != EAGAIN) refuse(std::strerror(errno));
    if (count > 0) content.append(piece.data(), static_cast<std::size_t>(count));
    if (content.size() > kMost)
      refuse("has more than ", to_string(Bytes{kMost}), ", expected at most that much");
  }
}

}  // namespace ddp::launcher
