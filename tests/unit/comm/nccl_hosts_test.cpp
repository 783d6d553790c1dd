// GPU ranks of several hosts, over an NCCL and a CUDA that are not there: each "host" is a name.
#include <gmock/gmock.h>

#include <array>
#include <barrier>

#include "support/fakes/nccl_watchdog_ranks.hpp"

namespace ddp::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Kind = OperationKind;

Fingerprint all_reduce(std::uint64_t count) {
  return {0, count, Kind::all_reduce, DType::f32, ReduceOp::Kind::sum, false, 0};
}

template <class Ready>
bool comes(Ready ready) {
  Deadline const give_up = Deadline::after(30s);
  while (!ready()) {
    if (give_up.expired()) return false;
    std::this_thread::sleep_for(1ms);
  }
  return true;
}

// Ranks 0 and 2 are on host a, 1 and 3 on host b.
class NcclHosts : public FakeNcclRanks {
 protected:
  NcclHosts() {
    host_of_ = [](int rank) { return rank % 2 == 0 ? "a" : "b"; };
  }
  ~NcclHosts() override { fake_cuda::set_done(true); }

  /// `body(watchdog, stream, rank)` on each of four ranks; together() is a point that all of them reach.
  template <class Body>
  void on_two_hosts(std::chrono::milliseconds timeout, Body body) {
    on_ranks(4, timeout, [&](NcclConnection connection, int rank) {
      CudaStream stream(Device{}, nullptr);
      auto const watchdog = std::make_shared<NcclWatchdog>(std::move(connection));
      watchdog->start();
      body(*watchdog, stream, rank);
      together();
      fake_cuda::set_done(true);
      watchdog->fail({.code = ErrorCode::aborted, .detail = "the test is over"});  // the first failure stays
      watchdog->close();
    });
  }
  void together() { together_.arrive_and_wait(); }
  // The group may have failed before this rank comes to call; failure_of() tells.
  static void call(NcclWatchdog& watchdog, CudaStream& stream, Fingerprint const& operation) {
    try {
      NcclWatchdog::Call call(watchdog, stream);
      call.publish(operation);
      call.begin();
      fake_cuda::set_done(false);
    } catch (CommError const&) {
    }
  }
  static CommError failure_of(NcclWatchdog const& watchdog) {
    EXPECT_TRUE(comes([&] {
      try {
        watchdog.check();
        return false;
      } catch (CommError const&) {
        return true;
      }
    })) << "nothing failed";
    return error_of<CommError>([&] { watchdog.check(); });
  }

 private:
  std::barrier<> together_{4};
};

// At the deadline, when a step's head has shown it, or when NCCL fails because of it.
TEST_F(NcclHosts, F8ADifferenceBetweenHostsIsToldToEveryRankInTheSameWords) {
  enum class Shown { at_deadline, by_head, by_nccl };
  for (Shown const shown : {Shown::at_deadline, Shown::by_head, Shown::by_nccl}) {
    on_two_hosts(shown == Shown::at_deadline ? 2s : 10min, [&](NcclWatchdog& watchdog, CudaStream& stream,
                                                               int rank) {
      call(watchdog, stream, all_reduce(5));
      call(watchdog, stream, all_reduce(rank % 2 == 1 ? 999 : 1000));
      together();
      if (shown == Shown::by_head) watchdog.look_for_difference();
      if (shown == Shown::by_nccl && rank == 3) fake_nccl::fail(watchdog.communicator(), ncclInvalidUsage);
      auto const error = failure_of(watchdog);
      EXPECT_EQ(error.code(), ErrorCode::mismatch);
      EXPECT_THAT(error.what(), ::testing::ContainsRegex(
                                    "operation 2 differs between ranks: rank 0 called all_reduce .sum. of "
                                    "f32.1000., rank [13] called all_reduce .sum. of f32.999."));
    });
  }
}

TEST_F(NcclHosts, C6HostsTellEachOtherNothingWhileAllGoesWell) {
  on_two_hosts(10min, [&](NcclWatchdog& watchdog, CudaStream& stream, int /*rank*/) {
    for (int i = 0; i < 100; ++i) {
      call(watchdog, stream, all_reduce(5));
      fake_cuda::set_done(true);
      std::this_thread::sleep_for(5ms);
    }
    EXPECT_NO_THROW(watchdog.check());
    EXPECT_EQ(notices(), 0);
    together();
  });
  EXPECT_GT(notices(), 0) << "the end of the test fails the group";
}

