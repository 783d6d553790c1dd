// Ranks that find each other by MASTER_ADDR and MASTER_PORT: no launcher, no MPI.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <deque>
#include <fstream>
#include <thread>

#include "bootstrap/server/tcp.hpp"
#include "ddp/core/text.hpp"
#include "support/launcher/shell.hpp"

namespace ddp::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class ByAddress : public ::testing::Test {
 protected:
  /// "RANK=1 … program &" for each of `ranks`; its exit code is the first that is not 0.
  [[nodiscard]] ShellOutcome run(std::vector<std::string> const& ranks, std::string const& variables = {}) {
    std::string command = "pids=; ";
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      if (ranks[rank].empty()) continue;
      command +=
          ddp::text("RANK=", rank, " WORLD_SIZE=", ranks.size(), " MASTER_ADDR=127.0.0.1 MASTER_PORT=", port_,
                    " CUDA_VISIBLE_DEVICES= DDP_INIT_TIMEOUT=20 ", variables, " ", ranks[rank],
                    " & pids=\"$pids $!\"; ");
    }
    command += "code=0; for p in $pids; do wait $p || code=$?; done; exit $code";
    return run_shell(folder_.path(), command);
  }
  [[nodiscard]] int port() const noexcept { return port_; }
  [[nodiscard]] sockaddr_in here() const noexcept {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port_));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
  }
  [[nodiscard]] std::filesystem::path const& folder() const noexcept { return folder_.path(); }

  static int free_port() { return tcp::port_of(tcp::listen_here("localhost", 0)); }

 private:
  TemporaryFolder folder_;
  int const port_ = free_port();
};

std::string const kMeet = LAUNCHED_RANK " '*=meet'";

TEST_F(ByAddress, L5RanksMeetCountThemselvesAndLeave) {
  std::string const world = LAUNCHED_RANK " '*=world'";
  auto const outcome = run({world, world, world});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_THAT(outcome.out, HasSubstr(ddp::text("rank ", rank, " of 3 on cpu:0")));
  }
  EXPECT_EQ(outcome.err, "");
}

TEST_F(ByAddress, EveryAddressOfThisHostWorks) {
  for (char const* address : {"::1", "127.0.1.1", "localhost"}) {
    auto const outcome = run({kMeet, kMeet}, ddp::text("MASTER_ADDR=", address));
    EXPECT_EQ(outcome.exit_code, 0) << address << ": " << outcome.err;
  }
  // Rank 0 is told "localhost" by some starters, and the others its name.
  auto const named = run({"env MASTER_ADDR=localhost " + kMeet, "env MASTER_ADDR=$(hostname) " + kMeet},
                         "DDP_JOB_SECRET=abc");
  EXPECT_EQ(named.exit_code, 0) << named.err;
}

// The child holds no connection: the others know at once that its parent has died.
TEST_F(ByAddress, F1ARankWithAForkedHelperThatDiesIsNamedAtOnce) {
  for (bool const first : {false, true}) {
    std::string const kill = LAUNCHED_RANK " '*=fork-and-kill'";
    auto const outcome = first ? run({kill, kMeet}) : run({kMeet, kill});
    EXPECT_THAT(outcome.err, HasSubstr(ddp::text("rank ", first ? 0 : 1, " died")));
    EXPECT_THAT(outcome.err, ::testing::Not(HasSubstr("on 127.0.0.1"))) << "that is no host's name";
  }
}

TEST_F(ByAddress, ARankThatStartsLaterIsWaitedFor) {
  EXPECT_EQ(run({"sh -c \"sleep 3; exec " + kMeet + '"', kMeet}).exit_code, 0) << "rank 0";
  EXPECT_EQ(run({kMeet, "sh -c \"sleep 3; exec " + kMeet + '"'}).exit_code, 0) << "rank 1";
}

// Rank 1 comes after them.
TEST_F(ByAddress, AStrangerWith5000ConnectionsKeepsNobodyOut) {
  std::string const world = LAUNCHED_RANK " '*=world'";
  std::thread stranger([&] {
    std::deque<FileDescriptor> open;
    Deadline const give_up = Deadline::after(std::chrono::seconds(40));
    for (int made = 0; made < 5000 && !give_up.expired();) {
      FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      sockaddr_in const address = here();
      if (::connect(socket.get(), reinterpret_cast<sockaddr const*>(&address), sizeof address) != 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));  // rank 0 does not listen yet
        continue;
      }
      std::string_view const words = made++ % 2 == 0 ? "" : "GET / HTTP/1.1\r\n\r\n";
      ::send(socket.get(), words.data(), words.size(), MSG_NOSIGNAL);
      open.push_back(std::move(socket));
      if (open.size() > 200) open.pop_front();
    }
    EXPECT_FALSE(give_up.expired());
    std::ofstream(folder() / "go");
  });
  auto const outcome = run({world, "sh -c \"until [ -e go ]; do sleep 0.05; done; exec " + world + '"'},
                           "DDP_INIT_TIMEOUT=50");
  stranger.join();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("rank 1 of 2"));
}

