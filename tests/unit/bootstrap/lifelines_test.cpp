#include "bootstrap/mpi/lifelines.hpp"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <sys/socket.h>

#include <atomic>
#include <cerrno>
#include <optional>
#include <thread>

#include "ddp/core/text.hpp"
#include "support/ranks/run_ranks.hpp"

namespace ddp::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Rank 0, which looks every millisecond, and other ranks of this process.
class LifelinesTest : public ::testing::Test {
 protected:
  static constexpr int kSize = 100;
  LifelinesTest() {
    std::string const& invitation = lifelines_->invitation();
    secret_ = invitation.substr(0, invitation.find(','));
    port_ = invitation.substr(secret_.size() + 1);
    port_.resize(port_.find(','));
    start();
  }
  ~LifelinesTest() override { stop(); }

  /// Whatever the network of this machine is.
  [[nodiscard]] std::string invitation() const { return text(secret_, ',', port_, ",127.0.0.1"); }
  [[nodiscard]] std::optional<Lifeline> connect(int rank) const {
    return Lifeline(invitation(), Rank{rank}, Deadline::after(30s));
  }
  /// What has been found in the time in which `count` should be.
  std::vector<Failure> ended(std::size_t count) {
    Deadline const give_up = Deadline::after(count == 0 ? 100ms : 30s);
    while ((count == 0 || found_ < count) && !give_up.expired()) std::this_thread::sleep_for(1ms);
    stop();
    auto const found = gone_;
    start();
    return found;
  }
  void end_rank_0() {
    stop();
    lifelines_.reset();
  }
  /// A connection that says `bytes`.
  [[nodiscard]] FileDescriptor stranger(std::string const& bytes) const {
    FileDescriptor socket(::socket(AF_INET, SOCK_STREAM, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(std::stoi(port_)));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(socket.get(), reinterpret_cast<sockaddr const*>(&address), sizeof address), 0);
    EXPECT_EQ(::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
    return socket;
  }
  /// What a stranger hears: "" if the connection closes.
  static std::string heard(FileDescriptor const& socket) {
    timeval const timeout{30, 0};
    ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
    char byte = '?';
    ssize_t const count = ::recv(socket.get(), &byte, 1, 0);
    if (count == 1) return {byte};
    return count == 0 || errno == ECONNRESET ? "" : "nothing";
  }
  [[nodiscard]] std::string const& secret() const { return secret_; }

 private:
  static std::vector<std::string> names() {
    std::vector<std::string> hosts;
    for (int rank = 0; rank < kSize; ++rank) hosts.push_back(text("node ", rank));
    return hosts;
  }
  void start() {
    stop_ = false;
    looks_ = std::thread([this] {
      while (!stop_) {
        for (Failure& lost : lifelines_->ended()) gone_.push_back(std::move(lost));
        found_ = gone_.size();
        std::this_thread::sleep_for(1ms);
      }
    });
  }
  void stop() {
    stop_ = true;
    if (looks_.joinable()) looks_.join();
  }

  std::unique_ptr<Lifelines> lifelines_ = std::make_unique<Lifelines>(names());
  std::string secret_;
  std::string port_;
  std::atomic<bool> stop_{false};
  std::atomic<std::size_t> found_{0};
  std::vector<Failure> gone_;  // of the thread, while it runs
  std::thread looks_;
};

TEST_F(LifelinesTest, F1RankZeroFindsTheRankThatEndsAndItsHost) {
  auto second = connect(2);
  auto first = connect(1);
  ASSERT_TRUE(second->holds());
  ASSERT_TRUE(first->holds());
  EXPECT_THAT(ended(0), IsEmpty());
  second.reset();
  auto const gone = ended(1);
  ASSERT_THAT(gone, SizeIs(1));
  EXPECT_EQ(gone[0].ranks.front(), Rank{2});
  EXPECT_EQ(gone[0].manner, Failure::Manner::exited);
  EXPECT_EQ(gone[0].host, "node 2");
  EXPECT_EQ(gone[0].detail, "its process on node 2 has ended");
  EXPECT_FALSE(first->has_ended());
}

TEST_F(LifelinesTest, F1OtherRanksFindThatRankZeroHasEnded) {
  auto line = connect(1);
  ASSERT_TRUE(line->holds());
  EXPECT_FALSE(line->has_ended());
  end_rank_0();
  Deadline const give_up = Deadline::after(30s);
  while (!line->has_ended() && !give_up.expired()) std::this_thread::sleep_for(1ms);
  EXPECT_TRUE(line->has_ended());
}

TEST_F(LifelinesTest, WhereNobodyAnswersARankGoesOnWithout) {
  end_rank_0();
  auto line = connect(1);
  EXPECT_FALSE(line->holds());
  EXPECT_FALSE(line->has_ended());
  EXPECT_FALSE(Lifeline(text(secret(), ",1,"), Rank{1}, Deadline::after(30s)).holds());
}

TEST_F(LifelinesTest, WhoDoesNotKnowTheSecretIsRefused) {
  EXPECT_EQ(heard(stranger("00112233 1\n")), "");
  EXPECT_EQ(heard(stranger(std::string(1000, 'x'))), "");
  EXPECT_EQ(heard(stranger("\n")), "");
  EXPECT_THAT(ended(0), IsEmpty());
}

TEST_F(LifelinesTest, AConnectionThatARankDidNotChooseMayClose) {
  EXPECT_EQ(heard(stranger(secret() + " 1\n")), "w");
  EXPECT_THAT(ended(0), IsEmpty());
}

TEST_F(LifelinesTest, WhoKnowsTheSecretIsRefusedAsARankThatDoesNotConnect) {
  for (char const* rank : {" -5\n", " 0\n", " 100\n", " 99999999999\n", " one\n", " 1 2\n", " \n", "\n"}) {
    EXPECT_EQ(heard(stranger(secret() + rank)), "") << rank;
  }
  EXPECT_THAT(ended(0), IsEmpty());
}

TEST_F(LifelinesTest, OfSeveralConnectionsThatSayTheyAreOneRankTheFirstStays) {
  FileDescriptor early = stranger(secret() + " 1\n");
  ASSERT_EQ(heard(early), "w");
  auto line = connect(1);
  ASSERT_TRUE(line->holds());
  EXPECT_THAT(ended(0), IsEmpty());  // and it is known
  ASSERT_EQ(::send(early.get(), "h", 1, MSG_NOSIGNAL), 1);
  EXPECT_THAT(ended(0), IsEmpty());  // it is heard
  early.reset();
  EXPECT_EQ(heard(stranger(secret() + " 1\n")), "") << "it comes later";
  EXPECT_THAT(ended(0), IsEmpty()) << "rank 1 lives";
  EXPECT_FALSE(line->has_ended());
  line.reset();
  EXPECT_THAT(ended(1), SizeIs(1));
  EXPECT_EQ(heard(stranger(secret() + " 1\n")), "") << "nobody comes back";
}

TEST_F(LifelinesTest, ManyRanksAtOnceGetInWithSeveralAddressesEach) {
  std::string const many = invitation() + ",127.0.0.1,127.0.0.2,127.0.0.3";
  constexpr int kRanks = kSize - 1;
  std::atomic<int> holding{0};
  Deadline const give_up = Deadline::after(30s);
  run_ranks(kRanks, [&](int rank) {
    Lifeline const line(many, Rank{rank + 1}, Deadline::after(30s));
    if (line.holds()) ++holding;
    while (holding < kRanks && !give_up.expired()) std::this_thread::sleep_for(1ms);
  });
  EXPECT_EQ(holding, kRanks);
  EXPECT_THAT(ended(kRanks), SizeIs(kRanks));
}

TEST_F(LifelinesTest, StrangersDoNotKeepRanksOut) {
  std::vector<FileDescriptor> strangers;
  auto line = connect(1);
  for (int i = 0; i < 400; ++i) strangers.push_back(stranger("I "));
  EXPECT_EQ(heard(strangers.front()), "") << "the oldest go first";
  EXPECT_TRUE(connect(2)->holds());
  EXPECT_THAT(ended(1), SizeIs(1)) << "rank 2, which has gone again; rank 1 stays";
  EXPECT_FALSE(line->has_ended());
}

}  // namespace
}  // namespace ddp::testing