TEST_F(NcclHosts, ARankOfAnotherHostThatLeftIsBlamedIfItIsMissingOnly) {
  for (bool const left_too_early : {false, true}) {
    on_ranks(4, 10min, [&](NcclConnection connection, int rank) {
      CudaStream stream(Device{}, nullptr);
      auto const control = connection.group.control;
      auto const watchdog = std::make_shared<NcclWatchdog>(std::move(connection));
      watchdog->start();
      if (rank != 3) call(*watchdog, stream, all_reduce(5));
      together();
      if (rank == (left_too_early ? 3 : 1)) control->leave();
      if (rank % 2 == 0 && left_too_early) {
        EXPECT_THAT(failure_of(*watchdog).what(), HasSubstr("rank 3 is gone (left the group)"));
      }
      Deadline const stays = Deadline::after(3s);
      while (rank % 2 == 0 && !left_too_early && !stays.expired()) {
        EXPECT_NO_THROW(watchdog->check()) << "rank 3 is late";
        std::this_thread::sleep_for(5ms);
      }
      together();
      fake_cuda::set_done(true);
      watchdog->fail({.code = ErrorCode::aborted, .detail = "the test is over"});
      watchdog->close();
    });
  }
}

TEST_F(NcclHosts, F8ADifferenceOnOneHostIsToldToTheOther) {
  on_two_hosts(10min, [](NcclWatchdog& watchdog, CudaStream& stream, int rank) {
    call(watchdog, stream, all_reduce(rank == 3 ? 999 : 1000));
    auto const error = failure_of(watchdog);
    EXPECT_EQ(error.code(), ErrorCode::mismatch);
    EXPECT_THAT(error.what(), HasSubstr("rank 3 called all_reduce (sum) of f32[999]"));
  });
}

TEST_F(NcclHosts, F8ARankOfAnotherHostThatIsMissingIsNamedAtTheDeadline) {
  on_two_hosts(2s, [](NcclWatchdog& watchdog, CudaStream& stream, int rank) {
    if (rank != 1) call(watchdog, stream, all_reduce(5));
    auto const error = failure_of(watchdog);
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("waited 2 s in operation 1, all_reduce (sum) of f32[5] for rank 1"),
                      HasSubstr("look at what those ranks are doing"), HasSubstr("; rank 1 runs on b")));
  });
}

TEST_F(NcclHosts, AFailureReachesEveryRankInTheWordsOfItsCause) {
  on_two_hosts(10min, [](NcclWatchdog& watchdog, CudaStream& stream, int rank) {
    call(watchdog, stream, all_reduce(5));
    if (rank == 3) watchdog.fail({.code = ErrorCode::aborted, .detail = "the data is broken"});
    auto const error = failure_of(watchdog);
    EXPECT_EQ(error.code(), ErrorCode::aborted);
    EXPECT_THAT(error.what(), HasSubstr("the data is broken"));
    if (rank != 3) {
      EXPECT_THAT(error.what(), HasSubstr("the group was ended by rank 3"));
    }
  });
}

TEST_F(NcclHosts, AFailureReachesAHostThatCallsNothing) {
  on_two_hosts(10min, [](NcclWatchdog& watchdog, CudaStream& /*stream*/, int rank) {
    std::this_thread::sleep_for(1500ms);  // a watchdog with nothing to do sleeps after a second
    if (rank == 2) watchdog.fail({.code = ErrorCode::aborted, .detail = "the data is broken"});
    EXPECT_THAT(failure_of(watchdog).what(), HasSubstr("the data is broken"));
  });
}

TEST_F(NcclHosts, AWaitSettlesWithTheRanksOfItsHost) {
  on_two_hosts(10min, [&](NcclWatchdog& watchdog, CudaStream& stream, int rank) {
    if (rank % 2 == 0) call(watchdog, stream, all_reduce(5));
    if (rank % 2 == 0) watchdog.settle(1);
    watchdog.settle_step();  // returns, though two have not begun it: only a step's head tells
    together();
  });
}

