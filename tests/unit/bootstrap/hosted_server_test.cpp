// A control server that listens on a network: who gets in, and what strangers can do.
#include "bootstrap/server/hosted_server.hpp"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <future>
#include <thread>

#include "bootstrap/server/server_client.hpp"
#include "bootstrap/server/tcp.hpp"
#include "bootstrap/wire.hpp"
#include "support/errors.hpp"
#include "support/ranks/control_jobs.hpp"

namespace ddp::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

constexpr char const* kSecret = "0123456789abcdef0123456789abcdef";

class HostedServerTest : public ::testing::Test {
 protected:
  HostedServerTest() {
    FileDescriptor listening = tcp::listen_here("localhost", 0);
    port_ = tcp::port_of(listening);
    server_ = HostedServer::start({.size = 2, .frame_deadline = 1s, .secret = kSecret}, std::move(listening));
  }

  [[nodiscard]] FileDescriptor connect(std::string const& secret, Deadline deadline) const {
    return tcp::connect({{"127.0.0.1"}, port_, secret}, "the server", deadline);
  }
  [[nodiscard]] std::unique_ptr<ServerClient> join(int rank) const {
    return std::make_unique<ServerClient>(launched("", rank, 2), connect(kSecret, Deadline::after(30s)),
                                          ServerClient::Server{"rank 0", "here", Rank{0}},
                                          Deadline::after(30s));
  }
  /// A connection that says `bytes`.
  [[nodiscard]] FileDescriptor stranger(std::string const& bytes) const {
    FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port_));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(socket.get(), reinterpret_cast<sockaddr const*>(&address), sizeof address), 0);
    static_cast<void>(::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL));
    return socket;
  }
  /// How many bytes it hears before the connection closes; -1 if it does not.
  [[nodiscard]] static long heard(FileDescriptor const& socket) {
    timeval const timeout{30, 0};
    ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
    for (long total = 0;;) {
      char buffer[256];
      ssize_t const count = ::recv(socket.get(), buffer, sizeof buffer, 0);
      if (count == 0 || (count < 0 && errno == ECONNRESET)) return total;
      if (count < 0) return -1;
      total += count;
    }
  }

 private:
  int port_ = 0;
  std::shared_ptr<HostedServer> server_;
};

std::string hello(std::string const& secret) { return wire::encode({wire::Type::hello, 1, {}, secret}); }

TEST_F(HostedServerTest, RaisesItsLimitOfOpenFilesForItsRanks) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit low = before;
  low.rlim_cur = 300;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
  static_cast<void>(HostedServer::start({.size = 40}));
  rlimit now{};
  ::getrlimit(RLIMIT_NOFILE, &now);
  EXPECT_EQ(now.rlim_cur, 300U) << "enough for 40";
  static_cast<void>(HostedServer::start({.size = 100}));
  ::getrlimit(RLIMIT_NOFILE, &now);
  EXPECT_EQ(now.rlim_cur, 356U) << "100, and 256 of the program";
  EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
}

TEST_F(HostedServerTest, WhoDoesNotKnowTheSecretIsNotAnswered) {
  std::string const secret = kSecret;
  std::string wrong = secret;
  wrong.back() = '0';
  std::string const join = wire::encode({wire::Type::join, 1, {}, wire::encode_join({Rank{1}, 2})});
  for (std::string const& bytes :
       {hello(wrong), hello(secret.substr(0, 16)), hello(""), hello(secret + "0"), join, join + hello(secret),
        std::string(1000, 'x'), std::string("GET / HTTP/1.1\r\n\r\n        "), std::string("DDPC")}) {
    EXPECT_EQ(heard(stranger(bytes)), 0) << bytes;
  }
  auto const rank0 = this->join(0);
  auto const rank1 = this->join(1);
  EXPECT_THAT(rank0->lost(), ::testing::IsEmpty());
}

TEST_F(HostedServerTest, AWrongSecretIsSaidToBeOneAtTheDeadline) {
  auto const error = error_of([&] { static_cast<void>(connect("other", Deadline::after(200ms))); });
  EXPECT_EQ(error.code(), ErrorCode::timeout);
  std::string const message = error.what();
  EXPECT_THAT(message, HasSubstr("connecting to the server timed out after 0.2 s"));
  EXPECT_THAT(message, HasSubstr("another service, or a job with another secret"));
}

