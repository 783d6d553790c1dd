// F19: floods, readers that do not read, other users, and a server without descriptors.
#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "ddp/core/text.hpp"

#include "support/ranks/control_faults.hpp"

namespace ddp::testing {
namespace {

using ::testing::HasSubstr;
using Kind = ControlServer::Event::Kind;

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
  EXPECT_LT(resident_bytes(), before + (16_MiB).value);
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
  EXPECT_LT(resident_bytes(), before + (16_MiB).value);
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
  EXPECT_LT(resident_bytes(), before + (16_MiB).value);
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
    EXPECT_NE(event.kind, Kind::disconnected) << event.failure.detail;
  }
  socket.send({wire::Type::put, 1, "never put 0", "after all"});
  auto const answer = socket.receive();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->type, wire::Type::failed) << "1,024 of its calls wait already";
  honest_.expect_unaffected();
}

TEST_F(ControlServerFaults, ARankThatDoesNotReadItsAnswersIsDropped) {
  constexpr std::size_t kValue = (16_MiB).value;
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
  EXPECT_THAT(event->failure.detail, HasSubstr("does not read its answers"));
  EXPECT_LT(resident_bytes(), before + (16_MiB).value) << "answers share the value";
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
      wire::encode({wire::Type::withdraw, 7, {}, {}}),
      wire::encode({wire::Type::error, 0, {}, wire::encode_failure({.code = ErrorCode::io, .detail = "x"})})};
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
  ASSERT_EQ(::chmod(folder_.path().c_str(), 0755), 0);
  ASSERT_EQ(::chmod(server_.path().c_str(), 0777), 0);
  EXPECT_EQ(as_nobody(), dropped);
  honest_.expect_unaffected();
  RawSocket rank(server_.path());
  rank.join(2, 3);
}

TEST_F(ControlServerFaults, RunningOutOfFileDescriptorsIsSurvived) {
  pid_t const child = ::fork();  // the limit is the process's: in one of its own
  if (child == 0) {
    ControlServer server({.size = 1, .frame_deadline = milliseconds(100)});
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
    ::_exit(joined ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0) << "1: the rank was never let in";
}

}  // namespace
}  // namespace ddp::testing
