// Ranks that are threads, connected by an NCCL that is not there.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "bootstrap/in_process/control.hpp"
#include "comm/nccl/connect.hpp"
#include "support/fakes/fake_nccl.hpp"
#include "support/ranks/lost_rank.hpp"
#include "support/ranks/run_ranks.hpp"

namespace ddp::testing {

class FakeNcclRanks : public ::testing::Test {
 protected:
  ~FakeNcclRanks() override { fake_nccl::stall_split(0, 0); }

  /// Runs `body(connection, rank)` on each of `size` ranks, when all are connected. It must end what it gets.
  template <class Body>
  void on_ranks(int size, std::chrono::milliseconds timeout, Body body) {
    job_ = std::make_shared<InProcessJob>(size);
    auto const controls = job_->control_planes();
    run_ranks(size, [&](int r) {
      auto const& control = controls[static_cast<std::size_t>(r)];
      NcclGroup group{{control, "test", control->everyone(), control->rank(), {timeout}}, Device{}};
      if (host_of_) group.host = host_of_(r);
      NcclConnection connection = connect_nccl(std::move(group), Deadline::after(std::chrono::seconds(60)));
      control->barrier("connected", Deadline::after(std::chrono::seconds(60)));
      body(std::move(connection), r);
    });
    EXPECT_EQ(fake_nccl::open_communicators(), 0) << "something was neither closed nor aborted";
  }
  std::function<std::string(int rank)> host_of_;  // unset: all ranks are on this host
  void lose(int rank) { job_->declare_lost(died(rank, "the test says so")); }

 private:
  std::shared_ptr<InProcessJob> job_;
};

}  // namespace ddp::testing
