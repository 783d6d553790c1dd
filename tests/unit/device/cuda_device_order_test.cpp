// D2: the order in which CUDA counts GPUs of several models.
#include "device/registry/cuda_device_order.hpp"

#include <gmock/gmock.h>

#include <cstdlib>

#include "device/registry/cuda_visible_devices.hpp"

namespace ddp::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::string uuid(char letter) { return "GPU-" + std::string(8, letter) + "-0000-0000-0000-000000000000"; }

PhysicalGpu gpu(char letter, char const* name) {
  PhysicalGpu each;
  each.uuid = {uuid(letter)};
  each.name = name;
  each.index = PhysicalIndex{letter - 'a'};
  return each;
}

std::vector<PhysicalGpu> const kMixed{gpu('a', "NVIDIA L4"), gpu('b', "NVIDIA H200"), gpu('c', "NVIDIA L4")};

class DeviceOrder : public ::testing::Test {
 protected:
  void TearDown() override { ::unsetenv("FAKE_CUDA"); }
  static void cuda_counts(char const* order) { ASSERT_EQ(::setenv("FAKE_CUDA", order, 1), 0); }
  static std::vector<GpuId> order_of(std::vector<PhysicalGpu> const& gpus,
                                     std::optional<std::string> const& variable = {}) {
    return cuda_order_of(gpus, variable, FAKE_CUDA_LIBRARY);
  }
};

TEST_F(DeviceOrder, IsTheDriversWhateverIsVisible) {
  cuda_counts("b a c");
  ASSERT_EQ(::setenv("CUDA_VISIBLE_DEVICES", "0", 1), 0);
  EXPECT_THAT(ask_cuda_order(FAKE_CUDA_LIBRARY), ElementsAre(uuid('b'), uuid('a'), uuid('c')));
  EXPECT_STREQ(std::getenv("CUDA_VISIBLE_DEVICES"), "0") << "a child changed its own";
  ::unsetenv("CUDA_VISIBLE_DEVICES");
}

TEST_F(DeviceOrder, DecidesWhatIndicesMean) {
  cuda_counts("b a c");
  auto const gpus = ordered_by(order_of(kMixed), kMixed);
  EXPECT_THAT(read_cuda_visible_devices("0,2", gpus), ElementsAre(uuid('b'), uuid('c')));
  EXPECT_EQ(gpus[0].index, 1) << "the physical number stays";
}

TEST_F(DeviceOrder, IsNotAskedForWhereItIsThatOfPci) {
  cuda_counts("killed");
  EXPECT_FALSE(may_differ_from_cuda(kMixed, "PCI_BUS_ID"));
  EXPECT_TRUE(may_differ_from_cuda(kMixed, "FASTEST_FIRST"));
  EXPECT_TRUE(may_differ_from_cuda(kMixed, std::nullopt));
  EXPECT_FALSE(may_differ_from_cuda(std::vector{kMixed[0], kMixed[2]}, std::nullopt)) << "one model";
  EXPECT_FALSE(may_differ_from_cuda({}, std::nullopt));
}

TEST_F(DeviceOrder, ThatNobodyTellsStaysThatOfPci) {
  cuda_counts("b a");
  EXPECT_THAT(order_of(kMixed), IsEmpty()) << "one of the three is missing";
  cuda_counts("killed");
  EXPECT_THAT(order_of(kMixed), IsEmpty());
  cuda_counts("hangs");
  EXPECT_THAT(ask_cuda_order(FAKE_CUDA_LIBRARY, std::chrono::milliseconds(50)), IsEmpty());
  EXPECT_THAT(ask_cuda_order("libddp_not_there.so.1"), IsEmpty());
  EXPECT_EQ(ordered_by({}, kMixed)[0].uuid, uuid('a'));
}

}  // namespace
}  // namespace ddp::testing
