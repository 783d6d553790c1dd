// What the contract of control planes does not show: joining, events, errors, the end of the server.
#include "bootstrap/server/control_server.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <list>
#include <nlohmann/json.hpp>

#include "bootstrap/server/tcp.hpp"
#include "ddp/core/text.hpp"
#include "support/errors.hpp"
#include "support/launcher/shell.hpp"
#include "support/ranks/control_jobs.hpp"
#include "support/ranks/lost_rank.hpp"
#include "support/ranks/raw_socket.hpp"

namespace ddp::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Kind = ControlServer::Event::Kind;
namespace fs = std::filesystem;

Deadline patient() { return Deadline::after(seconds(60)); }

std::shared_ptr<ControlPlane> connect(std::string const& path, int rank, int size) {
  return connect_control_plane(launched(path, rank, size), Deadline::after(seconds(10)));
}

// Code and message, to be taken apart.
template <class Call>
std::pair<ErrorCode, std::string> code_and_message_of(Call call) {
  auto const error = error_of(call);
  return {error.code(), error.what()};
}

// B7
TEST(ControlServer, TimeInWhichItIsStoppedIsNoFramesTime) {
  ControlServer server({.size = 1, .frame_deadline = milliseconds(800)});
  RawSocket socket(server.path());
  static_cast<void>(server.process());  // from now on its join is due
  std::this_thread::sleep_for(milliseconds(1000));
  static_cast<void>(server.process());
  EXPECT_FALSE(socket.closes_within(milliseconds(20)));
  Deadline const give_up = Deadline::after(seconds(10));
  pollfd ready{server.poll_fd(), POLLIN, 0};
  while (!socket.closes_within(milliseconds(1)) && !give_up.expired()) {
    ::poll(&ready, 1, 1000);
    static_cast<void>(server.process());
  }
  EXPECT_FALSE(give_up.expired()) << "nothing is ever overdue";
}

// From another host, or from this one: no rank's connection, and no join is due.
TEST(ControlServer, C4AGuardTellsHowItsRankEndedAndWaitsUntilItMayGo) {
  ServerThread server({.size = 2, .frame_deadline = milliseconds(100), .generation = 3});
  auto const end_of = [](int generation) {
    return wire::Frame{wire::Type::ended, 1, "its words",
                       wire::encode_join({Rank{1}, 2, generation, 42, "node-b"})};
  };
  RawSocket guard(server.path());
  EXPECT_GT(guard.send(end_of(3)), 0);
  auto const event = server.find(Kind::ended, Rank{1});
  ASSERT_TRUE(event);
  EXPECT_EQ(event->words, "its words");
  EXPECT_EQ(event->process, 42);
  EXPECT_EQ(event->host, "node-b");
  EXPECT_FALSE(guard.closes_within(milliseconds(300)));
  server.post([](ControlServer& it) { it.let_guards_go(); });
  EXPECT_EQ(guard.receive().value_or(wire::Frame{}).type, wire::Type::done);
  RawSocket again(server.path());  // it is told once more, and its rank alone is let go
  EXPECT_GT(again.send(end_of(3)), 0);
  EXPECT_FALSE(again.closes_within(milliseconds(100)));
  server.post([](ControlServer& it) { it.let_guards_go(Rank{0}); });
  server.post([](ControlServer& it) { it.let_guards_go(Rank{1}); });
  EXPECT_EQ(again.receive().value_or(wire::Frame{}).type, wire::Type::done);
  RawSocket old(server.path());
  EXPECT_GT(old.send(end_of(2)), 0);
  EXPECT_TRUE(old.closes_within(milliseconds(5000)));
}

// Guards of other hosts come late. Rank 0's process needs the port for its next World.
TEST(ControlServer, ListensForOtherHostsToItsEndUnlessItIsInRank0sProcess) {
  for (bool const of_rank_0 : {false, true}) {
    FileDescriptor network = tcp::listen(0);
    int const port = tcp::port_of(network);
    ServerThread const server({.size = 2, .secret = "s", .of_rank_0 = of_rank_0}, std::move(network));
    connect(server.path(), 0, 2)->leave();
    auto const come = [&] {
      static_cast<void>(tcp::connect({{"127.0.0.1"}, port, "s"}, "it",
                                     Deadline::after(milliseconds(of_rank_0 ? 200 : 5000))));
    };
    if (of_rank_0) {
      EXPECT_EQ(error_of(come).code(), ErrorCode::timeout);
    } else {
      EXPECT_NO_THROW(come());
    }
  }
}

