// What ddp-launch makes of the output of ranks behind an mpirun.
#include <gtest/gtest.h>

#include <initializer_list>
#include <map>

#include "launcher/mpirun/mpirun_output.hpp"

namespace ddp::launcher {
namespace {

/// What each rank wrote (-1: mpirun), if its output comes in parts of `length`.
std::map<int, std::string> read_tagged(std::string_view stream, std::size_t length,
                                       TagReader reader = TagReader()) {
  std::map<int, std::string> written;
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

TEST(MpirunOutput, L6TheSpaceBehindATagOfOpenMpi5IsNoneOfTheRanks) {
  char const* const stream = "[1,3]<stdout>:  epoch 1\n[1,0]<stdout>: \n[1,0]<stdout>: a[1,0]<stdout>: b\n";
  std::map<int, std::string> const written{{3, " epoch 1\n"}, {0, "\nab\n"}};
  for (std::size_t length : {1, 2, 3, 5, 7, 1000}) {
    EXPECT_EQ(read_tagged(stream, length, TagReader(true)), written) << "in parts of " << length;
  }
}

}  // namespace
}  // namespace ddp::launcher
