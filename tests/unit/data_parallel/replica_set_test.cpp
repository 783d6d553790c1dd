// Values and gradients between replicas on streams that are threads, by communicators and without (P5, P8).
#include "data_parallel/replicas/replica_set.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <thread>

#include "ddp/core/text.hpp"
#include "support/devices/test_devices.hpp"
#include "support/errors.hpp"

namespace ddp::testing {
namespace {

constexpr std::size_t kLarge = 1'100'000;  // a message of its own
constexpr std::size_t kSmall = 5;
constexpr std::size_t kMedium = 900'000;  // shares a pack of values with others
constexpr std::size_t kForTwoPacks = 14;
static_assert(kLarge * sizeof(float) >= ReplicaSet::kSmallValue.value &&
              kMedium * sizeof(float) < ReplicaSet::kSmallValue.value &&
              kForTwoPacks * kMedium * sizeof(float) > ReplicaSet::kPackOfValues.value);

// Each with its neighbour, in one call: sanitizers slow down loops.
bool all_are(Tensor const& tensor, float value) {
  auto const elements = tensor.as<float>();
  return elements.front() == value &&
         std::memcmp(elements.data(), elements.data() + 1, elements.size_bytes() - sizeof(float)) == 0;
}

// A large and a small parameter, a large and a small buffer, and `medium` more; each on a thread.
struct Parts final : Module {
  explicit Parts(Device device, std::size_t medium = 0)
      : Module(std::make_shared<HostStream>(device.index)), medium_(medium) {
    for (std::size_t const count : {kLarge, kSmall}) {
      values.push_back(zeros(Shape{count}, DType::f32, device));
      gradients.push_back(zeros(Shape{count}, DType::f32, device));
      buffers_.push_back(zeros(Shape{count}, DType::f32, device));
    }
    for (std::size_t i = 0; i < medium; ++i) buffers_.push_back(zeros(Shape{kMedium}, DType::f32, device));
  }
  std::vector<Parameter> parameters() override {
    return {{"large", values[0], {}, gradients[0]}, {"small", values[1], {}, gradients[1]}};
  }
  std::vector<NamedTensor> buffers() override {
    std::vector<NamedTensor> all;
    for (Tensor const& each : buffers_) all.push_back({text("buffer ", all.size()), each});
    return all;
  }
  Value do_forward(Value const& input) override { return input; }
  Value do_backward(Value const& gradient, GradientReady const&) override { return gradient; }
  std::shared_ptr<Module> do_clone(std::shared_ptr<Stream> of) override {
    return std::make_shared<Parts>(of->device(), medium_);
  }
  // Late, in order on the stream.
  void set(Tensor const& tensor, float to, int milliseconds = 0) {
    auto const elements = tensor.as<float>();
    host_stream(stream()).enqueue([elements, to, milliseconds] {
      std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
      std::fill_n(elements.data(), elements.size(), to);
    });
  }

  std::vector<Tensor> values;
  std::vector<Tensor> gradients;
  std::vector<Tensor> buffers_;

 private:
  std::size_t medium_;
};

class ReplicaSetExchange : public ::testing::TestWithParam<ReplicaSet::Exchange> {
 protected:
  void make(std::size_t replicas, std::size_t medium = 0) {
    set_ = std::make_unique<ReplicaSet>(std::make_shared<Parts>(test_device(0), medium),
                                        test_devices(replicas), std::chrono::seconds(60), GetParam());
  }
  [[nodiscard]] Parts& part(std::size_t replica) const { return dynamic_cast<Parts&>(set_->module(replica)); }
  void delay(std::size_t replica, int milliseconds) const {
    host_stream(set_->stream(replica)).enqueue([milliseconds] {
      std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
    });
  }
  // The way of a step: gradients of replica i are `value` × (i + 1), written late, each later than the one
  // before.
  void pass(float value) {
    set_->follow_primary();
    set_->threads().run(set_->size(), [&](std::size_t i) {
      set_->begin_backward(i);
      Parts& mine = part(i);
      for (std::size_t p = 2; p-- > 0;) {
        mine.set(mine.gradients[p], value * static_cast<float>(i + 1), 5 * static_cast<int>(i + 1));
        set_->gradient_ready(i, p);
      }
      set_->end_backward(i);
    });
    set_->reduce_gradients();
    set_->lead_primary();
  }

  void expect_values_of_replica_0_everywhere() {
    EXPECT_EQ(set_->backend(), GetParam() == ReplicaSet::Exchange::direct ? "direct" : "in-process");
    for (int step = 1; step <= 3; ++step) {
      auto const now = static_cast<float>(step);
      for (auto const* const tensors : {&part(0).values, &part(0).buffers_}) {
        for (Tensor const& tensor : *tensors) part(0).set(tensor, now, 5);
      }
      set_->follow_primary();
      delay(0, 10);  // replica 2 would copy too early, replica 1 too late
      delay(1, 30);
      set_->refresh();
      set_->threads().run(3, [&](std::size_t i) { set_->unpack_values(i); });
      for (Tensor const& buffer : part(0).buffers_) part(0).set(buffer, -1);  // as a forward pass may
      for (std::size_t i = 1; i < 3; ++i) {
        set_->stream(i).synchronize();
        for (auto const* const tensors : {&part(i).values, &part(i).buffers_}) {
          for (Tensor const& tensor : *tensors)
            EXPECT_TRUE(all_are(tensor, now)) << "replica " << i << ", step " << step;
        }
      }
      set_->lead_primary();
    }
  }

  std::unique_ptr<ReplicaSet> set_;
};

TEST_P(ReplicaSetExchange, P5EveryReplicaGetsTheValuesThatWereThere) {
  make(3);
  expect_values_of_replica_0_everywhere();
}

TEST_P(ReplicaSetExchange, P5SoItDoesInSeveralPacks) {
  make(3, kForTwoPacks);
  expect_values_of_replica_0_everywhere();
}

TEST_P(ReplicaSetExchange, P8SumsAreThereInTheOrderOfReplica0sStream) {
  make(3);
  for (int step = 1; step <= 3; ++step) {
    pass(static_cast<float>(step));
    set_->stream(0).synchronize();
    for (Tensor const& gradient : part(0).gradients)
      EXPECT_TRUE(all_are(gradient, 6.0F * static_cast<float>(step)));
  }
}

TEST_P(ReplicaSetExchange, P6AStreamThatFailedHangsNobody) {
  make(3);
  set_->follow_primary();
  set_->threads().run(3, [&](std::size_t i) {
    set_->begin_backward(i);
    if (i == 1) host_stream(set_->stream(1)).enqueue([] { throw std::runtime_error("broken"); });
    set_->end_backward(i);
  });
  try {
    set_->reduce_gradients();
    set_->lead_primary();
  } catch (std::exception const&) {  // it may be known by now
  }
  EXPECT_THROW(set_->stream(1).synchronize(), std::exception);
  set_.reset();  // with a deadline of ctest's
}

INSTANTIATE_TEST_SUITE_P(Exchanges, ReplicaSetExchange,
                         ::testing::Values(ReplicaSet::Exchange::fitting, ReplicaSet::Exchange::direct),
                         [](auto const& each) {
                           return each.param == ReplicaSet::Exchange::direct ? "Direct" : "Communicators";
                         });

}  // namespace
}  // namespace ddp::testing