// L14
TEST(ControlServer, HasASocketAtItsPathOrOneWithoutAFile) {
  TemporaryFolder const scratch;
  ServerThread const there({.size = 1, .path = scratch.path() / "control"});
  EXPECT_EQ(there.path(), scratch.path() / "control");
  EXPECT_TRUE(fs::is_socket(there.path()));
  ServerThread const nowhere({.size = 1});
  EXPECT_THAT(nowhere.path(), ::testing::StartsWith("@ddp-"));
  for (ServerThread const* server : {&there, &nowhere}) connect(server->path(), 0, 1)->leave();
}

TEST(ControlServer, RefusesAPathThatIsTooLongForASocket) {
  TemporaryFolder const scratch;
  std::string const path = scratch.path() / std::string(100, 'd');
  auto const [code, message] =
      code_and_message_of([&] { ControlServer const server({.size = 1, .path = path}); });
  EXPECT_EQ(code, ErrorCode::invalid_argument);
  EXPECT_THAT(message, AllOf(HasSubstr("at most 107"), HasSubstr("TMPDIR")));
  EXPECT_TRUE(fs::is_empty(scratch.path()));
}

TEST(ControlServer, NamesADirectoryThatIsNotThere) {
  auto const [code, message] = code_and_message_of(
      [&] { ControlServer const server({.size = 1, .path = "/does/not/exist/control"}); });
  EXPECT_EQ(code, ErrorCode::io);
  EXPECT_THAT(message, HasSubstr("/does/not/exist"));
}

TEST(ControlServer, TellsWhoJoinedLeftAndDisconnected) {
  ServerThread server({.size = 2});
  auto first = connect(server.path(), 0, 2);
  auto second = connect(server.path(), 1, 2);
  auto const joined = server.find(Kind::joined, Rank{0});
  ASSERT_TRUE(joined);
  EXPECT_EQ(joined->pid, ::getpid());
  first->leave();
  first.reset();
  second.reset();
  EXPECT_TRUE(server.saw(Kind::left, Rank{0}));
  auto const disconnected = server.find(Kind::disconnected, Rank{1});
  ASSERT_TRUE(disconnected);
  EXPECT_THAT(disconnected->failure.detail, HasSubstr("closed"));
  for (auto const& event : server.events()) {
    EXPECT_FALSE(event.kind == Kind::disconnected && event.rank == 0) << "it had left in order";
    EXPECT_FALSE(event.kind == Kind::left && event.rank == 1);
  }
}

// F4: ddp-launch may have been stopped, alone, while the ranks came to their end.
TEST(ControlServer, LeavingsThatAreReadWhenTheRanksAreGoneCount) {
  constexpr int kRanks = 3;
  ControlServer server({.size = kRanks});
  auto const comes = [&](Kind kind) {
    int found = 0;
    for (int i = 0; i < 5000 && found < kRanks; ++i) {
      for (auto const& event : server.process()) found += event.kind == kind ? 1 : 0;
      std::this_thread::sleep_for(milliseconds(1));
    }
    return found;
  };
  std::list<RawSocket> ranks;
  for (int r = 0; r < kRanks; ++r) {
    ranks.emplace_back(server.path()).send({wire::Type::join, 1, {}, wire::encode_join({Rank{r}, kRanks})});
  }
  ASSERT_EQ(comes(Kind::joined), kRanks);
  for (RawSocket& rank : ranks) rank.send({wire::Type::leave, 2, {}, {}});
  ranks.clear();
  EXPECT_EQ(comes(Kind::left), kRanks);
}

// F4: the server knows of the leaving before the process can end, and never learns of one that did not
// happen.
TEST(ControlServer, ALeavingIsKnownWhenLeaveReturns) {
  ControlServer server({.size = 1});
  std::atomic<bool> left{false};
  std::thread rank([&] {
    auto const control = connect(server.path(), 0, 1);
    control->leave();
    left = true;
  });
  bool known = false;
  for (int i = 0; i < 5000 && !known; ++i) {
    bool const returned = left.load();
    for (auto const& event : server.process()) known = known || event.kind == Kind::left;
    EXPECT_FALSE(returned && !known) << "leave() returned before the server had read it";
    std::this_thread::sleep_for(milliseconds(1));
  }
  EXPECT_TRUE(known);
  rank.join();
}

