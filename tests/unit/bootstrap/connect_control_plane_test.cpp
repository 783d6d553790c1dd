// A rank that needs no server, and the error file of any rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "ddp/bootstrap/control_plane.hpp"
#include "ddp/bootstrap/rank_info.hpp"
#include "ddp/core/text.hpp"
#include "support/launcher/shell.hpp"

namespace ddp::testing {
namespace {

namespace fs = std::filesystem;

Deadline soon_enough() { return Deadline::after(std::chrono::seconds(60)); }

// B5: in a folder where others may write too
TEST(ErrorFile, IsNotWrittenThroughALinkThatSomebodyMadeBeforehand) {
  TemporaryFolder const scratch;
  RankInfo info;
  info.error_file = (scratch.path() / "error.json").string();
  fs::path const victim = scratch.path() / "victim";
  std::ofstream(victim) << "precious";
  for (int i = 0; i < 1000; ++i) {  // the next one's name among them
    fs::create_symlink(victim, text(info.error_file, ".", ::getpid(), ".", i, ".tmp"));
  }
  connect_control_plane(info, soon_enough())->report_error({.code = ErrorCode::io, .detail = "why"});
  EXPECT_EQ(fs::file_size(victim), std::string("precious").size());
  EXPECT_TRUE(fs::is_regular_file(fs::symlink_status(info.error_file)));
}

TEST(ConnectControlPlane, AloneIsAJobOfOneThatWorksInProcess) {
  TemporaryFolder const scratch;
  RankInfo info;
  info.error_file = (scratch.path() / "error.json").string();
  auto const control = connect_control_plane(info, soon_enough());
  EXPECT_EQ(control->rank(), 0);
  EXPECT_EQ(control->size(), 1);
  control->put("key", "value");
  EXPECT_EQ(control->get("key", soon_enough()), "value");
  EXPECT_THAT(control->all_gather("all", "mine", control->everyone(), soon_enough()),
              ::testing::ElementsAre("mine"));
  control->barrier("barrier", soon_enough());
  control->report_error({.code = ErrorCode::mismatch, .detail = "why"});
  std::ifstream file(info.error_file);
  EXPECT_EQ(nlohmann::json::parse(file).at("code"), "mismatch");
  control->leave();
}

TEST(ConnectControlPlane, AnErrorFileThatCannotBeWrittenIsNoFailure) {
  RankInfo info;
  info.error_file = "/does/not/exist/error.json";
  connect_control_plane(info, soon_enough())->report_error({.code = ErrorCode::io, .detail = "why"});
}

TEST(ConnectControlPlane, OneRankNeedsNobodyWhoeverStartedIt) {
  for (RankSource const source : {RankSource::open_mpi, RankSource::pmi, RankSource::slurm}) {
    RankInfo info;
    info.source = source;
    EXPECT_EQ(connect_control_plane(info, soon_enough())->size(), 1);
  }
}

}  // namespace
}  // namespace ddp::testing