// What was called right before the end becomes known to the other host after the others have gone.
TEST_F(NcclHosts, RanksThatEndInOrderFailNobody) {
  on_ranks(4, 10min, [&](NcclConnection connection, int rank) {
    CudaStream stream(Device{}, nullptr);
    auto const control = connection.group.control;
    auto const watchdog = std::make_shared<NcclWatchdog>(std::move(connection));
    watchdog->start();
    for (std::uint64_t i = 1; i <= 200; ++i) call(*watchdog, stream, all_reduce(i));
    together();
    fake_cuda::set_done(true);
    // NCCL's end waits for the other ranks; leaving does not.
    std::thread end;
    if (rank % 2 == 0) {
      end = std::thread([&] { watchdog->close(); });
      std::this_thread::sleep_for(100ms);
      control->leave();
    }
    Deadline const stays = Deadline::after(1500ms);
    while (rank % 2 == 1 && !stays.expired()) {
      EXPECT_NO_THROW(watchdog->check()) << rank;
      std::this_thread::sleep_for(5ms);
    }
    rank % 2 == 0 ? end.join() : watchdog->close();
    EXPECT_NO_THROW(watchdog->check()) << rank;
  });
}

TEST_F(NcclHosts, EveryRankNamesTheOneWithAnotherNccl) {
  int const before = fake_nccl::connections();
  auto const job = std::make_shared<InProcessJob>(2);
  auto const controls = job->control_planes();
  run_ranks(2, [&](int r) {
    auto const& control = controls[static_cast<std::size_t>(r)];
    fake_nccl::set_version(r == 0 ? 22809 : 22803);
    NcclGroup group{{control, "test", control->everyone(), control->rank(), {1min}}, Device{}};
    group.host = r == 0 ? "a/1" : "b/1";
    auto const error = error_of<CommError>(
        [&] { static_cast<void>(connect_nccl(std::move(group), Deadline::after(1min))); });
    EXPECT_EQ(error.code(), ErrorCode::mismatch);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("rank 0 (on a"), HasSubstr("has NCCL 2.28.9, rank 1 (on b"),
                                    HasSubstr("has NCCL 2.28.3")));
  });
  EXPECT_EQ(fake_nccl::connections(), before) << "NCCL was asked to connect them";
}

// What hosts hear of each other, without watchdogs: rank 0 is on one host, rank 1 on another.
class RemoteCallsTest : public ::testing::Test {
 protected:
  struct End {
    explicit End(std::shared_ptr<ControlPlane> plane, std::vector<std::size_t> hosts = {0, 1})
        : control(std::move(plane)),
          group{control, "test", control->everyone(), control->rank(), {1min}},
          calls(
              std::make_shared<PublishedCalls>(PublishedCalls::make_memory(2), group.rank, std::move(hosts))),
          remote(group, calls),
          matcher(calls, group.world_ranks) {
      EXPECT_TRUE(remote.listen([] {}));
    }
    std::shared_ptr<ControlPlane> control;
    MemberGroup group;
    std::shared_ptr<PublishedCalls> calls;
    RemoteCalls remote;
    CallMatcher matcher;
  };
  RemoteCallsTest() {
    for (auto const& control : make_in_process_control(2)) ends_.push_back(std::make_unique<End>(control));
  }
  End& end(std::size_t rank) { return *ends_[rank]; }
  /// Both ask and answer.
  void exchange() {
    std::this_thread::sleep_for(2ms);  // the clock of questions counts milliseconds
    auto const now = std::chrono::steady_clock::now();
    EXPECT_TRUE(comes([&] {
      bool told = true;
      for (auto const& end : ends_) {
        static_cast<void>(end->remote.serve(end->calls->published()));
        told = end->remote.find_out(now) && told;
      }
      return told;
    }));
    EXPECT_THAT(end(0).remote.silent_hosts(), ::testing::IsEmpty());
  }

 private:
  std::vector<std::unique_ptr<End>> ends_;
};

