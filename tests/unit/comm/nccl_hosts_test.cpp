// GPU ranks of several hosts, over an NCCL and a CUDA that are not there: each "host" is a name.
#include <gmock/gmock.h>

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

TEST_F(NcclHosts, F8ADifferenceBetweenHostsIsToldToEveryRankInTheSameWords) {
  on_two_hosts(10min, [](NcclWatchdog& watchdog, CudaStream& stream, int rank) {
    call(watchdog, stream, all_reduce(5));
    call(watchdog, stream, all_reduce(rank % 2 == 1 ? 999 : 1000));
    auto const error = failure_of(watchdog);
    EXPECT_EQ(error.code(), ErrorCode::mismatch);
    EXPECT_THAT(error.what(), ::testing::ContainsRegex(
                                  "operation 2 differs between ranks: rank 0 called all_reduce .sum. of "
                                  "f32.1000., rank [13] called all_reduce .sum. of f32.999."));
  });
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
    EXPECT_FALSE(watchdog.settle_step()) << "only a step's head tells";
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

// What a host's speaker hears, without watchdogs: rank 0 is on one host, rank 1 on another.
class HostNewsTest : public ::testing::Test {
 protected:
  struct End {
    explicit End(std::shared_ptr<ControlPlane> plane)
        : control(std::move(plane)),
          group{control, "test", control->everyone(), control->rank(), {1min}},
          calls(std::make_shared<PublishedCalls>(PublishedCalls::make_memory(2), group.rank,
                                                 std::vector<std::size_t>{0, 1}, true)),
          news(group, calls),
          matcher(calls, group.world_ranks) {}
    std::shared_ptr<ControlPlane> control;
    MemberGroup group;
    std::shared_ptr<PublishedCalls> calls;
    HostNews news;
    CallMatcher matcher;
  };
  HostNewsTest() {
    for (auto const& control : make_in_process_control(2)) ends_.push_back(std::make_unique<End>(control));
  }
  End& end(std::size_t rank) { return *ends_[rank]; }
  /// Every 50 ms a letter: until both have told and heard everything.
  void exchange() {
    EXPECT_TRUE(comes([&] {
      for (auto const& end : ends_) end->news.exchange();
      return end(0).calls->published(1) == end(1).calls->published() &&
             end(1).calls->published(0) == end(0).calls->published();
    }));
  }

 private:
  std::vector<std::unique_ptr<End>> ends_;
};

TEST_F(HostNewsTest, TellsWhatWasCalledSinceTheLastLetter) {
  for (std::uint64_t step = 1; step <= 3; ++step) {
    for (std::uint64_t i = 1; i <= 5; ++i) {
      end(0).calls->publish(all_reduce(step * 100 + i));
      end(1).calls->publish(all_reduce(step * 100 + i));
    }
    exchange();
    EXPECT_EQ(end(0).calls->collectives(1), 5 * step);
    Fingerprint last = all_reduce(step * 100 + 5);
    last.sequence = 5 * step;
    EXPECT_EQ(end(0).calls->record(1, 5 * step), last);
    EXPECT_EQ(end(0).matcher.compare(), std::nullopt);
    EXPECT_EQ(end(0).matcher.agreed().everywhere, 5 * step);
  }
}

TEST_F(HostNewsTest, ARankAgreesWithItsHostBeforeItHearsOfOthers) {
  end(1).calls->publish(all_reduce(1));
  EXPECT_EQ(end(1).matcher.compare(), std::nullopt);
  EXPECT_EQ(end(1).matcher.agreed().here, 1U);
  EXPECT_EQ(end(1).matcher.agreed().everywhere, 0U);
  EXPECT_THAT(end(1).matcher.missing(end(1).calls->record(1).value()), ::testing::ElementsAre(0U));
}

// More than goes into a letter, and more than is kept of published calls.
TEST_F(HostNewsTest, AHostThatCallsFasterThanItTellsIsComparedInItsLatestCalls) {
  for (std::uint64_t const count : {std::uint64_t{3000}, 2 * PublishedCalls::kRecords}) {
    std::uint64_t const before = end(0).calls->published();
    for (std::uint64_t i = 1; i <= count; ++i) {
      end(0).calls->publish(all_reduce(i));
      end(1).calls->publish(all_reduce(i));
    }
    exchange();
    EXPECT_EQ(end(0).calls->record(1, before + 1), std::nullopt) << "it was not told";
    EXPECT_TRUE(end(0).calls->record(1, before + count));
    for (std::size_t const rank : {0U, 1U}) {
      EXPECT_EQ(end(rank).matcher.compare(), std::nullopt);
      EXPECT_EQ(end(rank).matcher.agreed().everywhere, before + count);
    }
  }
  end(0).calls->publish(all_reduce(7));
  end(1).calls->publish(all_reduce(8));
  exchange();
  EXPECT_THAT(end(1).matcher.compare().value_or(Failure{}).detail,
              HasSubstr("rank 0 called all_reduce (sum) of f32[7]"));
}

TEST_F(HostNewsTest, AHostThatIsNotHeardOfIsSilentAndOneThatCallsNothingIsNot) {
  for (int i = 0; i < 200; ++i) {
    end(0).news.exchange();
    std::this_thread::sleep_for(10ms);
  }
  auto const silent = end(0).news.silent_hosts();
  ASSERT_EQ(silent.size(), 1U) << "rank 1 has said nothing for 2 s";
  EXPECT_EQ(silent[0].first_rank, 1U);
  EXPECT_GE(silent[0].lasted, 1900ms);
  end(1).news.exchange();
  EXPECT_THAT(end(1).news.silent_hosts(), ::testing::IsEmpty()) << "rank 0 has, though it has called nothing";
}

TEST_F(HostNewsTest, LettersThatMakeNoSenseAreRefused) {
  std::string calls = "c";
  calls.append(3, '\1');  // a header is longer
  std::string not_its_host = "c";
  not_its_host.append(24, '\0');  // of rank 0
  for (auto const& bytes : {std::string(), std::string("f"), calls, not_its_host}) {
    end(1).control->post(Rank{0}, "test", bytes);
    auto const error = error_of<CommError>([&] { end(0).news.exchange(); });
    EXPECT_EQ(error.code(), ErrorCode::protocol);
    EXPECT_THAT(error.what(), HasSubstr("rank 1"));
  }
}

TEST_F(HostNewsTest, WithoutLettersOrOnOneHostNobodySpeaks) {
  MemberGroup const& group = end(0).group;
  auto const calls = [](std::vector<std::size_t> hosts, bool hears) {
    return std::make_shared<PublishedCalls>(PublishedCalls::make_memory(2), Rank{0}, std::move(hosts), hears);
  };
  EXPECT_TRUE(HostNews(group, calls({0, 1}, true)).is_speaker());
  EXPECT_FALSE(HostNews(group, calls({0, 1}, false)).is_speaker());
  EXPECT_FALSE(HostNews(group, calls({0, 0}, true)).is_speaker());
}

}  // namespace
}  // namespace ddp::testing
