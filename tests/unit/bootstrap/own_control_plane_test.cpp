// A ControlPlane that a program writes itself, and communicators over it.
#include <gmock/gmock.h>

#include <condition_variable>
#include <map>
#include <mutex>

#include "ddp/comm/factory.hpp"
#include "ddp/core/text.hpp"
#include "support/errors.hpp"
#include "support/ranks/lost_rank.hpp"
#include "support/ranks/run_ranks.hpp"

namespace ddp::testing {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

// What its ranks, threads, share.
struct Board {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::string, std::string> values;
  std::vector<Failure> lost;
};

// By the header alone: with public headers and what is said there.
class BoardControl final : public ControlPlane {
 public:
  BoardControl(std::shared_ptr<Board> board, Rank rank, int size)
      : board_(std::move(board)), rank_(rank), size_(size) {}

  [[nodiscard]] Rank rank() const noexcept override { return rank_; }
  [[nodiscard]] int size() const noexcept override { return size_; }

  void put(std::string_view key, std::string_view value) override {
    std::lock_guard const lock(board_->mutex);
    if (!board_->values.emplace(key, value).second)
      throw Error(ErrorCode::invalid_state, text("put: ", key, " is there already"));
    board_->changed.notify_all();
  }

  [[nodiscard]] std::string get(std::string_view key, Deadline deadline) override {
    std::unique_lock lock(board_->mutex);
    auto const there = [&] { return board_->values.contains(std::string(key)) || !board_->lost.empty(); };
    if (!board_->changed.wait_until(lock, deadline.time(), there))
      throw CommError(ErrorCode::timeout, text("get: nobody has put ", key));
    auto const found = board_->values.find(std::string(key));
    if (found == board_->values.end())
      throw CommError(ErrorCode::peer_lost, text("get: rank ", board_->lost[0].ranks.front(), " is gone"));
    return found->second;
  }

  [[nodiscard]] std::vector<std::string> all_gather(std::string_view name, std::string_view value,
                                                    std::span<Rank const> group, Deadline deadline) override {
    std::string const call = text("gather/", name, "/", join(group, "-"), "/");
    int number = 0;
    {
      std::lock_guard const lock(board_->mutex);
      number = calls_[call]++;
    }
    put(text(call, number, "/", rank_), value);
    std::vector<std::string> all;
    for (Rank const member : group) all.push_back(get(text(call, number, "/", member), deadline));
    return all;
  }

  [[nodiscard]] std::vector<Failure> lost() const override {
    std::lock_guard const lock(board_->mutex);
    return board_->lost;
  }
  void report_error(Failure const& /*failure*/) noexcept override {}
  void report_progress(Progress const& /*progress*/) noexcept override {}
  void leave() noexcept override { left_ = true; }
  [[nodiscard]] bool has_left() const noexcept { return left_; }

 private:
  std::shared_ptr<Board> board_;
  Rank rank_;
  int size_;
  std::map<std::string, int> calls_;
  std::atomic<bool> left_ = false;
};

class OwnControlPlane : public ::testing::Test {
 protected:
  static constexpr int kRanks = 3;

  /// Calls body(communicator) on every rank.
  template <class Body>
  void on_ranks(CommunicatorOptions const& options, Body body) {
    run_ranks(kRanks, [&](int rank) {
      auto const control = std::make_shared<BoardControl>(board_, Rank{rank}, kRanks);
      body(*make_communicator(control, Device{}, options));
      EXPECT_FALSE(control->has_left()) << "that is for its owner";
    });
  }
  void declare_dead(int rank) {
    std::lock_guard const lock(board_->mutex);
    board_->lost.push_back(died(rank, "the test says so"));
    board_->changed.notify_all();
  }
  /// The sum over `comm` of 1 + its rank, in every element.
  static std::vector<float> sum_of_ranks(Communicator& comm) {
    auto const stream = HostStream::inline_stream();
    std::vector<float> values(1000, 1.0F + static_cast<float>(comm.rank().value()));
    comm.all_reduce(view_of(std::span(values)), ReduceOp::sum(), *stream);
    stream->synchronize();
    return values;
  }
  /// What an all-reduce ends with in which the last rank takes no part.
  static CommError failure_without_the_last(Communicator& comm) {
    return error_of<CommError>([&] { static_cast<void>(sum_of_ranks(comm)); });
  }

  std::shared_ptr<Board> board_ = std::make_shared<Board>();
};

TEST_F(OwnControlPlane, CarriesACommunicatorAndWhatIsSplitFromIt) {
  on_ranks({.timeout = 60s, .init_timeout = 60s}, [](Communicator& comm) {
    EXPECT_EQ(comm.backend(), "shm");
    EXPECT_THAT(sum_of_ranks(comm), Each(6.0F));
    std::vector<Rank> const pair{Rank{2}, Rank{0}};
    std::vector<Rank> const alone{Rank{1}};
    auto const part = comm.split(comm.rank() == 1 ? alone : pair);
    EXPECT_THAT(sum_of_ranks(*part), Each(comm.rank() == 1 ? 1.0F : 3.0F));
    EXPECT_THAT(sum_of_ranks(comm), Each(6.0F));
  });
}

TEST_F(OwnControlPlane, SeveralCommunicatorsUseItOneAfterTheOther) {
  run_ranks(kRanks, [&](int rank) {
    auto const control = std::make_shared<BoardControl>(board_, Rank{rank}, kRanks);
    for (int i = 0; i < 3; ++i) EXPECT_THAT(sum_of_ranks(*make_communicator(control, Device{})), Each(6.0F));
  });
}

// A15: nobody reads DDP_TIMEOUT here.
TEST_F(OwnControlPlane, ATimeoutAdvisesWhatTheProgramCanSet) {
  on_ranks({.timeout = 1s, .init_timeout = 60s}, [](Communicator& comm) {
    if (comm.rank() == 2) return;
    EXPECT_THAT(failure_without_the_last(comm).what(), HasSubstr("or raise CommunicatorOptions::timeout"));
  });
}

TEST_F(OwnControlPlane, ATimeoutAdvisesWhatTheProgramSaysThatItsUsersSet) {
  CommunicatorOptions const options{.timeout = 1s, .init_timeout = 60s, .timeout_setting = "--patience"};
  on_ranks(options, [](Communicator& comm) {
    auto const child = comm.split(std::vector{Rank{0}, Rank{1}, Rank{2}});
    if (comm.rank() == 2) return;
    EXPECT_THAT(failure_without_the_last(*child).what(), HasSubstr("or raise --patience"));
  });
}

TEST_F(OwnControlPlane, ARankThatItDeclaresLostEndsTheOthersWaits) {
  on_ranks({.timeout = 60s, .init_timeout = 60s}, [&](Communicator& comm) {
    if (comm.rank() == 2) return declare_dead(2);
    auto const error = failure_without_the_last(comm);
    EXPECT_EQ(error.code(), ErrorCode::peer_lost);
    EXPECT_THAT(error.what(), HasSubstr("rank 2 is gone (the test says so)"));
  });
}

TEST_F(OwnControlPlane, ARankThatNeverComesIsATimeoutOfTheConstruction) {
  auto const control = std::make_shared<BoardControl>(board_, Rank{0}, 2);
  auto const error = error_of<CommError>(
      [&] { static_cast<void>(make_communicator(control, Device{}, {.init_timeout = 100ms})); });
  EXPECT_EQ(error.code(), ErrorCode::timeout);
}

}  // namespace
}  // namespace ddp::testing
