#include <gmock/gmock.h>

#include <optional>

#include "ddp/device/logical_device.hpp"
#include "device/cuda/backend.hpp"
#include "support/ranks/multi_process.hpp"

namespace {
std::optional<ddp::World>& the_world() {
  static std::optional<ddp::World> world;
  return world;
}

bool one_context_each = true;
}  // namespace

namespace ddp::testing {
World& world() { return the_world().value(); }

std::vector<int> contexts_elsewhere() {
  Device const own = world().device();
  std::vector<int> elsewhere;
  for (LogicalDevice const& gpu : logical_devices()) {
    bool const is_own = own.kind == DeviceKind::cuda && logical_device(own).visible == gpu.visible;
    if (!is_own && cuda::has_context(*gpu.visible)) elsewhere.push_back(*gpu.visible);
  }
  return elsewhere;
}

void uses_other_gpus() { one_context_each = false; }
}  // namespace ddp::testing

namespace {
class OneContextEach final : public testing::Environment {
 public:
  void TearDown() override {
    if (!one_context_each) return;
    EXPECT_THAT(ddp::testing::contexts_elsewhere(), testing::IsEmpty())
        << "each takes hundreds of MiB of a GPU that is another rank's";
  }
};
}  // namespace

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  the_world() =
      ddp::World::init({.timeout = std::chrono::seconds(60), .init_timeout = std::chrono::seconds(60)});
  testing::AddGlobalTestEnvironment(new OneContextEach);
  int const result = RUN_ALL_TESTS();
  the_world().reset();  // leaves the group
  return result;
}