TEST(ControlServer, RefusesADuplicateAndOthersThatCannotBe) {
  ServerThread server({.size = 2});
  auto const first = connect(server.path(), 0, 2);
  auto const duplicate = code_and_message_of([&] { static_cast<void>(connect(server.path(), 0, 2)); });
  EXPECT_EQ(duplicate.first, ErrorCode::invalid_state);
  EXPECT_THAT(duplicate.second,
              AllOf(HasSubstr("rank 0 of 2"), HasSubstr("this process has joined as rank 0 already"),
                    HasSubstr("one World")));
  EXPECT_THAT(code_and_message_of([&] { static_cast<void>(connect(server.path(), 1, 3)); }).second,
              AllOf(HasSubstr("the job has 2 ranks"), HasSubstr("expects 3")));
  RawSocket stray(server.path());
  stray.send({wire::Type::join, 1, {}, wire::encode_join({Rank{2}, 2})});
  auto const answer = stray.receive();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->type, wire::Type::failed);
  EXPECT_THAT(answer->value, HasSubstr("ranks are 0 to 1"));
  EXPECT_TRUE(stray.closes_within(seconds(5)));
  first->put("first", "is unharmed");
  EXPECT_EQ(connect(server.path(), 1, 2)->get("first", patient()), "is unharmed");
}

TEST(ControlServer, ALostRankCannotComeBack) {
  ServerThread server({.size = 2});
  auto const first = connect(server.path(), 0, 2);
  server.declare_lost(died(1, "exit code 1"));
  auto const [code, message] = code_and_message_of([&] {
    while (first->lost().empty()) std::this_thread::yield();
    static_cast<void>(connect(server.path(), 1, 2));
  });
  EXPECT_EQ(code, ErrorCode::invalid_state);
  EXPECT_THAT(message, HasSubstr("rank 1 died: exit code 1"));
}

// Found by tests/fuzz/control_server_fuzz.cpp.
TEST(ControlServer, ARankThatTheJobDoesNotHaveIsNotLost) {
  ServerThread server({.size = 2});
  RawSocket rank(server.path());
  rank.join(0, 2);
  server.declare_lost(died(2, "exit code 1"));
  server.declare_lost(died(1, "exit code 1"));
  auto const news = rank.receive();
  ASSERT_TRUE(news);
  EXPECT_EQ(wire::decode_lost(news->value).ranks.front(), 1) << "the first news is of rank 1";
}

TEST(ControlServer, ALateJoinerLearnsWhoIsLost) {
  ServerThread server({.size = 3});
  auto const first = connect(server.path(), 0, 3);
  server.declare_lost(died(2, "exit code 1"));
  while (first->lost().empty()) std::this_thread::yield();
  auto const late = connect(server.path(), 1, 3);
  EXPECT_EQ(code_and_message_of([&] { late->barrier("all", patient()); }).first, ErrorCode::peer_lost);
  ASSERT_EQ(late->lost().size(), 1U);
  EXPECT_EQ(late->lost()[0].ranks.front(), 2);
}

// F5, seen from the rank: no wait outlives the launcher.
TEST(ControlServer, ItsEndFailsEveryWaitAtOnce) {
  ServerThread server({.size = 3});
  std::vector<std::shared_ptr<ControlPlane>> planes;
  for (int r = 0; r < 3; ++r) planes.push_back(connect(server.path(), r, 3));
  auto const start = std::chrono::steady_clock::now();
  run_ranks(3, [&](int r) {
    if (r == 2) {
      std::this_thread::sleep_for(milliseconds(50));
      server.stop();
      return;
    }
    auto& plane = *planes[static_cast<std::size_t>(r)];
    try {
      if (r == 0) static_cast<void>(plane.get("never", patient()));
      plane.barrier("all", patient());
      ADD_FAILURE() << "expected an error";
    } catch (CommError const& error) {
      EXPECT_EQ(error.code(), ErrorCode::peer_lost);
      EXPECT_THAT(error.what(), HasSubstr("ddp-launch is gone"));
    }
  });
  EXPECT_LT(std::chrono::steady_clock::now() - start, seconds(5));
  EXPECT_EQ(code_and_message_of([&] { planes[0]->put("later", ""); }).first, ErrorCode::peer_lost);
  planes[0]->leave();
  planes[0]->report_error({.code = ErrorCode::io, .detail = "nobody hears this"});
}

TEST(ControlServer, AServerThatDoesNotAnswerIsATimeoutNotAHang) {
  auto server = std::make_unique<ControlServer>(ControlServer::Options{.size = 1});
  auto const [code, message] = code_and_message_of([&] {
    static_cast<void>(
        connect_control_plane(launched(server->path(), 0, 1), Deadline::after(milliseconds(100))));
  });
  EXPECT_EQ(code, ErrorCode::timeout);
  EXPECT_THAT(message, AllOf(HasSubstr("0.1 s"), HasSubstr("does not answer")));
}

