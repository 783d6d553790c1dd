// F19: whatever comes through the control socket, it is dropped, honest ranks are unaffected, memory is
// bounded.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <random>

#include "ddp/core/text.hpp"
#include "support/control_jobs.hpp"
#include "support/raw_socket.hpp"

// AddressSanitizer keeps freed memory for a while: little of it here, where resident memory is measured.
extern "C" char const* __asan_default_options();  // NOLINT(bugprone-reserved-identifier)
extern "C" char const* __asan_default_options() { return "quarantine_size_mb=4"; }

namespace ddp::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using Kind = ControlServer::Event::Kind;

constexpr milliseconds kFrameDeadline{300};
constexpr milliseconds kWellAfterIt{5000};

std::size_t resident_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmRSS:")) return std::stoul(line.substr(6)) * 1024;
  }
  throw std::runtime_error("/proc/self/status has no VmRSS");
}

/// Two honest ranks that gather with each other, from the beginning of a test to its end.
class HonestRanks {
 public:
  explicit HonestRanks(ServerThread& server, int size) {
    for (int r = 0; r < 2; ++r) {
      planes_.push_back(
          connect_control_plane(launched(server.path(), r, size), Deadline::after(seconds(10))));
    }
    for (int r = 0; r < 2; ++r) threads_.emplace_back([this, r] { work(r); });
  }
  ~HonestRanks() { finish(); }

  /// Both are still served: some more rounds pass.
  void expect_unaffected() {
    int const before = rounds_.load();
    Deadline const deadline = Deadline::after(seconds(20));
    while (rounds_.load() < before + 20 && !deadline.expired()) std::this_thread::sleep_for(milliseconds(1));
    EXPECT_GE(rounds_.load(), before + 20) << "honest ranks were held up";
    std::lock_guard const lock(mutex_);
    EXPECT_EQ(trouble_, "");
    EXPECT_LT(slowest_, seconds(5)) << "one round took too long";
  }

 private:
  void work(int r) {
    std::vector<Rank> const both{Rank{0}, Rank{1}};
    try {
      for (int round = 0;; ++round) {
        auto const start = std::chrono::steady_clock::now();
        // The last round is agreed on, so that none waits for one that has stopped.
        auto const values = planes_[static_cast<std::size_t>(r)]->all_gather(
            "honest", text(round, stop_ ? " stop" : ""), both, Deadline::after(seconds(30)));
        if (r == 0) ++rounds_;
        for (auto const& value : values) {
          if (value.ends_with("stop")) return;
          if (value != text(round)) throw std::runtime_error("round " + text(round) + " got " + value);
        }
        std::lock_guard const lock(mutex_);
        slowest_ = std::max(slowest_, std::chrono::steady_clock::now() - start);
      }
    } catch (std::exception const& error) {
      std::lock_guard const lock(mutex_);
      trouble_ = error.what();
    }
  }
  void finish() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
  }

  std::vector<std::shared_ptr<ControlPlane>> planes_;
  std::atomic<int> rounds_{0};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::string trouble_;
  std::chrono::steady_clock::duration slowest_{0};
  std::vector<std::thread> threads_;
};

class ControlServerFaults : public ::testing::Test {
 protected:
  /// As rank 2, once the server has seen the end of the one before it. Null after 10 s.
  std::unique_ptr<RawSocket> join_when_possible() {
    for (Deadline const deadline = Deadline::after(seconds(10)); !deadline.expired();) {
      auto socket = std::make_unique<RawSocket>(server_.path());
      socket->send({wire::Type::join, 1, {}, wire::encode_join({Rank{2}, 3})});
      auto const answer = socket->receive();
      if (answer && answer->type == wire::Type::done) return socket;
    }
    return nullptr;
  }

  // Ranks 0 and 1 are honest; what a test needs beyond them is rank 2.
  ServerThread server_{ControlServer::Options{.size = 3, .frame_deadline = kFrameDeadline}};
  HonestRanks honest_{server_, 3};
};

