// Copies and sums between devices without a communicator (P8, P11).
#include "data_parallel/replicas/direct_exchange.hpp"

#include <gmock/gmock.h>

#include "ddp/core/text.hpp"
#include "ddp/device/logical_device.hpp"
#include "device/memory/block_copy.hpp"
#include "support/devices/test_devices.hpp"

namespace ddp::testing {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::size_t kElements = 100'003;

std::vector<Tensor> one_each(std::size_t n) {
  std::vector<Tensor> all;
  for (std::size_t i = 0; i < n; ++i) {
    all.push_back(tensor_on<float>(test_device(i), {kElements},
                                   std::vector<float>(kElements, static_cast<float>(1U << i))));
  }
  return all;
}

TEST(DirectExchange, P8AddsWhatLiesOnAnyDevice) {
  for (std::size_t const n : device_counts()) {
    SCOPED_TRACE(text(n, " devices"));
    auto const tensors = one_each(n);
    FlatLayout const layout(std::vector<TensorView>{tensors[0]});
    DirectExchange exchange(test_devices(n), layout);
    auto const stream = make_comm_stream(test_device(0));
    std::vector<TensorView> const others(tensors.begin() + 1, tensors.end());
    for (int pass = 1; pass <= 2; ++pass) {
      exchange.add(tensors[0], others, *stream);
      auto const all = static_cast<float>((1U << n) - 1);
      EXPECT_THAT(elements_of<float>(tensors[0].view(), *stream),
                  Each(static_cast<float>(pass) * (all - 1) + 1));
    }
    for (std::size_t i = 1; i < n; ++i)
      EXPECT_THAT(elements_of<float>(tensors[i]), Each(static_cast<float>(1U << i)));
  }
}

TEST(DirectExchange, P5CopiesToAnyDevice) {
  std::size_t const n = device_counts().back();
  auto const tensors = one_each(n);
  for (std::size_t i = 1; i < n; ++i) {
    auto const stream = make_compute_stream(test_device(i));
    copy_whole(tensors[i], tensors[0], *stream);
    EXPECT_THAT(elements_of<float>(tensors[i].view(), *stream), Each(1.0F)) << "device " << i;
  }
}

TEST(DirectExchange, P8ItIsThereWhereDevicesAreOneCard) {
  EXPECT_THAT(cards_in_common(test_devices(1)), IsEmpty());
  std::size_t const n = test_device_count();
  auto const devices = test_devices(n);
  bool shared = false;
  for (std::size_t i = 1; i < n; ++i)
    shared = shared || (test_device_kind() == DeviceKind::cuda &&
                        logical_device(devices[i]).uuid == logical_device(devices[i - 1]).uuid);
  if (shared) {
    EXPECT_THAT(cards_in_common(devices), HasSubstr("share GPU"));
  } else {
    EXPECT_THAT(cards_in_common(devices), IsEmpty());
  }
}

}  // namespace
}  // namespace ddp::testing
