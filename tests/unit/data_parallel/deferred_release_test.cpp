// Values that work on a stream still uses.
#include "data_parallel/deferred_release.hpp"

#include <gmock/gmock.h>

#include <chrono>
#include <future>

#include "support/devices/test_devices.hpp"

namespace ddp::testing {
namespace {

TEST(DeferredRelease, StayUntilTheStreamIsThroughWithWhatItHasNow) {
  auto const stream = make_comm_stream(test_device(0));
  std::promise<void> open;
  std::future<void> opened = open.get_future();
  HostStream gate;
  DeferredRelease kept;
  for (int pass = 0; pass < 2; ++pass) {
    auto owner = std::make_shared<int>();
    std::weak_ptr<int> const alive = owner;
    if (pass == 0) {
      gate.enqueue([&opened] { static_cast<void>(opened.wait_for(std::chrono::seconds(60))); });
      stream->wait(gate);
    }
    kept.keep({Value(), Tensor(TensorView{}, owner)}, *stream);
    owner.reset();
    kept.drop_done();
    if (pass == 0) {
      EXPECT_FALSE(alive.expired());
      open.set_value();
    }
    stream->synchronize();
    kept.drop_done();
    EXPECT_TRUE(alive.expired()) << "pass " << pass;
  }
}

// A stream that events cannot mark.
struct Unmarkable final : Stream {
  [[nodiscard]] Device device() const noexcept override { return test_device(0); }
  void wait(Stream&) override {}
  void synchronize() override {
    ++waits;
    if (broken) throw Error(ErrorCode::device, "broken");
  }
  void block(HostStream&) override {}
  int waits = 0;
  bool broken = false;
};

TEST(DeferredRelease, AStreamThatCannotBeMarkedIsWaitedForAndAfterAFailureTheyStay) {
  DeferredRelease kept;
  auto const working = make_comm_stream(test_device(0));
  kept.keep({Tensor(TensorView{}, std::make_shared<int>())}, *working);
  working->synchronize();  // its event says "done" from now on
  Unmarkable stream;
  kept.keep({Value(), Value()}, stream);
  EXPECT_EQ(stream.waits, 0) << "nothing to keep";
  for (bool const broken : {false, true}) {
    stream.broken = broken;
    auto owner = std::make_shared<int>();
    std::weak_ptr<int> const alive = owner;
    kept.keep({Tensor(TensorView{}, std::move(owner))}, stream);
    kept.drop_done();
    EXPECT_EQ(alive.expired(), !broken);
  }
  EXPECT_EQ(stream.waits, 2);
}

}  // namespace
}  // namespace ddp::testing