std::string random_bytes(std::size_t size, unsigned seed) {
  std::mt19937 random(seed);
  std::string bytes(size, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random() & 0xffU);
  return bytes;
}

std::string header_of(wire::Type type, std::uint32_t key_length, std::uint32_t value_length) {
  std::string bytes = wire::encode_header(type, 1, 0, 0).substr(0, 16);
  wire::append_u32(bytes, key_length);
  wire::append_u32(bytes, value_length);
  return bytes;
}

TEST_F(ControlServerFaults, GarbageIsDropped) {
  for (unsigned seed = 0; seed < 50; ++seed) {
    RawSocket socket(server_.path());
    socket.send(random_bytes(4096, seed));
    EXPECT_TRUE(socket.closes_within(kWellAfterIt)) << "seed " << seed;
  }
  honest_.expect_unaffected();
}

TEST_F(ControlServerFaults, GarbageOfARankThatHasJoinedEndsItAlone) {
  RawSocket socket(server_.path());
  socket.join(2, 3);
  socket.send(random_bytes(4096, 1));
  EXPECT_TRUE(socket.closes_within(kWellAfterIt));
  auto const event = server_.find(Kind::disconnected, Rank{2});
  ASSERT_TRUE(event);
  EXPECT_THAT(event->text, HasSubstr("not a frame of the control plane"));
  honest_.expect_unaffected();
}

TEST_F(ControlServerFaults, ARankThatLiesInsideAFrameIsDroppedAndTold) {
  for (auto const& [type, value] : std::vector<std::pair<wire::Type, std::string>>{
           {wire::Type::gather, "\xff\xff\xff\x7f"},  // a group of 2^31 - 1
           {wire::Type::gather, ""},
           {wire::Type::error, "x"},
           {wire::Type::error, "\xff\xff\xff\xff no such code"},
           {wire::Type::lost, "servers only"},
           {wire::Type::join, wire::encode_join({Rank{2}, 3})}}) {
    auto const socket = join_when_possible();
    ASSERT_NE(socket, nullptr);
    socket->send({type, 9, {}, value});
    auto const answer = socket->receive();
    ASSERT_TRUE(answer) << static_cast<int>(type);
    EXPECT_EQ(answer->type, wire::Type::failed);
    EXPECT_EQ(answer->request, 0U);
    EXPECT_TRUE(socket->closes_within(kWellAfterIt));
  }
  honest_.expect_unaffected();
}

TEST_F(ControlServerFaults, AHalfFrameFollowedBySilenceIsDroppedInTime) {
  std::string const join = wire::encode({wire::Type::join, 1, {}, wire::encode_join({Rank{2}, 3})});
  for (std::size_t const part : {std::size_t{0}, std::size_t{1}, wire::kHeaderSize, join.size() - 1}) {
    RawSocket socket(server_.path());
    auto const start = std::chrono::steady_clock::now();
    socket.send(std::string_view(join).substr(0, part));
    EXPECT_TRUE(socket.closes_within(kWellAfterIt)) << part << " bytes of a join";
    EXPECT_GE(std::chrono::steady_clock::now() - start, kFrameDeadline - milliseconds(50));
  }
  RawSocket socket(server_.path());
  socket.join(2, 3);
  socket.send(wire::encode({wire::Type::put, 2, "key", std::string(1000, 'v')}).substr(0, 500));
  EXPECT_TRUE(socket.closes_within(kWellAfterIt));
  auto const event = server_.find(Kind::disconnected, Rank{2});
  ASSERT_TRUE(event);
  EXPECT_THAT(event->text, HasSubstr("the rest of a frame did not come within 0.3 s"));
  honest_.expect_unaffected();
}

TEST_F(ControlServerFaults, ASlowWriterCannotHoldAFrameOpen) {
  RawSocket socket(server_.path());
  socket.join(2, 3);
  std::string const frame = wire::encode({wire::Type::put, 2, "key", std::string(1000, 'v')});
  auto const start = std::chrono::steady_clock::now();
  std::size_t sent = 0;
  while (sent < frame.size() && socket.send(std::string_view(frame).substr(sent, 1)) == 1) {
    ++sent;
    std::this_thread::sleep_for(milliseconds(10));
  }
  EXPECT_LT(sent, 500U) << "byte by byte it was to take 10 s";
  EXPECT_LT(std::chrono::steady_clock::now() - start, kWellAfterIt);
  honest_.expect_unaffected();
}