TEST_F(HostedServerTest, StrangersTakeNoRanksPlace) {
  std::vector<FileDescriptor> strangers;
  for (int i = 0; i < 500; ++i) strangers.push_back(stranger(i % 2 == 0 ? "" : "DDPC"));
  auto const rank0 = join(0);
  for (int i = 0; i < 300; ++i) strangers.push_back(stranger(""));
  auto const rank1 = join(1);
  for (int i = 0; i < 100; ++i) strangers.push_back(stranger(hello("x")));
  std::vector<Rank> const both{Rank{0}, Rank{1}};
  auto other = std::async(std::launch::async,
                          [&] { return rank1->all_gather("all", "b", both, Deadline::after(30s)); });
  EXPECT_THAT(rank0->all_gather("all", "a", both, Deadline::after(30s)), ::testing::ElementsAre("a", "b"));
  EXPECT_THAT(other.get(), ::testing::ElementsAre("a", "b"));
}

TEST_F(HostedServerTest, F1ARankWhoseConnectionClosesIsLostWithItsHost) {
  auto const rank0 = join(0);
  auto rank1 = join(1);
  rank1.reset();
  auto const error = error_of([&] {
    static_cast<void>(rank0->all_gather("all", "", std::vector{Rank{0}, Rank{1}}, Deadline::after(30s)));
  });
  EXPECT_EQ(error.code(), ErrorCode::peer_lost);
  auto const lost = rank0->lost();
  ASSERT_EQ(lost.size(), 1U);
  EXPECT_EQ(lost[0].ranks.front(), Rank{1});
  EXPECT_EQ(lost[0].manner, Failure::Manner::exited);
  EXPECT_FALSE(lost[0].host.empty());
}

TEST_F(HostedServerTest, TheTimeInWhichRank0sProcessIsStoppedIsNoFramesTime) {
  std::string const bytes =
      hello(kSecret) + wire::encode({wire::Type::join, 2, {}, wire::encode_join({Rank{1}, 2})});
  FileDescriptor const late = stranger(bytes.substr(0, bytes.size() - 4));
  pid_t const helper = ::fork();
  if (helper == 0) {
    ::kill(::getppid(), SIGSTOP);
    ::sleep(2);  // twice the deadline
    ::kill(::getppid(), SIGCONT);
    ::_exit(0);
  }
  ASSERT_EQ(::waitpid(helper, nullptr, 0), helper);
  static_cast<void>(::send(late.get(), bytes.data() + bytes.size() - 4, 4, MSG_NOSIGNAL));
  EXPECT_THAT(error_of([&] { static_cast<void>(join(1)); }).what(),
              HasSubstr("has joined as rank 1 already"));
}

TEST_F(HostedServerTest, ARankThatHasLeftIsNotLost) {
  auto const rank0 = join(0);
  auto rank1 = join(1);
  rank1->leave();
  rank1.reset();
  Deadline const give_up = Deadline::after(30s);
  while (rank0->lost().empty() && !give_up.expired()) std::this_thread::sleep_for(1ms);
  auto const lost = rank0->lost();
  ASSERT_EQ(lost.size(), 1U);
  EXPECT_EQ(lost[0].manner, Failure::Manner::left);
}

TEST_F(HostedServerTest, ARankThatHasLeftComesAgainWhenRank0HasLeft) {
  auto const rank0 = join(0);
  auto const rank1 = join(1);
  rank1->leave();
  auto const early = error_of([&] { static_cast<void>(join(1)); });
  EXPECT_EQ(early.code(), ErrorCode::io);
  EXPECT_THAT(early.what(), HasSubstr("rank 0 is still in that World"));
  rank0->leave();
  EXPECT_THAT(error_of([&] { static_cast<void>(connect(kSecret, Deadline::after(200ms))); }).what(),
              HasSubstr("Connection refused"));
}

}  // namespace
}  // namespace ddp::testing
