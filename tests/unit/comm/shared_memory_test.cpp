// Memory of another process is what that process offered, or it is not touched.
#include "comm/shared_memory.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "ddp/core/text.hpp"
#include "support/errors.hpp"
#include "support/launcher/shell.hpp"

namespace ddp::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr Bytes kSize{4096};

TEST(SharedMemory, IsOneForAllWhoOpenIt) {
  SharedMemory const memory = SharedMemory::create(kSize, true);
  SharedMemory const same = SharedMemory::open(text(memory.handle()));
  std::memcpy(memory.data(), "hello", 6);
  EXPECT_STREQ(reinterpret_cast<char const*>(same.data()), "hello");
  EXPECT_EQ(same.bytes(), kSize.value);
}

TEST(SharedMemory, AnOfferThatIsNoHandleIsRefused) {
  for (char const* const said : {"", "1 2 three 4 5", "1 2 3 4"}) {
    auto const error = error_of<CommError>([&] { static_cast<void>(SharedMemory::open(std::string(said))); });
    EXPECT_EQ(error.code(), ErrorCode::protocol);
  }
}

TEST(SharedMemory, AnotherFileBehindTheSameNumberIsRefusedUntouched) {
  TemporaryFolder const folder;
  std::string const path = (folder.path() / "precious").string();
  std::string const content(kSize.value, 'x');
  std::ofstream(path) << content;
  SharedMemory const memory = SharedMemory::create(kSize, false);
  SharedMemory::Handle handle = memory.handle();
  FileDescriptor const foreign(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  handle.fd = foreign.get();
  auto const message = message_of([&] { static_cast<void>(SharedMemory::open(handle)); });
  EXPECT_THAT(message, HasSubstr("is not the 4 KiB of shared memory"));
  EXPECT_THAT(message, HasSubstr("share the PID namespace"));
  EXPECT_EQ(read_file(path), content);
}

TEST(SharedMemory, OtherMemoryIsRefused) {
  SharedMemory const memory = SharedMemory::create(kSize, false);
  SharedMemory const other = SharedMemory::create(kSize, false);
  SharedMemory::Handle handle = memory.handle();
  handle.fd = other.handle().fd;
  EXPECT_THAT(message_of([&] { static_cast<void>(SharedMemory::open(handle)); }),
              HasSubstr("but another file"));
  handle = memory.handle();
  handle.bytes *= 2;
  EXPECT_THAT(message_of([&] { static_cast<void>(SharedMemory::open(handle)); }),
              HasSubstr("but another file"));
}

TEST(SharedMemory, NobodyCanMakeItSmaller) {
  SharedMemory const memory = SharedMemory::create(kSize, false);
  EXPECT_NE(::ftruncate(memory.handle().fd, 0), 0);
}

TEST(SharedMemory, AMemoryThatIsClosedSaysWhatToDo) {
  SharedMemory memory = SharedMemory::create(kSize, false);
  SharedMemory::Handle const handle = memory.handle();
  memory.close_handle();
  EXPECT_THAT(message_of([&] { static_cast<void>(SharedMemory::open(handle)); }),
              HasSubstr("in one PID namespace"));
}

// As of a rank whose program has file capabilities: root's rights, which would see it, are given up first.
TEST(SharedMemory, AProcessThatHidesItselfIsNamedWithTheReasons) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  pid_t const hidden = ::fork();
  if (hidden == 0) {
    constexpr uid_t kNobody = 65534;
    if (::geteuid() == 0 &&
        (::setresgid(kNobody, kNobody, kNobody) != 0 || ::setresuid(kNobody, kNobody, kNobody) != 0))
      ::_exit(1);
    ::prctl(PR_SET_DUMPABLE, 0);
    SharedMemory const memory = SharedMemory::create(kSize, false);
    SharedMemory::Handle const handle = memory.handle();
    pid_t const other = ::fork();
    if (other == 0) {
      std::string const message = message_of([&] { static_cast<void>(SharedMemory::open(handle)); });
      ::_exit(::write(ends[1], message.data(), message.size()) > 0 ? 0 : 1);
    }
    ::waitpid(other, nullptr, 0);
    ::_exit(0);
  }
  ::close(ends[1]);
  FileDescriptor const answer(ends[0]);
  std::string message(4096, '\0');
  message.resize(
      static_cast<std::size_t>(std::max(::read(ends[0], message.data(), message.size()), ssize_t{0})));
  ::waitpid(hidden, nullptr, 0);
  EXPECT_THAT(message, AllOf(HasSubstr(text("process ", hidden)), HasSubstr("file capabilities"),
                             HasSubstr("PR_SET_DUMPABLE")));
}

}  // namespace
}  // namespace ddp::testing