TEST_F(ControlServerFaults, EachFrameOfALongStreamHasItsOwnTime) {
  RawSocket socket(server_.path());
  socket.join(2, 3);
  std::string const frame = wire::encode({wire::Type::progress, 0, {}, "step"});
  // Every read ends inside a frame, for longer than one frame may take.
  std::string stream = frame.substr(0, 1);
  for (Deadline const deadline = Deadline::after(3 * kFrameDeadline); !deadline.expired();) {
    ASSERT_TRUE(socket.send_all(stream)) << "dropped";
    stream = frame.substr(1) + frame.substr(0, 1);
    std::this_thread::sleep_for(milliseconds(10));
  }
  EXPECT_FALSE(socket.closes_within(milliseconds(20)));
  honest_.expect_unaffected();
}

TEST_F(ControlServerFaults, ASilentRankThatHasJoinedIsKept) {
  RawSocket socket(server_.path());
  socket.join(2, 3);
  EXPECT_FALSE(socket.closes_within(3 * kFrameDeadline));
  socket.send({wire::Type::put, 2, "key", "value"});
  auto const answer = socket.receive();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->type, wire::Type::done);
}

TEST_F(ControlServerFaults, AHugeLengthReservesNothing) {
  std::size_t const before = resident_bytes();
  for (auto const& [key, value] : std::vector<std::pair<std::uint32_t, std::uint32_t>>{
           {0xffffffffU, 0}, {0, 0xffffffffU}, {257, 0}, {0, 0x7fffffffU}}) {
    RawSocket stranger(server_.path());
    stranger.send(header_of(wire::Type::join, key, value));
    EXPECT_TRUE(stranger.closes_within(kFrameDeadline - milliseconds(50)))
        << "at once, not when it is overdue";
    RawSocket rank(server_.path());
    rank.join(2, 3);
    rank.send(header_of(wire::Type::put, key, value));
    EXPECT_TRUE(rank.closes_within(kFrameDeadline - milliseconds(50)));
  }
  // As large as is allowed, but only announced.
  RawSocket rank(server_.path());
  rank.join(2, 3);
  rank.send(header_of(wire::Type::put, 3, static_cast<std::uint32_t>(ControlPlane::kMaxValue)));
  honest_.expect_unaffected();
  EXPECT_LT(resident_bytes(), before + (std::size_t{8} << 20));
}

TEST_F(ControlServerFaults, AFloodOfConnectionsIsCapped) {
  std::size_t const before = resident_bytes();
  std::vector<std::unique_ptr<RawSocket>> sockets;
  for (int i = 0; i < 300; ++i) {
    sockets.push_back(std::make_unique<RawSocket>(server_.path()));
    ASSERT_EQ(sockets.back()->error(), 0);
  }
  EXPECT_TRUE(sockets.front()->closes_within(kFrameDeadline)) << "the oldest had to go";
  honest_.expect_unaffected();
  // A rank that comes in the middle of it is let in.
  RawSocket rank(server_.path());
  rank.join(2, 3);
  EXPECT_TRUE(sockets.back()->closes_within(kWellAfterIt)) << "none stays without a join";
  EXPECT_LT(resident_bytes(), before + (std::size_t{16} << 20));
  honest_.expect_unaffected();
}

TEST_F(ControlServerFaults, AFloodOfReconnectionsHarmsNobody) {
  std::size_t const before = resident_bytes();
  run_ranks(4, [&](int thread) {
    for (unsigned i = 0; i < 500; ++i) {
      RawSocket socket(server_.path());
      socket.send(random_bytes(200, i + 1000 * static_cast<unsigned>(thread)));
    }
  });
  honest_.expect_unaffected();
  EXPECT_LT(resident_bytes(), before + (std::size_t{16} << 20));
}

