// Values that work on a stream still uses.
#include "parallel/kept_values.hpp"

#include <gmock/gmock.h>

#include <chrono>
#include <future>

#include "support/test_devices.hpp"

namespace ddp::testing {
namespace {

TEST(KeptValues, StayUntilTheStreamIsThroughWithWhatItHasNow) {
  auto const stream = make_comm_stream(test_device(0));
  std::promise<void> open;
  std::future<void> opened = open.get_future();
  HostStream gate;
  KeptValues kept;
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

TEST(KeptValues, NothingNeedsNoStream) {
  class NoWork final : public Stream {
    [[nodiscard]] Device device() const noexcept override { return test_device(0); }
    void wait(Stream&) override {}
    void synchronize() override {}
    void hold(HostStream&) override {}
  } stream;
  KeptValues kept;
  kept.keep({Value(), Value()}, stream);
  auto const working = make_comm_stream(test_device(0));
  kept.keep({Tensor(TensorView{}, std::make_shared<int>())}, *working);
  working->synchronize();  // its event says "done" from now on
  auto owner = std::make_shared<int>();
  std::weak_ptr<int> const alive = owner;
  kept.keep({Tensor(TensorView{}, std::move(owner))}, stream);
  kept.drop_done();
  EXPECT_FALSE(alive.expired()) << "nobody knows when a stream without events is through";
}

}  // namespace
}  // namespace ddp::testing
