// L12: versions of libraries that ddp-launch does not link.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <fstream>

#include "launcher/check/library_versions.hpp"
#include "support/launcher/shell.hpp"

namespace ddp::launcher {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

VersionedLibrary fake(VersionedLibrary const& library) {
  static constexpr std::array kFake{FAKE_VERSIONS_LIBRARY};
  return {kFake, library.function, library.version};
}

LibraryVersion nccl_that(char const* says, std::chrono::milliseconds timeout = kVersionTimeout) {
  setenv("FAKE_NCCL", says, 1);
  return ask_version(fake(kNccl)).answer(timeout);
}

LibraryVersion mpi_that(char const* says) {
  setenv("FAKE_MPI", says, 1);
  return ask_version(fake(kMpi)).answer();
}

TEST(Versions, OfNcclAsItCounts) {
  EXPECT_EQ(packed_version_text(22809), "2.28.9");
  EXPECT_EQ(packed_version_text(20905), "2.9.5");
  EXPECT_EQ(packed_version_text(2804), "2.8.4") << "counted otherwise before 2.9";
  LibraryVersion const found = nccl_that("22803");
  EXPECT_EQ(found.version, "2.28.3");
  EXPECT_THAT(found.path, EndsWith("libfake_versions.so"));
  EXPECT_EQ(found.problem, "");
  EXPECT_EQ(nccl_that("").version, "of unknown version") << "it refuses to tell";
}

TEST(Versions, OfMpiInItsOwnWords) {
  EXPECT_EQ(mpi_that("Open MPI v4.1.4, package: Debian, ident: 4.1.4").version, "Open MPI 4.1.4");
  EXPECT_EQ(mpi_that("MPICH Version:      4.0.2\nMPICH Release date: …").version,
            "MPICH Version:      4.0.2");
  EXPECT_THAT(version_parts("Open MPI 4.1.4"), ElementsAre(4, 1, 4));
  EXPECT_THAT(version_parts("mpirun (Open MPI) 5.0.7rc1"), ElementsAre(5, 0, 7));
  EXPECT_THAT(version_parts("MPICH Version:      4.0.2"), ElementsAre(4, 0, 2));
}

TEST(Versions, TheFirstLibraryThatHasTheFunctionIsAsked) {
  setenv("FAKE_NCCL", "22803", 1);
  constexpr std::array kFiles{"libddp_not_there.so.2", "libm.so.6", FAKE_VERSIONS_LIBRARY};
  auto const ask_first = [&](std::size_t count) {
    return ask_version({std::span(kFiles).first(count), kNccl.function, kNccl.version}).answer();
  };
  EXPECT_EQ(ask_first(3).version, "2.28.3");
  LibraryVersion const none = ask_first(2);
  EXPECT_EQ(none.version, "");
  EXPECT_EQ(none.path, "");
  EXPECT_THAT(none.problem, HasSubstr("libddp_not_there.so.2: cannot open shared object file"));
}

TEST(Versions, ALibraryThatCrashesHangsOrTalksHarmsNobody) {
  EXPECT_EQ(nccl_that("killed").problem, "crashed with signal 9 (SIGKILL)");
  EXPECT_EQ(nccl_that("killed").version, "");
  EXPECT_EQ(nccl_that("hangs", 50ms).problem, "no answer within 50 ms");
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(nccl_that("noisy 22803").version, "2.28.3");
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

TEST(Versions, OfAProgramByItsFirstLine) {
  ddp::testing::TemporaryFolder const folder;
  auto const program = [&](std::string const& script) {
    std::string const file = folder.path() / "mpirun";
    std::ofstream(file) << "#!/bin/sh\n" << script << "\n";
    std::filesystem::permissions(file, std::filesystem::perms::owner_all);
    return file;
  };
  LibraryVersion const good =
      program_version(program("echo \"$1: mpirun (Open MPI) 4.1.4\"; echo; echo more"));
  EXPECT_EQ(good.version, "--version: mpirun (Open MPI) 4.1.4");
  EXPECT_EQ(good.path, folder.path() / "mpirun");
  EXPECT_EQ(program_version(program("echo sorry; exit 3")).version, "");
  EXPECT_EQ(program_version(program("echo sorry; exit 3")).problem, "ended with exit code 3 and no version");
  EXPECT_EQ(program_version(program("sleep 60 & wait"), 50ms).problem, "no answer within 50 ms");
  EXPECT_EQ(program_version(program("exec >&- 2>&-; sleep 60"), 50ms).problem, "no answer within 50 ms")
      << "it closed its output and stayed";
  EXPECT_EQ(program_version("/nowhere/mpirun").problem, "ended with exit code 127 and no version");
}

TEST(Versions, AreComparedByNumberAsFarAsBothGo) {
  EXPECT_THAT(version_parts("2.28.3+cuda13.0"), ElementsAre(2, 28, 3));
  EXPECT_THAT(version_parts("of unknown version"), IsEmpty());
  EXPECT_TRUE(is_older("2.9.5", "2.18.1"));
  EXPECT_FALSE(is_older("2.18.1", "2.18.1"));
  EXPECT_FALSE(is_older("13.0", "13.0.88"));
  EXPECT_FALSE(is_older("2.28.3", "")) << "nothing to compare with";
}

}  // namespace
}  // namespace ddp::launcher