TEST_F(RemoteCallsTest, TellsWhatWasCalledSinceTheLastQuestion) {
  for (std::uint64_t step = 1; step <= 3; ++step) {
    for (std::uint64_t i = 1; i <= 5; ++i) {
      end(0).calls->publish(all_reduce(step * 100 + i));
      end(1).calls->publish(all_reduce(step * 100 + i));
    }
    EXPECT_EQ(end(0).calls->collectives(1), 5 * (step - 1)) << "nobody has asked";
    exchange();
    EXPECT_EQ(end(0).calls->collectives(1), 5 * step);
    Fingerprint last = all_reduce(step * 100 + 5);
    last.sequence = 5 * step;
    EXPECT_EQ(end(0).calls->record(1, 5 * step), last);
    EXPECT_EQ(end(0).matcher.compare(), std::nullopt);
  }
}

TEST_F(RemoteCallsTest, WhoIsMissingIsKnownWhenTheOthersHaveToldAndForgottenLater) {
  end(1).calls->publish(all_reduce(1));
  EXPECT_EQ(end(1).matcher.compare(), std::nullopt);
  EXPECT_EQ(end(1).matcher.agreed(), 1U) << "its host agrees";
  auto const missing = [&] { return end(1).matcher.missing(end(1).calls->record(1).value()); };
  EXPECT_THAT(missing(), ::testing::IsEmpty());
  exchange();
  EXPECT_THAT(missing(), ::testing::ElementsAre(0U));
  std::this_thread::sleep_for(2100ms);
  EXPECT_THAT(missing(), ::testing::IsEmpty());
}

// More than is told, and more than is kept of published calls.
TEST_F(RemoteCallsTest, HostsThatCalledMuchAreComparedInTheirLatestCalls) {
  for (std::uint64_t const count : {std::uint64_t{3000}, 2 * PublishedCalls::kRecords}) {
    std::uint64_t const before = end(0).calls->published();
    for (std::uint64_t i = 1; i <= count; ++i) {
      end(0).calls->publish(all_reduce(i));
      end(1).calls->publish(all_reduce(i));
    }
    exchange();
    EXPECT_EQ(end(0).calls->record(1, before + 1), std::nullopt) << "it was not told";
    EXPECT_TRUE(end(0).calls->record(1, before + count));
    for (std::size_t const rank : {0U, 1U}) EXPECT_EQ(end(rank).matcher.compare(), std::nullopt);
  }
  end(0).calls->publish(all_reduce(7));
  end(1).calls->publish(all_reduce(8));
  exchange();
  EXPECT_THAT(end(1).matcher.compare().value_or(Failure{}).detail,
              HasSubstr("rank 0 called all_reduce (sum) of f32[7]"));
}

TEST_F(RemoteCallsTest, AHostThatDoesNotAnswerIsSilentAfterASecond) {
  auto const begin = std::chrono::steady_clock::now();
  while (!end(0).remote.find_out(begin)) std::this_thread::sleep_for(1ms);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 990ms);
  EXPECT_THAT(end(0).remote.silent_hosts(), ::testing::ElementsAre(1U));
}

TEST_F(RemoteCallsTest, NoticesThatMakeNoSenseFailTheGroup) {
  std::string calls = "c";
  calls.append(3, '\1');  // a header is longer
  std::string not_its_host = "c";
  not_its_host.append("\1\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 16).append(16, '\0');  // of rank 0
  std::string too_many = "c";
  too_many.append("\0\0\0\0\1\0\0\0\0\0\0\0\0\0\0\0", 16);  // of none
  for (auto const& bytes : {std::string(), std::string("f"), std::string("x"), std::string("q\0\0\0\0", 5),
                            calls, not_its_host, too_many}) {
    auto const controls = make_in_process_control(2);
    End const hears(controls[0]);
    controls[1]->notify(std::array{Rank{0}}, "test", bytes);
    auto const error = error_of<CommError>([&] { hears.calls->failure().throw_if_set(Rank{0}); });
    EXPECT_EQ(error.code(), ErrorCode::protocol);
    EXPECT_THAT(error.what(), HasSubstr("rank 1 sent a notice that cannot be read"));
  }
}

TEST_F(RemoteCallsTest, RanksOfOneHostNeedNobody) {
  End const alone(make_in_process_control(2)[0], {0, 0});
  EXPECT_TRUE(alone.remote.find_out(std::chrono::steady_clock::now()));
}

}  // namespace
}  // namespace ddp::testing