TEST_F(ByAddress, ASecondJobAtTheAddressIsToldAndTheFirstIsUnharmed) {
  auto const first = [](int rank) {
    return ddp::text("sh -c \"", LAUNCHED_RANK, " '*=meet-when-told' > first-", rank,
                     " && echo first is well\"");
  };
  auto const second = [](int rank) {
    return ddp::text(
        "sh -c \"until grep -qs joined first-0 && grep -qs joined first-1; do sleep 0.05; done; RANK=", rank,
        " ", LAUNCHED_RANK, " '*=world'; touch over-", rank, "; [ ! -e over-", 1 - rank, " ] || touch go\"");
  };
  auto const outcome = run({first(0), first(1), second(0), second(1)}, "WORLD_SIZE=2");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "first is well\nfirst is well\n");
  EXPECT_THAT(lines(outcome.err),
              ::testing::UnorderedElementsAre(
                  HasSubstr(ddp::text("port ", port(),
                                      " for the other ranks (MASTER_PORT chooses another): "
                                      "Address already in use")),
                  AllOf(HasSubstr(ddp::text("joining the job at 127.0.0.1:", port())),
                        HasSubstr("has joined as rank 1 already: is another job using this address?"))));
}

TEST_F(ByAddress, F1AKilledRankIsNamedByTheOthersAtOnce) {
  for (bool const first : {false, true}) {  // rank 0 serves the others
    std::string const kill = LAUNCHED_RANK " '*=kill'";
    auto const outcome = first ? run({kill, kMeet, kMeet}) : run({kMeet, kill, kMeet});
    EXPECT_NE(outcome.exit_code, 0);
    std::string const words =
        ddp::text("peer_lost: control plane: all_gather(\"meet\"): rank ", first ? 0 : 1, " died");
    auto const one = outcome.err.find(words);
    EXPECT_NE(one, std::string::npos) << outcome.err;
    EXPECT_NE(outcome.err.find(words, one + 1), std::string::npos) << "by one rank only: " << outcome.err;
  }
}

TEST_F(ByAddress, AWorldThatIsAGlobalObjectIsLeftInOrder) {
  std::string const global = LAUNCHED_RANK " '*=world-in-a-global'";
  auto const outcome = run({global, global, global});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  EXPECT_THAT(outcome.out, HasSubstr("rank 0 has left"));
  EXPECT_THAT(outcome.out, Not(HasSubstr("died")));
}

TEST_F(ByAddress, MoreRanksStartThanRank0MayHaveOpenFiles) {
  std::string const world = LAUNCHED_RANK " '*=world'";
  std::vector<std::string> ranks(40, "sh -c \"ulimit -Sn 32; exec " + world + '"');
  EXPECT_EQ(run(ranks).exit_code, 0);
  ranks.assign(40, "");
  ranks[0] = "sh -c \"ulimit -n 32; exec " + world + '"';
  EXPECT_THAT(run(ranks, "DDP_INIT_TIMEOUT=1").err,
              HasSubstr("and may have 32; raise its limit (ulimit -n)"));
}

TEST_F(ByAddress, AProcessMakesOneWorldAfterAnother) {
  std::string const worlds = LAUNCHED_RANK " '*=worlds'";
  auto const outcome = run({worlds, worlds, worlds});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.err, "");
}

TEST_F(ByAddress, ARankWhoseWorldCameToNothingMakesAnother) {
  std::string const again = LAUNCHED_RANK " '*=try-again'";
  auto const outcome = run({again, "sh -c \"sleep 2.5; exec " + again + '"'}, "DDP_INIT_TIMEOUT=1");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("is missing: 1"), Not(HasSubstr("Address already in use"))));
}

TEST_F(ByAddress, ARankThatExitsWithoutLeavingHasDied) {
  auto const outcome = run({LAUNCHED_RANK " '*=exit-in-world'", LAUNCHED_RANK " '*=world-in-a-global'"});
  EXPECT_THAT(outcome.err, HasSubstr("rank 0 died"));
}

