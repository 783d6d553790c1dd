// Host lists and hostfiles: what is accepted, and what refuses say.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <sstream>
#include <thread>

#include "ddp/core/text.hpp"
#include "launcher/options/hosts.hpp"
#include "support/launcher/refusal.hpp"
#include "support/launcher/shell.hpp"

namespace ddp::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::vector<Host> parse(std::string const& content) {
  std::istringstream in(content);
  return parse_hostfile(in, "hosts");
}

std::string hostfile_refusal(std::string const& content) {
  return refusal([&] { static_cast<void>(parse(content)); });
}

TEST(Hosts, F15BlankLinesAndCommentsAreAccepted) {
  EXPECT_THAT(
      parse("\n# all of them\n  \t\nnode7 slots=4 # the large one\nnode8\r\nnode9 slots = 2 max-slots=8\n"),
      ElementsAre(Host{"node7", 4}, Host{"node8", 1}, Host{"node9", 2}));
}

TEST(Hosts, F15WhatCannotBeRightIsRefusedWithFileLineAndReason) {
  EXPECT_THAT(hostfile_refusal("node7\n\nnode8 slots=abc\n"),
              StartsWith("hosts:3: slots expects a whole number from 1 to 1024, found \"abc\""));
  for (char const* slots : {"0", "-1", "2x", "", "99999999999"}) {
    EXPECT_THAT(hostfile_refusal(std::string("node8 slots=") + slots), StartsWith("hosts:1: slots expects"));
  }
  EXPECT_THAT(hostfile_refusal("node7 slots=2\n# again\nnode7 slots=2\n"),
              StartsWith("hosts:3: node7 stands in line 1 already"));
  EXPECT_THAT(hostfile_refusal("node7 gpus=2\n"), StartsWith("hosts:1: expected slots=N"));
  EXPECT_THAT(hostfile_refusal("slots=2\n"), StartsWith("hosts:1: expected a host's name"));
  EXPECT_THAT(hostfile_refusal("node7 slots=1 slots=3\n"), StartsWith("hosts:1: slots stands there twice"));
  EXPECT_THAT(hostfile_refusal("node7 slots=2 max-slots=1\n"), StartsWith("hosts:1: slots=2 is more than"));
  EXPECT_THAT(hostfile_refusal("node7 user=ada\n"), HasSubstr("~/.ssh/config"));
  EXPECT_THAT(hostfile_refusal("# nobody\n"), HasSubstr("no host in it"));
  EXPECT_THAT(refusal([] { static_cast<void>(read_hostfile("/does/not/exist")); }),
              HasSubstr("/does/not/exist: No such file"));
  EXPECT_THAT(refusal([] { static_cast<void>(read_hostfile("/tmp")); }), HasSubstr("is a directory"));
}

// B10
TEST(Hosts, AHostfileIsAFileOrAPipeOfAMebibyteThatEnds) {
  testing::TemporaryFolder folder;
  auto const large = folder.path() / "large";
  std::ofstream(large) << std::string((std::size_t{1} << 20) + 1, '#');
  EXPECT_THAT(refusal([&] { static_cast<void>(read_hostfile(large)); }), HasSubstr("has more than 1 MiB"));
  EXPECT_THAT(refusal([] { static_cast<void>(read_hostfile("/dev/null")); }), HasSubstr("is a device"));
  auto const fifo = folder.path() / "fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  auto const read_fifo = [&](std::chrono::milliseconds timeout) {
    return read_hostfile(fifo, Deadline::after(timeout));
  };
  EXPECT_THAT(refusal([&] { static_cast<void>(read_fifo(std::chrono::milliseconds(50))); }),
              HasSubstr("this pipe has not ended within 0.05 s"));
  std::thread writer([&] { std::ofstream(fifo) << "node7 slots=2\n"; });
  EXPECT_THAT(read_fifo(std::chrono::seconds(10)), ElementsAre(Host{"node7", 2}));
  writer.join();
}

// Found by tests/fuzz/hostfile_fuzz.cpp: mpirun would read other hosts, or ssh an option.
TEST(Hosts, F15NamesThatMpirunWouldReadOtherwiseAreRefused) {
  EXPECT_THAT(
      hostfile_refusal("node7:4\n"),
      StartsWith("hosts:1: expected a host's name first, without , and : and =, such as in node7 slots=4, "
                 "found \"node7:4\""));
  EXPECT_THAT(hostfile_refusal("node7,node8 slots=2\n"), HasSubstr("found \"node7,node8\""));
  EXPECT_THAT(hostfile_refusal("-ofile\n"), HasSubstr("that does not begin with -"));
  EXPECT_THAT(hostfile_refusal(std::string("node7\0x\n", 8)),
              HasSubstr("without blanks and control characters"));
  for (char const* list : {"node7, node8", "-ofile:2", "a=b", "a\tb"}) {
    EXPECT_THAT(refusal([&] { static_cast<void>(parse_host_list(list)); }), HasSubstr("expected names"))
        << list;
  }
}

TEST(Hosts, NamesThatAShellWouldReadOtherwiseAreRefused) {
  for (char const* name :
       {"node7;reboot", "`id`", "$(id)", "node7|x", "node7&", "a'b", "a\"b", "a\\b", "node*", "\xc3\xa4"}) {
    EXPECT_THAT(
        hostfile_refusal(text("node1\n", name, " slots=2\n")),
        StartsWith("hosts:2: expected a host's name first, of letters of ASCII, digits, dots, - and _"))
        << name;
    EXPECT_THAT(refusal([&] { static_cast<void>(parse_host_list(text(name, ":2"))); }),
                HasSubstr("of letters of ASCII"))
        << name;
  }
  EXPECT_THAT(parse("gpu-1.rack_2.example.org\nme@node7\n10.0.0.7\n"),
              ElementsAre(Host{"gpu-1.rack_2.example.org", 1}, Host{"me@node7", 1}, Host{"10.0.0.7", 1}));
}

TEST(Hosts, AByteOrderMarkIsRefusedByItsName) {
  for (char const* mark : {"\xef\xbb\xbf", "\xff\xfe", "\xfe\xff"}) {
    EXPECT_THAT(hostfile_refusal(text(mark, "node7 slots=2\n")),
                StartsWith("hosts:1: begins with a byte-order mark"));
  }
}

TEST(Hosts, AListNamesHostsWithTheirSlots) {
  EXPECT_THAT(parse_host_list("node7:4,node8"), ElementsAre(Host{"node7", 4}, Host{"node8", 1}));
  EXPECT_THAT(parse_host_list("a,b,a:2"), ElementsAre(Host{"a", 3}, Host{"b", 1}));
  for (char const* list : {"", "a,", ",a", "a:", "a:x", "a:0", ":2"}) {
    EXPECT_THAT(refusal([&] { static_cast<void>(parse_host_list(list)); }), StartsWith("--host ")) << list;
  }
}

}  // namespace
}  // namespace ddp::launcher