TEST_F(ControlServerFaults, AFloodOfRequestsWaitsInItsOwnSocket) {
  constexpr std::size_t kRequests = 60000;
  constexpr std::size_t kMayWait = 1024;
  std::string flood;
  for (std::size_t i = 0; i < kRequests; ++i) {
    flood += wire::encode({wire::Type::get, i + 2, text("never put ", i), {}});
  }
  RawSocket socket(server_.path());
  socket.join(2, 3);
  std::size_t const before = resident_bytes();
  // No answer is read, so that after a while the server reads no more requests.
  std::string_view rest = flood;
  for (auto progress = std::chrono::steady_clock::now();
       !rest.empty() && std::chrono::steady_clock::now() - progress < milliseconds(500);) {
    ssize_t const count = socket.send(rest);
    ASSERT_GE(count, 0) << "dropped instead of paused";
    rest.remove_prefix(static_cast<std::size_t>(count));
    if (count > 0) progress = std::chrono::steady_clock::now();
  }
  EXPECT_FALSE(rest.empty()) << "the server read everything";
  EXPECT_LT(resident_bytes(), before + (std::size_t{16} << 20));
  honest_.expect_unaffected();

  // Once the answers are read, all goes on where it stopped.
  std::thread sender([&] { EXPECT_TRUE(socket.send_all(rest)); });
  std::size_t refused = 0;
  for (; refused < kRequests - kMayWait; ++refused) {
    auto const answer = socket.receive();
    if (!answer || answer->type != wire::Type::failed) break;
  }
  sender.join();
  EXPECT_EQ(refused, kRequests - kMayWait);
  for (auto const& event : server_.events()) {
    EXPECT_NE(event.kind, Kind::disconnected) << event.text;
  }
  socket.send({wire::Type::put, 1, "never put 0", "after all"});
  auto const answer = socket.receive();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->type, wire::Type::failed) << "1,024 of its calls wait already";
  honest_.expect_unaffected();
}

TEST_F(ControlServerFaults, ARankThatDoesNotReadItsAnswersIsDropped) {
  constexpr std::size_t kValue = std::size_t{16} << 20;
  RawSocket writer(server_.path());
  writer.join(2, 3);
  ASSERT_TRUE(writer.send_all(wire::encode({wire::Type::put, 2, "big", std::string(kValue, 'v')})));
  ASSERT_TRUE(writer.receive());
  std::size_t const before = resident_bytes();
  std::string flood;
  for (std::uint64_t i = 3; i < 103; ++i) flood += wire::encode({wire::Type::get, i, "big", {}});
  ASSERT_TRUE(writer.send_all(flood));  // 1.6 GiB of answers
  auto const event = server_.find(Kind::disconnected, Rank{2});
  ASSERT_TRUE(event);
  EXPECT_THAT(event->text, HasSubstr("does not read its answers"));
  EXPECT_LT(resident_bytes(), before + (std::size_t{16} << 20)) << "answers share the value";
  honest_.expect_unaffected();
}

TEST_F(ControlServerFaults, ARankThatVanishesInTheMiddleOfAnAnswerHarmsNobody) {
  for (int i = 0; i < 20; ++i) {
    RawSocket socket(server_.path());
    socket.join(2, 3);
    socket.send_all(wire::encode({wire::Type::put, 2, text("value ", i), std::string(1 << 20, 'v')}));
    socket.send({wire::Type::get, 3, text("value ", i), {}});
    socket.send({wire::Type::get, 4, "never", {}});
    socket.close();  // EPIPE or ECONNRESET at the server
    Deadline const deadline = Deadline::after(seconds(10));
    auto const gone = [&] {
      auto const events = server_.events();
      return std::ranges::count(events, Kind::disconnected, &ControlServer::Event::kind) > i;
    };
    while (!gone() && !deadline.expired()) std::this_thread::sleep_for(milliseconds(1));
    ASSERT_TRUE(gone());
  }
  honest_.expect_unaffected();
}