TEST_F(ByAddress, F9ARankThatNeverComesIsNamed) {
  auto const outcome = run({kMeet, kMeet, ""}, "DDP_INIT_TIMEOUT=1");
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_THAT(outcome.err, HasSubstr("is missing: 2"));
}

TEST_F(ByAddress, WhereNobodyListensTheAddressAndTheReasonAreNamed) {
  std::string const world = LAUNCHED_RANK " '*=world'";
  auto const outcome = run({"", world}, "DDP_INIT_TIMEOUT=1");
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr(ddp::text("connecting to rank 0 at 127.0.0.1:", port(),
                                                     " (MASTER_ADDR, MASTER_PORT) timed out after 1 s")),
                                 HasSubstr("Connection refused")));
}

// In a network of its own, where one end of a cable has an address and nobody has the other.
TEST_F(ByAddress, AnAddressThatDropsWhatItIsSentIsNamedAtTheDeadline) {
  std::string const inside =
      "unshare -rn sh -c \"ip link add v0 type veth peer name v1 && ip addr add 192.0.2.1/24 dev v0 && "
      "ip link set v0 up && ip link set v1 up && ip neigh add 192.0.2.2 lladdr 02:00:00:00:00:99 dev v0 && "
      "exec ";
  if (run_shell(folder(), inside + "true\"").exit_code != 0) {
    GTEST_SKIP() << "unshare -rn, or ip link inside, is not allowed here";
  }
  auto const begin = std::chrono::steady_clock::now();
  auto const outcome =
      run({"", inside + LAUNCHED_RANK " '*=world'\""}, "MASTER_ADDR=192.0.2.2 DDP_INIT_TIMEOUT=1");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_THAT(outcome.err,
              HasSubstr(ddp::text("connecting to rank 0 at 192.0.2.2:", port(),
                                  " (MASTER_ADDR, MASTER_PORT) timed out after 1 s: no answer: has a "
                                  "host this address, and does a firewall let the port through?")));
}

TEST_F(ByAddress, AStoppedRank0IsSaidToBeOne) {
  FileDescriptor const silent = tcp::listen_here("127.0.0.1", port());
  auto const outcome = run({"", LAUNCHED_RANK " '*=world'"}, "DDP_INIT_TIMEOUT=1");
  EXPECT_THAT(outcome.err, HasSubstr("what listens there does not answer: is its process stopped?"));
}

TEST_F(ByAddress, ANameThatMeansNothingIsNamed) {
  auto const outcome =
      run({"", LAUNCHED_RANK " '*=world'"}, "MASTER_ADDR=nowhere.invalid DDP_INIT_TIMEOUT=1");
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_THAT(outcome.err, HasSubstr("nowhere.invalid"));
}

TEST_F(ByAddress, AnotherServiceAtTheAddressIsSaidToBeOne) {
  FileDescriptor const service(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in const address = here();
  int const yes = 1;
  ASSERT_EQ(::setsockopt(service.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes), 0);
  ASSERT_EQ(::bind(service.get(), reinterpret_cast<sockaddr const*>(&address), sizeof address), 0);
  ASSERT_EQ(::listen(service.get(), 8), 0);
  std::thread speaker([&] {
    for (;;) {
      FileDescriptor const peer(::accept(service.get(), nullptr, nullptr));
      if (!peer) return;
      std::string const words = "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n";
      ::send(peer.get(), words.data(), words.size(), MSG_NOSIGNAL);
    }
  });
  std::string const world = LAUNCHED_RANK " '*=world'";
  auto const late = run({"", world}, "DDP_INIT_TIMEOUT=1");
  EXPECT_THAT(late.err, HasSubstr("what listens there is no control server of this version"));
  auto const taken = run({world, ""}, "DDP_INIT_TIMEOUT=1");
  EXPECT_NE(taken.exit_code, 0);
  EXPECT_THAT(taken.err, AllOf(HasSubstr(ddp::text("port ", port(), " for the other ranks")),
                               HasSubstr("Address already in use")));
  ::shutdown(service.get(), SHUT_RDWR);
  speaker.join();
}

TEST_F(ByAddress, WithoutTheJobsSecretARankDoesNotJoin) {
  std::string const world = LAUNCHED_RANK " '*=world'";
  EXPECT_EQ(run({world, world}, "DDP_JOB_SECRET=abc").exit_code, 0);
  auto const outcome =
      run({"DDP_JOB_SECRET=abcd " + world, "DDP_JOB_SECRET=abce " + world}, "DDP_INIT_TIMEOUT=1");
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("is missing: 1"), HasSubstr("a job with another secret"),
                                 Not(HasSubstr("abc"))));
}

