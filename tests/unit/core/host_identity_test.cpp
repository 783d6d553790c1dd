#include "core/system/host_identity.hpp"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <optional>

#include "core/system/file_descriptor.hpp"

namespace ddp {
namespace {

/// What a child process of other namespaces finds; nothing where it may not have them.
std::optional<std::string> identity_after(int unshared) {
  int ends[2] = {};
  if (::pipe(ends) != 0) return std::nullopt;
  FileDescriptor const out(ends[0]);
  FileDescriptor in(ends[1]);
  pid_t const child = ::fork();
  if (child == 0) {
    if (::unshare(CLONE_NEWUSER | unshared) != 0) ::_exit(1);
    std::string const found = host_identity();
    ::_exit(::write(in.get(), found.data(), found.size()) == static_cast<ssize_t>(found.size()) ? 0 : 1);
  }
  in.reset();
  std::string found(4096, '\0');
  ssize_t const count = ::read(out.get(), found.data(), found.size());
  int status = 0;
  ::waitpid(child, &status, 0);
  if (status != 0 || count <= 0) return std::nullopt;
  return found.substr(0, static_cast<std::size_t>(count));
}

TEST(HostIdentity, ProcessesWithANetworkOfTheirOwnAreOnAnotherHost) {
  auto const alike = identity_after(0);
  auto const apart = identity_after(CLONE_NEWNET);
  if (!alike || !apart) GTEST_SKIP() << "unshare() is not allowed here";
  EXPECT_EQ(*alike, host_identity());
  EXPECT_NE(*apart, host_identity());
  EXPECT_EQ(host_name(*apart), host_name(host_identity()));
}

}  // namespace
}  // namespace ddp
