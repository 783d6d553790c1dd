// D4: whether somebody has started CUDA in this process.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include "ddp/device/queries.hpp"

namespace ddp::testing {
namespace {

// The tests of this program load no other libcuda.so.1, and the loader finds a library that is there by its
// name.
TEST(DriverState, IsKnownWithoutStartingIt) {
  EXPECT_FALSE(cuda_is_initialized()) << "nobody has loaded a driver";
  void* const driver = dlopen(FAKE_CUDA_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(driver, nullptr) << dlerror();
  EXPECT_FALSE(cuda_is_initialized()) << "loaded is not started";
  auto const initialise = reinterpret_cast<int (*)(unsigned)>(dlsym(driver, "cuInit"));
  ASSERT_NE(initialise, nullptr);
  ASSERT_EQ(initialise(0), 0);
  EXPECT_TRUE(cuda_is_initialized());
  dlclose(driver);
}

}  // namespace
}  // namespace ddp::testing