TEST_F(ByAddress, RanksThatDisagreeAboutTheirPlaceAreRefused) {
  std::string const world = LAUNCHED_RANK " '*=world'";
  EXPECT_THAT(run({world, "env WORLD_SIZE=3 " + world}, "DDP_INIT_TIMEOUT=1").err,
              HasSubstr("the job has 2 ranks, but this process expects 3 (WORLD_SIZE)"));
  EXPECT_THAT(run({world, world, "env RANK=1 " + world}, "DDP_INIT_TIMEOUT=1").err,
              HasSubstr("has joined as rank 1 already: is another job using this address?"));
  EXPECT_THAT(run({world, "env DDP_GENERATION=1 " + world}, "DDP_INIT_TIMEOUT=1").err,
              HasSubstr("the job is in its generation 0, this process is of generation 1"));
}

TEST_F(ByAddress, ANonsensicalPlaceIsRefusedByName) {
  std::string const world = LAUNCHED_RANK " '*=world'";
  for (char const* port : {"", "0", "-1", "65536", "http"}) {
    EXPECT_THAT(run({world, ""}, ddp::text("MASTER_PORT=", port)).err,
                HasSubstr(ddp::text("MASTER_PORT=\"", port, "\": expected a whole number from 1 to 65535")));
  }
  EXPECT_THAT(run({world, ""}, "MASTER_ADDR=").err, HasSubstr("MASTER_ADDR=\"\": expected the address"));
}

// Each command sees another name of its host.
class ByAddressOnTwoHosts : public ByAddress {
 protected:
  void SetUp() override {
    if (run_shell("/", on("node-a", "true")).exit_code != 0) {
      GTEST_SKIP() << "unshare -ru is not allowed here";
    }
  }
  static std::string on(std::string const& host, std::string const& command) {
    return ddp::text("unshare -ru sh -c \"hostname ", host, " && exec ", command, '"');
  }
};

TEST_F(ByAddressOnTwoHosts, F1TheHostOfAKilledRankIsNamed) {
  auto const outcome = run({on("node-a", kMeet), on("node-b", LAUNCHED_RANK " '*=kill'")});
  EXPECT_THAT(outcome.err, ::testing::ContainsRegex("rank 1 died: its process, [0-9]+, on node-b has ended"));
  auto const first = run({on("node-a", LAUNCHED_RANK " '*=kill'"), on("node-b", kMeet)});
  EXPECT_THAT(first.err, ::testing::ContainsRegex("rank 0 died: its process, [0-9]+, on node-a has ended"));
}

TEST_F(ByAddressOnTwoHosts, CpuRanksOfSeveralHostsAreToldThatTheyNeedMpi) {
  std::string const world = LAUNCHED_RANK " '*=world'";
  auto const outcome = run({on("node-a", world), on("node-b", world)});
  EXPECT_NE(outcome.exit_code, 0);
  std::string const words = "CPU ranks of 2 hosts exchange data through MPI";
  auto const one = outcome.err.find(words);
  EXPECT_NE(one, std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find(words, one + 1), std::string::npos) << "by one rank only: " << outcome.err;
}

// What srun sets for two tasks of a host where it knows no PMI.
TEST_F(ByAddress, RanksOfAnSrunStepFindEachOtherWithoutPmix) {
  std::string const world = LAUNCHED_RANK " '*=world'";
  auto const task = [&](int rank, std::string const& more) {
    return ddp::text("env -u RANK -u WORLD_SIZE -u MASTER_ADDR -u MASTER_PORT SLURM_PROCID=", rank,
                     " SLURM_NTASKS=2 SLURM_STEP_NUM_TASKS=2 SLURM_LOCALID=", rank,
                     " SLURM_NODEID=0 SLURM_STEP_TASKS_PER_NODE=2 SLURM_STEP_ID=3 SLURM_JOB_ID=", port(),
                     " SLURM_STEP_NODELIST='localhost,node[2-3]' ", more, world);
  };
  auto const outcome = run({task(0, ""), task(1, "")});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("rank 1 of 2 on cpu:0"));
  EXPECT_THAT(run({"", task(1, "DDP_INIT_TIMEOUT=1 ")}).err,
              HasSubstr("(the step's first host, unless MASTER_ADDR and MASTER_PORT are set) timed out"));
}

TEST_F(ByAddress, NoticesGoFromRankToRank) {
  std::string const notices = LAUNCHED_RANK " '*=notices'";
  auto const outcome = run({notices, notices});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("0 hears 2 of 1 from 1"), HasSubstr("1 hears 1 of 0 from 0")));
}

}  // namespace
}  // namespace ddp::testing
