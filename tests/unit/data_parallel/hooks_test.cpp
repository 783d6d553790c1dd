// P5 and P6: hooks, and how values travel.
#include <gmock/gmock.h>

#include <map>
#include <mutex>

#include "data_parallel/replicas/replica_set.hpp"
#include "ddp/data_parallel/data_parallel.hpp"
#include "reducer/memory/coalesced_tensors.hpp"
#include "support/models/data_parallel_oracle.hpp"

namespace ddp::testing {
namespace {

using ::testing::ElementsAre;

TEST(Hooks, P6RunOncePerReplicaOnItsDeviceInItsOwnOrder) {
  std::mutex mutex;
  std::map<Device, std::vector<std::string>> said;
  auto const note = [&](Module& module, std::string const& what) {
    std::lock_guard const lock(mutex);
    said[module.device()].push_back(what);
  };
  auto const module = toy_net<float>(test_device(0));
  DataParallel parallel(module, {.device_ids = test_devices(device_counts().back())});
  // Added behind the wrapping, and one to a part of the module.
  module->add_before_forward([&](Module& self, Value&) { note(self, "before"); });
  module->add_after_forward([&](Module& self, Value const&, Value&) { note(self, "after"); });
  module->add_after_backward([&](Module& self, Value const&, Value&) { note(self, "backward"); });
  module->children()[0].module->add_after_forward(
      [&](Module& self, Value const&, Value&) { note(self, "part"); });
  int whole = 0;
  parallel.add_after_forward([&](Module&, Value const&, Value&) { ++whole; });
  static_cast<void>(parallel.forward(inputs<float>(Device{}, 0, 8)));
  static_cast<void>(parallel.backward(counting<float>(test_device(0), {8, 3})));
  EXPECT_EQ(whole, 1) << "a hook of the wrapper itself";
  ASSERT_EQ(said.size(), device_counts().back());
  for (auto const& [device, order] : said) {
    EXPECT_THAT(order, ElementsAre("before", "part", "after", "backward")) << device;
  }
}

TEST(Hooks, MayReplaceWhatPasses) {
  auto const module = function_module(test_device(0), [](auto&, Value const& input) { return input; });
  module->add_before_forward(
      [](Module& self, Value& input) { input = tensor_on<float>(self.device(), {1}, {5}); });
  module->add_after_forward([](Module&, Value const& input, Value& output) {
    output = Value::List{input, output};
  });
  Value const output = module->forward(counting<float>(test_device(0), {1}));
  EXPECT_THAT(elements_of<float>(output[1].view()), ElementsAre(5));
}

TEST(FlatLayout, P5SmallTensorsOfOneTypeShareAMessageAndLargeOnesHaveTheirOwn) {
  std::vector<TensorView> const tensors{{nullptr, {2, 3}, DType::f32, {}}, {nullptr, {100}, DType::f32, {}},
                                        {nullptr, {4}, DType::i64, {}},    {nullptr, {5}, DType::f32, {}},
                                        {nullptr, {}, DType::i64, {}},     {nullptr, {200}, DType::f32, {}}};
  FlatLayout const layout(tensors, 400_B);
  ASSERT_EQ(layout.messages.size(), 4U);
  std::vector<std::size_t> counts;
  for (auto const& message : layout.messages) counts.push_back(message.count);
  EXPECT_THAT(counts, ElementsAre(13, 100, 5, 200));
  EXPECT_EQ(layout.places[3].message, 0U);
  EXPECT_EQ(layout.places[3].offset, 8U) << "as aligned as with DDP";
  EXPECT_EQ(layout.places[4].offset, 4U);
  EXPECT_FALSE(layout.messages[1].packed);
}

TEST(FlatLayout, P5APackIsLimited) {
  std::vector<TensorView> const tensors{{nullptr, {60}, DType::f32, {}},
                                        {nullptr, {50}, DType::f32, {}},
                                        {nullptr, {20}, DType::f32, {}},
                                        {nullptr, {2}, DType::i64, {}},
                                        {nullptr, {90}, DType::f32, {}}};
  FlatLayout const layout(tensors, 400_B, 400_B);
  std::vector<std::size_t> messages;
  for (auto const& place : layout.places) messages.push_back(place.message);
  EXPECT_THAT(messages, ElementsAre(0, 1, 0, 2, 3)) << "a small one goes where there is room";
  for (auto const& message : layout.messages) {
    EXPECT_TRUE(message.packed);
    EXPECT_LE(message.bytes(), 400U);
  }
}

TEST(CoalescedTensors, P5P8LargeParametersTravelWithoutAPack) {
  constexpr std::size_t kWidth = 740;
  static_assert(kWidth * kWidth * sizeof(double) >= ReplicaSet::kSmallValue.value);
  auto const wide = [](Device device) {
    std::shared_ptr<Stream> const stream = make_compute_stream(device);
    std::vector<std::shared_ptr<Module>> layers;
    std::vector<std::size_t> const widths{7, kWidth, kWidth, 3};
    for (std::size_t i = 0; i + 1 < widths.size(); ++i) {
      layers.push_back(
          std::make_shared<TanhLayer<double>>(stream, widths[i], widths[i + 1], static_cast<double>(i)));
    }
    return std::make_shared<Chain>(stream, layers);
  };
  auto const alone = wide(test_device(0));
  auto const expected = train<double>(*alone, 4, test_device(0));
  for (std::size_t const n : device_counts()) {
    DataParallel parallel(wide(test_device(0)), {.device_ids = test_devices(n)});
    expect_near_all(train<double>(parallel, 4, test_device(0)), expected);
  }
}

}  // namespace
}  // namespace ddp::testing
