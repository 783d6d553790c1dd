// What ddp-launch makes of mpirun's words, of its daemon, and of the errors of the ranks behind it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <initializer_list>
#include <map>
#include <sstream>

#include "launcher/mpirun/mpi_daemon.hpp"
#include "launcher/mpirun/mpirun_output.hpp"
#include "launcher/report/outcome.hpp"

namespace ddp::launcher {
namespace {

using ::testing::ElementsAre;

TEST(MpirunOutput, ItsWordsNameTheRankThatFailed) {
  EXPECT_EQ(named_culprit("mpirun noticed that process rank 3 with PID 0 on node node7 exited on signal 9"),
            Rank{3});
  EXPECT_EQ(named_culprit("  Process name: [[5983,1],12]"), Rank{12});
  for (char const* other : {"", "process rank x", "Process name: [[5983,1]", "  Exit code:    5"}) {
    EXPECT_EQ(named_culprit(other), std::nullopt) << other;
  }
}

/// What each rank wrote (-1: mpirun), if its output comes in parts of `length`.
std::map<int, std::string> read_tagged(std::string_view stream, std::size_t length) {
  std::map<int, std::string> written;
  TagReader reader;
  auto const sink = [&](std::optional<Rank> rank, std::string_view bytes) {
    written[rank ? rank->value() : -1] += bytes;
  };
  for (std::size_t at = 0; at < stream.size(); at += length) reader.feed(stream.substr(at, length), sink);
  reader.finish(sink);
  return written;
}

TEST(MpirunOutput, L6EachRanksBytesAreAsItWroteThem) {
  struct Case {
    char const* stream;
    std::map<int, std::string> written;
  };
  for (Case const& each : std::initializer_list<Case>{
           {"[1,3]<stdout>:epoch 1\n[1,0]<stdout>:\n", {{3, "epoch 1\n"}, {0, "\n"}}},
           {"[1,0]<stdout>:a[1,0]<stdout>:: [1,0]<stdout>:b\n", {{0, "a: b\n"}}},
           {"[1,0]<stdout>:a0[1,1]<stdout>:a1[1,0]<stdout>:b0\n[1,1]<stdout>:b1\n",
            {{0, "a0b0\n"}, {1, "a1b1\n"}}},
           {"[1,0]<stdout>:1/9\r2/9\r\nmpirun noticed\n", {{0, "1/9\r2/9\r\n"}, {-1, "mpirun noticed\n"}}},
           {"[1,0]<stdout>:array[1,2] [3]<std\n", {{0, "array[1,2] [3]<std\n"}}},
           {"[node7:12] Signal: Aborted (6)\n\n[1,x]<stdout>:a\n[a, b] <stdout>:",
            {{-1, "[node7:12] Signal: Aborted (6)\n\n[1,x]<stdout>:a\n[a, b] <stdout>:"}}},
           {"[1,2", {{-1, "[1,2"}}},
           {"[1,2]<stderr>:x[1,", {{2, "x[1,"}}}}) {
    for (std::size_t length : {1, 2, 3, 5, 7, 1000}) {
      EXPECT_EQ(read_tagged(each.stream, length), each.written) << each.stream << " in parts of " << length;
    }
  }
}

TEST(MpirunOutput, L7ItsWordOfAFailedRankIsHeard) {
  EXPECT_TRUE(tells_of_failure("a non-zero exit code. Per user-direction, the job has been aborted."));
  EXPECT_TRUE(tells_of_failure("ORTE has lost communication with a remote daemon."));
  for (char const* other : {"", "WARNING: Linux kernel CMA support was requested via the",
                            "Primary job  terminated normally, but 1 process returned"}) {
    EXPECT_FALSE(tells_of_failure(other)) << other;
  }
}

TEST(MpirunOutput, TheHostWhoseDaemonItLostIsHeard) {
  EXPECT_EQ(lost_host("  Remote daemon: [[5983,0],1] on node node-b"), "node-b");
  EXPECT_EQ(lost_host("  Remote daemon: [[5983,0],1] on node my node\r\n"), "my node");
  for (char const* other : {"", "  HNP daemon   : [[5983,0],0] on node node-a",
                            "Remote daemon: on node node-b", "  Remote daemon: [[5983,0],1]"}) {
    EXPECT_EQ(lost_host(other), std::nullopt) << other;
  }
}

TEST(MpiDaemon, AConnectionWhoseOtherEndHasLongNotAnsweredIsFound) {
  std::istringstream table(
      "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
      "   0: 01004D0A:D52F 02004D0A:B3A2 01 00000000:00000000 00:00000000 00000000     0        0 101 1\n"
      "   1: 01004D0A:D52F 02004D0A:B3A4 01 00000150:00000000 01:00000A01 00000007     0        0 102 1\n"
      "   2: 01004D0A:D52F 02004D0A:B3A6 01 00000150:00000000 01:00000A01 00000008     0        0 103 1\n"
      "   3: 01004D0A:D530 02004D0A:B3A8 02 00000001:00000000 01:00000A01 00000009     0        0 104 1\n"
      "   4: 01004D0A:D52F 02004D0A:B3AA 01 00000150:00000000 01:00000A01 0000000A     0        0 105 1\n"
      "   5: 01004D0A:D52F 02004D0A:B3AC 01 00000150:00000000 04:00000A01 00000000     0        8 106 1\n"
      "   6: 01004D0A:D52F 02004D0A:B3AE 01 00000150:00000000 04:00000A01 00000000     0        7 107 1\n"
      "   7: cut off\n");
  EXPECT_THAT(unheard_sockets(table), ElementsAre("103", "105", "106"));
  EXPECT_FALSE(is_unheard(getpid()));
  EXPECT_FALSE(is_mpi_daemon(getpid()));
}

TEST(Outcome, L8TheEarliestErrorThatFollowsNoOtherIsTheFirstCause) {
  ReportedError const early{.failure = {.code = ErrorCode::peer_lost, .detail = "b"},
                            .time = "2026-01-31T12:00:00.100Z"};
  ReportedError const late{.failure = {.code = ErrorCode::mismatch, .detail = "a"},
                           .time = "2026-01-31T12:00:00.300Z"};
  ReportedError const later{.failure = {.code = ErrorCode::io, .detail = "c"},
                            .time = "2026-01-31T12:00:00.400Z"};
  EXPECT_TRUE(came_before(late, early));
  EXPECT_FALSE(came_before(early, late));
  EXPECT_TRUE(came_before(late, later));
  EXPECT_FALSE(came_before(later, late));
}

}  // namespace
}  // namespace ddp::launcher
