#include "launcher/process/line_buffering.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <map>

#include "launcher/mpirun/mpi_plan.hpp"
#include "launcher/output/line_splitter.hpp"
#include "support/launcher/shell.hpp"

namespace ddp::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

/// What is inherited, and nothing else.
Lookup of(std::map<std::string, std::string> const& variables) {
  return [variables](std::string const& name) -> std::optional<std::string> {
    auto const found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
}

// B2
TEST(LineBuffering, SetsWhatIsUnsetAndAddsToWhatIsSet) {
  EXPECT_THAT(line_buffering("/lib/x.so", of({})),
              ElementsAre(Pair("PYTHONUNBUFFERED", "1"), Pair("LD_PRELOAD", "/lib/x.so"),
                          Pair("ASAN_OPTIONS", "verify_asan_link_order=0")));
  EXPECT_THAT(
      line_buffering(
          "/lib/x.so",
          of({{"PYTHONUNBUFFERED", ""}, {"LD_PRELOAD", "jemalloc.so"}, {"ASAN_OPTIONS", "detect_leaks=0"}})),
      ElementsAre(Pair("LD_PRELOAD", "jemalloc.so:/lib/x.so"),
                  Pair("ASAN_OPTIONS", "detect_leaks=0:verify_asan_link_order=0")));
  EXPECT_THAT(line_buffering("", of({})), ElementsAre(Pair("PYTHONUNBUFFERED", "1"))) << "no library here";
}

// B2: a ddp-launch among the ranks of another
TEST(LineBuffering, AddsNothingTwice) {
  auto const outer = line_buffering("/lib/x.so", of({{"LD_PRELOAD", "a.so"}}));
  EXPECT_THAT(
      line_buffering("/lib/x.so", of({outer.begin(), outer.end()})),
      ElementsAre(Pair("LD_PRELOAD", "a.so:/lib/x.so"), Pair("ASAN_OPTIONS", "verify_asan_link_order=0")));
}

// B2
TEST(LineBuffering, LibrariesLieBesideTheLauncherOrWhereItIsInstalled) {
  ddp::testing::TemporaryFolder const folder;
  auto const launcher = folder.path() / "bin/ddp-launch";
  std::filesystem::create_directories(folder.path() / "bin");
  std::filesystem::create_directories(folder.path() / "lib/ddp");
  std::filesystem::create_directories(folder.path() / "with blank");
  EXPECT_EQ(library_to_preload(launcher, "../lib/ddp", kLineBufferLibrary), "");
  std::ofstream((folder.path() / "lib/ddp/ddp_line_buffer.so").string());
  EXPECT_EQ(library_to_preload(launcher, "../lib/ddp", kLineBufferLibrary),
            (folder.path() / "lib/ddp/ddp_line_buffer.so").string());
  std::ofstream((folder.path() / "bin/ddp_line_buffer.so").string());
  EXPECT_EQ(library_to_preload(launcher, "../lib/ddp", kLineBufferLibrary),
            (folder.path() / "bin/ddp_line_buffer.so").string());
  std::ofstream(folder.path() / "with blank/ddp_line_buffer.so");
  EXPECT_EQ(library_to_preload(folder.path() / "with blank/ddp-launch", "../nowhere", kLineBufferLibrary), "")
      << "LD_PRELOAD cannot name it";
  EXPECT_EQ(library_to_preload(launcher, "../lib/ddp", kLoopbackLibrary), "");
  std::ofstream(folder.path() / "lib/ddp/ddp_loopback.so");
  EXPECT_EQ(library_to_preload(launcher, "../lib/ddp", kLoopbackLibrary),
            (folder.path() / "lib/ddp/ddp_loopback.so").string());
}

TEST(LineBuffering, APipeIsKnownByItsPlace) {
  std::array<int, 4> ends{};
  ASSERT_EQ(pipe(ends.data()), 0);
  ASSERT_EQ(pipe(ends.data() + 2), 0);
  EXPECT_EQ(place_of(ends[0]), place_of(ends[1]));
  EXPECT_NE(place_of(ends[1]), place_of(ends[3]));
  for (int const end : ends) close(end);
  EXPECT_EQ(place_of(-1), "");
}

// B13
TEST(LineStamper, PutsTheTimeInFrontOfLinesAndOfNothingElse) {
  LineStamper stamper;
  auto const at = [](int milliseconds) {
    return std::chrono::system_clock::time_point(std::chrono::milliseconds(milliseconds));
  };
  EXPECT_EQ(stamper.stamp("a", at(1)), "1970-01-01T00:00:00.001Z a");
  EXPECT_EQ(stamper.stamp("b\n\nc", at(2)), "b\n1970-01-01T00:00:00.002Z \n1970-01-01T00:00:00.002Z c");
  EXPECT_EQ(stamper.stamp("1%\r2%\r\n", at(3)), "1%\r2%\r\n");
  EXPECT_THAT(stamper.stamp("", at(4)), IsEmpty());
  EXPECT_EQ(stamper.stamp("x\n", at(5000)), "1970-01-01T00:00:05.000Z x\n");
}

}  // namespace
}  // namespace ddp::launcher