TEST_F(ControlServerFaults, MutatedFramesOfARankNeverHarmTheOthers) {
  std::vector<std::string> const valid{
      wire::encode({wire::Type::get, 7, "key", {}}),
      wire::encode({wire::Type::gather, 8, "g", wire::encode_group(std::vector<Rank>{Rank{2}}) + "v"}),
      wire::encode({wire::Type::withdraw, 7, {}, {}}), wire::encode({wire::Type::progress, 0, {}, "step 1"}),
      wire::encode({wire::Type::error, 0, {}, wire::encode_trouble(ErrorCode::io, "x")})};
  std::mt19937 random(7);
  for (int i = 0; i < 300; ++i) {
    auto const socket = join_when_possible();
    ASSERT_NE(socket, nullptr) << "after " << i << " streams";
    std::string stream;
    for (int k = 0; k < 5; ++k) stream += valid[random() % valid.size()];
    for (int k = 0; k < 3; ++k) stream[random() % stream.size()] = static_cast<char>(random() & 0xffU);
    socket->send(stream);
  }
  honest_.expect_unaffected();
}

// A process of another user: the directory keeps it out, and behind an open door the credentials do.
TEST_F(ControlServerFaults, AnotherUserIsRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "becoming another user needs root";
  constexpr uid_t kNobody = 65534;
  enum Outcome { connected_and_served = 1, kept_out = 2, dropped = 3, trouble = 4 };
  auto const as_nobody = [&] {
    pid_t const child = ::fork();
    if (child == 0) {
      if (::setgid(kNobody) != 0 || ::setuid(kNobody) != 0) ::_exit(trouble);
      RawSocket socket(server_.path());
      if (socket.error() == EACCES) ::_exit(kept_out);
      if (socket.error() != 0) ::_exit(trouble);
      socket.send({wire::Type::join, 1, {}, wire::encode_join({Rank{2}, 3})});
      ::_exit(socket.receive() ? connected_and_served : dropped);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  };
  EXPECT_EQ(as_nobody(), kept_out);
  auto const directory = std::filesystem::path(server_.path()).parent_path();
  ASSERT_EQ(::chmod(directory.c_str(), 0755), 0);
  ASSERT_EQ(::chmod(server_.path().c_str(), 0777), 0);
  EXPECT_EQ(as_nobody(), dropped);
  honest_.expect_unaffected();
  RawSocket rank(server_.path());
  rank.join(2, 3);
}

TEST_F(ControlServerFaults, RunningOutOfFileDescriptorsIsSurvived) {
  pid_t const child = ::fork();  // the limit is the process's: in one of its own
  if (child == 0) {
    // Before _exit() the server must go, and its directory with it.
    std::optional<ControlServer> one;
    ControlServer& server =
        one.emplace(ControlServer::Options{.size = 1, .frame_deadline = milliseconds(100)});
    RawSocket first(server.path());
    int const lowest_free = ::dup(0);
    rlimit const tight{static_cast<rlim_t>(lowest_free) + 1, static_cast<rlim_t>(lowest_free) + 1};
    ::close(lowest_free);
    if (::setrlimit(RLIMIT_NOFILE, &tight) != 0) ::_exit(2);
    RawSocket second(server.path());  // takes the last descriptor, so that the server cannot accept
    bool joined = false;
    first.send({wire::Type::join, 1, {}, wire::encode_join({Rank{0}, 1})});
    static_cast<void>(server.process());
    second.close();
    Deadline const deadline = Deadline::after(seconds(5));
    while (!joined && !deadline.expired()) {
      pollfd entry{server.poll_fd(), POLLIN, 0};
      ::poll(&entry, 1, 10);
      for (auto const& event : server.process()) joined = joined || event.kind == Kind::joined;
    }
    rlimit const wide{1024, 1024};
    ::setrlimit(RLIMIT_NOFILE, &wide);
    one.reset();
    ::_exit(joined ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0) << "1: the rank was never let in";
}

}  // namespace
}  // namespace ddp::testing