TEST(ControlServer, AStoppedServerFailsGetsAndPutsOfBigValuesInTime) {
  ControlServer server({.size = 1});
  std::shared_ptr<ControlPlane> control;
  std::thread joining([&] { control = connect(server.path(), 0, 1); });
  bool joined = false;
  while (!joined) {
    for (auto const& event : server.process()) joined = joined || event.kind == Kind::joined;
  }
  joining.join();
  // From now on nobody calls process().
  auto const [code, message] =
      code_and_message_of([&] { static_cast<void>(control->get("key", Deadline::after(milliseconds(50)))); });
  EXPECT_EQ(code, ErrorCode::timeout);
  EXPECT_THAT(message, AllOf(HasSubstr("get(\"key\")"), HasSubstr("0.05 s"), HasSubstr("does not answer")));
  std::string const big((8_MiB).value, 'x');
  auto const gather = code_and_message_of([&] {
    static_cast<void>(
        control->all_gather("big", big, control->everyone(), Deadline::after(milliseconds(50))));
  });
  EXPECT_EQ(gather.first, ErrorCode::timeout);
  EXPECT_EQ(code_and_message_of([&] { control->put("after", ""); }).first, ErrorCode::timeout)
      << "half a frame is out";
}

TEST(ControlServer, NobodyAtThePathIsAnIoErrorThatNamesIt) {
  auto const [code, message] =
      code_and_message_of([&] { static_cast<void>(connect("/tmp/no-such-socket", 0, 1)); });
  EXPECT_EQ(code, ErrorCode::io);
  EXPECT_THAT(message, AllOf(HasSubstr("/tmp/no-such-socket"), HasSubstr("DDP_CONTROL")));
  EXPECT_EQ(
      code_and_message_of([&] { static_cast<void>(connect("/tmp/" + std::string(200, 'x'), 0, 1)); }).first,
      ErrorCode::invalid_argument);
}

// L8
TEST(ControlServer, AReportedErrorReachesTheServerAndTheErrorFile) {
  TemporaryFolder const scratch;
  ServerThread server({.size = 2});
  RankInfo info = launched(server.path(), 1, 2);
  info.error_file = scratch.path().string() + "/error.json";
  auto const control = connect_control_plane(info, patient());
  control->report_error({.code = ErrorCode::out_of_memory, .detail = "first"});
  control->report_error({.code = ErrorCode::io, .detail = "disk \"gone\" \xff"});
  ASSERT_TRUE(server.saw(Kind::error, Rank{1}));
  for (int i = 0; i < 1000 && server.events().size() < 3; ++i) std::this_thread::sleep_for(milliseconds(5));
  auto const events = server.events();
  ASSERT_EQ(events.size(), 3U);
  EXPECT_EQ(events[1].failure.code, ErrorCode::out_of_memory);
  EXPECT_EQ(events[2].failure.code, ErrorCode::io);
  EXPECT_EQ(events[2].failure.detail, "disk \"gone\" \xff");

  std::ifstream file(info.error_file);
  auto const error = nlohmann::json::parse(file);
  EXPECT_EQ(error.at("rank"), 1);
  EXPECT_EQ(error.at("code"), "io");
  EXPECT_EQ(error.at("message"), "disk \"gone\" \xef\xbf\xbd");
  EXPECT_EQ(error.at("pid"), ::getpid());
  EXPECT_THAT(error.at("time").get<std::string>(),
              ::testing::MatchesRegex("20[0-9][0-9]-[0-9][0-9]-[0-9][0-9]T[0-9:]+[.][0-9][0-9][0-9]Z"));
  EXPECT_EQ(std::distance(fs::directory_iterator(scratch.path().string()), {}), 1)
      << "no temporary file stays";
}

// A killed process: its connection closes, and what its owner declares is what the others read.
TEST(ControlServer, AKilledProcessIsSeenAndNamed) {
  ServerThread server({.size = 2});
  auto const survivor = connect(server.path(), 0, 2);
  pid_t const child = ::fork();
  if (child == 0) {
    RawSocket socket(server.path());
    socket.join(1, 2);
    ::pause();
    ::_exit(0);
  }
  auto const joined = server.find(Kind::joined, Rank{1});
  ASSERT_TRUE(joined);
  EXPECT_EQ(joined->pid, child);
  ::kill(child, SIGKILL);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(server.saw(Kind::disconnected, Rank{1}));
  server.declare_lost(killed(1, 9));
  EXPECT_THAT(code_and_message_of([&] { survivor->barrier("all", patient()); }).second,
              HasSubstr("killed by signal 9"));
}

}  // namespace
}  // namespace ddp::testing
