// Memory of another process is what that process offered, or it is not touched.
#include "comm/shared_memory.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <cstring>

#include "ddp/core/text.hpp"
#include "support/errors.hpp"
#include "support/shell.hpp"

namespace ddp::testing {
namespace {

using ::testing::HasSubstr;

constexpr Bytes kSize{4096};

TEST(SharedMemory, IsOneForAllWhoOpenIt) {
  SharedMemory const memory = SharedMemory::create(kSize, true);
  SharedMemory::Handle handle;
  Classic<std::istringstream>(text(memory.handle())) >> handle;
  SharedMemory const same = SharedMemory::open(handle);
  std::memcpy(memory.data(), "hello", 6);
  EXPECT_STREQ(reinterpret_cast<char const*>(same.data()), "hello");
  EXPECT_EQ(same.bytes(), kSize.value);
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

}  // namespace
}  // namespace ddp::testing
