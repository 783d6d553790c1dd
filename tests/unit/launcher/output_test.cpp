#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <thread>

#include "core/system/file_descriptor.hpp"
#include "launcher/output/console.hpp"
#include "launcher/output/line_splitter.hpp"

namespace ddp::launcher {
namespace {

using ::testing::ElementsAre;
using End = LineSplitter::End;

struct Piece {
  std::string text;
  End end;
  friend bool operator==(Piece const&, Piece const&) = default;
};
void PrintTo(Piece const& piece, std::ostream* out) {
  *out << piece.text << '/' << static_cast<int>(piece.end);
}

class Splitting : public ::testing::Test {
 protected:
  std::vector<Piece> feed(std::string_view bytes) {
    std::vector<Piece> pieces;
    splitter_.feed(bytes, [&](std::string_view text, End end) {
      pieces.push_back({std::string(text), end});
    });
    return pieces;
  }
  std::vector<Piece> finish() {
    std::vector<Piece> pieces;
    splitter_.finish([&](std::string_view text, End end) { pieces.push_back({std::string(text), end}); });
    return pieces;
  }
  LineSplitter splitter_;
};

// L6
TEST_F(Splitting, HoldsAPartialLineUntilItEnds) {
  EXPECT_THAT(feed("ab"), ElementsAre());
  EXPECT_THAT(feed("c\n\nd"), ElementsAre(Piece{"abc", End::newline}, Piece{"", End::newline}));
  EXPECT_THAT(finish(), ElementsAre(Piece{"d", End::cut}));
  EXPECT_THAT(finish(), ElementsAre());
}

// L6
TEST_F(Splitting, ACarriageReturnEndsALineAtOnce) {
  EXPECT_THAT(feed("10%\r20%\r"),
              ElementsAre(Piece{"10%", End::carriage_return}, Piece{"20%", End::carriage_return}));
}

TEST_F(Splitting, ACarriageReturnAndANewlineAreOneEndWhereverTheyAreParted) {
  EXPECT_THAT(feed("a\r\nb"), ElementsAre(Piece{"a", End::newline}));
  EXPECT_THAT(feed("c\r"), ElementsAre(Piece{"bc", End::carriage_return}));
  EXPECT_THAT(feed("\nd\n"), ElementsAre(Piece{"", End::late_newline}, Piece{"d", End::newline}));
}

TEST_F(Splitting, ZeroBytesAreTextLikeAnyOther) {
  EXPECT_THAT(feed(std::string_view("a\0b\n", 4)), ElementsAre(Piece{std::string("a\0b", 3), End::newline}));
}

// L6: bounded memory
TEST_F(Splitting, AnEndlessLineIsCut) {
  std::string const piece(100000, 'x');
  std::size_t seen = 0;
  for (int i = 0; i < 10; ++i) {
    for (Piece const& each : feed(piece)) {
      EXPECT_EQ(each.end, End::cut);
      EXPECT_EQ(each.text.size(), LineSplitter::kMaxLine);
      seen += each.text.size();
    }
  }
  for (Piece const& rest : finish()) seen += rest.text.size();
  EXPECT_EQ(seen, 1000000U) << "nothing is lost";
}

/// A console whose stdout is a pipe or a terminal that the test reads.
class Showing : public ::testing::Test {
 protected:
  void open_pipe() {
    std::array<int, 2> ends{};
    ASSERT_EQ(pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK), 0);
    keep(ends[0], ends[1]);
  }
  /// False where there are no pseudo-terminals: in a container or chroot without /dev/pts.
  [[nodiscard]] bool open_terminal() {
    int leader = -1;
    int follower = -1;
    if (openpty(&leader, &follower, nullptr, nullptr, nullptr) != 0) return false;
    fcntl(leader, F_SETFL, O_NONBLOCK);
    keep(leader, follower);
    return true;
  }
  std::string shown() {
    std::string text;
    std::array<char, 65536> buffer{};
    for (ssize_t count; (count = read(read_end_.get(), buffer.data(), buffer.size())) > 0;) {
      text.append(buffer.data(), static_cast<std::size_t>(count));
    }
    return text;
  }
  Console console(Options const& options = {}) { return {options, write_end_.get(), write_end_.get()}; }
  void keep(int read_end, int write_end) {
    read_end_ = FileDescriptor(read_end);
    write_end_ = FileDescriptor(write_end);
  }
  FileDescriptor read_end_;
  FileDescriptor write_end_;
};

// L6
TEST_F(Showing, EveryLineHasItsRankInFront) {
  open_pipe();
  auto to = console();
  to.rank_line(Rank{3}, OutputStream::out, "hello", End::newline);
  to.rank_line(Rank{0}, OutputStream::err, "partial", End::cut);
  to.say("word");
  EXPECT_EQ(shown(), "[3] hello\n[0] partial\n[ddp-launch] word\n");
}

// L6
TEST_F(Showing, OptionsChooseWhatIsShown) {
  open_pipe();
  Options options;
  options.prefix = false;
  options.only_rank = Rank{1};
  options.show_stderr = false;
  auto to = console(options);
  to.rank_line(Rank{0}, OutputStream::out, "other rank", End::newline);
  to.rank_line(Rank{1}, OutputStream::err, "other stream", End::newline);
  to.rank_line(Rank{1}, OutputStream::out, "shown", End::newline);
  EXPECT_EQ(shown(), "shown\n");
}

// L6
TEST_F(Showing, AProgressBarOfRankZeroStaysOneLineOnATerminal) {
  if (!open_terminal()) GTEST_SKIP() << "no pseudo-terminals here (/dev/pts)";
  auto to = console();
  EXPECT_TRUE(to.shows_live_lines());
  to.rank_line(Rank{0}, OutputStream::out, "10%", End::carriage_return);
  to.rank_line(Rank{1}, OutputStream::out, "10%", End::carriage_return);
  to.rank_line(Rank{0}, OutputStream::out, "20%", End::carriage_return);
  EXPECT_EQ(shown(), "[0] 10%\r\r\x1b[K[0] 20%\r") << "rank 1's bar would fight for the same line";
  to.rank_line(Rank{1}, OutputStream::out, "a line", End::newline);
  EXPECT_EQ(shown(), "\r\x1b[K[1] a line\r\n") << "the bar is erased, not written over";
  to.rank_line(Rank{0}, OutputStream::out, "30%", End::carriage_return);
  to.finish(-1);
  EXPECT_EQ(shown(), "[0] 30%\r\r\n") << "what follows the job starts on a line of its own";
}

TEST_F(Showing, APipeGetsTheProgressOfEveryRank) {
  open_pipe();
  auto to = console();
  EXPECT_FALSE(to.shows_live_lines());
  to.rank_line(Rank{1}, OutputStream::out, "10%", End::carriage_return);
  to.rank_line(Rank{1}, OutputStream::out, "", End::late_newline);
  EXPECT_EQ(shown(), "[1] 10%\r\n");
}

// B10
TEST_F(Showing, LinesThatManyRanksWriteAfterAFailureAreShownOnce) {
  open_pipe();
  auto to = console();
  auto const say = [&](int rank, std::string_view text, OutputStream stream = OutputStream::err) {
    to.rank_line(Rank{rank}, stream, text, End::newline);
    return shown();
  };
  EXPECT_EQ(say(0, "same") + say(1, "same"), "[0] same\n[1] same\n") << "nothing has failed";
  to.group_repeats();
  EXPECT_EQ(say(0, "same"), "[0] same\n");
  EXPECT_EQ(say(1, "same") + say(2, "same"), "");
  EXPECT_EQ(say(1, "rank 1: rank 10 is gone"), "[1] rank 1: rank 10 is gone\n");
  EXPECT_EQ(say(10, "rank 10: rank 10 is gone"), "[10] rank 10: rank 10 is gone\n");
  EXPECT_EQ(say(2, "rank 2: rank 10 is gone"), "");
  EXPECT_EQ(say(0, "same"), "[0] same\n") << "again, by the one who said it first";
  EXPECT_EQ(say(1, "same", OutputStream::out), "[1] same\n") << "results are not grouped";
  to.end_repeats();
  EXPECT_EQ(shown(),
            "[ddp-launch] ranks 1-2: 3 lines of stderr not shown, since another rank wrote the same above\n");
  EXPECT_EQ(say(1, "same"), "[1] same\n");
  to.end_repeats();
  EXPECT_EQ(shown(), "");
}

// B10: bounded memory
TEST_F(Showing, OfVeryManyDifferentLinesAllAreShown) {
  open_pipe();
  auto to = console();
  to.group_repeats();
  std::size_t all = 0;
  for (int rank = 0; rank < 2; ++rank) {
    for (int i = 0; i < 2000; ++i) {
      to.rank_line(Rank{rank}, OutputStream::err, std::to_string(i), End::newline);
      std::string const text = shown();
      all += static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
    }
  }
  EXPECT_GE(all, 2000U + 900U);
  EXPECT_LE(all, 2000U + 1000U) << "the first ones are known";
  std::string const endless(5000, 'x');
  to.rank_line(Rank{0}, OutputStream::err, endless, End::cut);
  to.rank_line(Rank{1}, OutputStream::err, endless, End::cut);
  EXPECT_THAT(shown(), ::testing::HasSubstr("[1] xxx"));
}

TEST_F(Showing, AReaderThatStopsReadingBlocksNobody) {
  open_pipe();
  auto to = console();
  std::string const line(1000, 'x');
  int lines = 0;
  for (; !to.congested(); ++lines) {
    ASSERT_LT(lines, 100000);
    to.rank_line(Rank{0}, OutputStream::out, line, End::newline);
  }
  std::string all;
  while (to.sink(OutputStream::out).pending() > 0) {
    all += shown();
    to.sink(OutputStream::out).flush();
  }
  all += shown();
  EXPECT_EQ(all.size(), static_cast<std::size_t>(lines) * (line.size() + 5)) << "all of it came later";
}

TEST_F(Showing, TheFlagsOfAnInheritedDescriptorStayAsTheyWere) {
  open_pipe();
  int const before = fcntl(write_end_.get(), F_GETFL);
  fcntl(write_end_.get(), F_SETFL, before & ~O_NONBLOCK);
  auto to = console();
  to.rank_line(Rank{0}, OutputStream::out, "x", End::newline);
  EXPECT_EQ(fcntl(write_end_.get(), F_GETFL) & O_NONBLOCK, 0);
}

TEST_F(Showing, AReaderThatIsGoneIsForgotten) {
  open_pipe();
  signal(SIGPIPE, SIG_IGN);
  auto to = console();
  read_end_.reset();
  for (int i = 0; i < 10; ++i) to.rank_line(Rank{0}, OutputStream::out, "x", End::newline);
  EXPECT_EQ(to.sink(OutputStream::out).pending(), 0U);
}

}  // namespace
}  // namespace ddp::launcher
