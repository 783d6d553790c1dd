// Ranks that are threads, connected by an NCCL that is not there.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "bootstrap/in_process/control.hpp"
#include "comm/nccl/connect.hpp"
#include "support/fakes/fake_nccl.hpp"
#include "support/ranks/lost_rank.hpp"
#include "support/ranks/run_ranks.hpp"

namespace ddp::testing {

class FakeNcclRanks : public ::testing::Test {
 protected:
  ~FakeNcclRanks() override { fake_nccl::connect_in({}); }

  /// Runs `body(connection, rank)` on each of `size` ranks, when all are connected. It must end what it gets.
  template <class Body>
  void on_ranks(int size, std::chrono::milliseconds timeout, Body body) {
    job_ = std::make_shared<InProcessJob>(size);
    run_ranks(size, [&](int r) {
      auto const control = std::make_shared<CountedControl>(job_, Rank{r}, notices_);
      NcclGroup group{
          {control, "test", control->everyone(), control->rank(), {timeout, "", false, init_timeout_}},
          Device{},
          0,
          commits_};
      if (host_of_) group.host = host_of_(r);
      NcclConnection connection = connect_nccl(std::move(group), Deadline::after(std::chrono::seconds(60)));
      if (opens_) open_nccl(connection.group, *connection.handles, true, [] { return true; });
      control->barrier("connected", Deadline::after(std::chrono::seconds(60)));
      body(std::move(connection), r);
    });
    EXPECT_EQ(fake_nccl::open_communicators(), 0) << "something was neither closed nor aborted";
  }
  std::shared_ptr<StepCommits> const commits_ = std::make_shared<StepCommits>();  // of all ranks
  std::chrono::milliseconds init_timeout_{};
  bool opens_ = true;                             // before `body`; otherwise the first operation does
  std::function<std::string(int rank)> host_of_;  // unset: all ranks are on this host
  /// How many notices ranks have sent.
  [[nodiscard]] int notices() const { return notices_; }
  void lose(int rank) { job_->declare_lost(died(rank, "the test says so")); }

 private:
  class CountedControl final : public InProcessControl {
   public:
    CountedControl(std::shared_ptr<InProcessJob> job, Rank rank, std::atomic<int>& notices)
        : InProcessControl(std::move(job), rank), notices_(notices) {}
    void notify(std::span<Rank const> to, std::string_view name, std::string_view bytes) override {
      ++notices_;
      InProcessControl::notify(to, name, bytes);
    }

   private:
    std::atomic<int>& notices_;
  };
  std::shared_ptr<InProcessJob> job_;
  std::atomic<int> notices_{0};
};

}  // namespace ddp::testing
