// D4: whether somebody has started CUDA in this process.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <string_view>

#include "ddp/device/queries.hpp"

namespace {
int searches = 0;  // for the driver, by this program
}

// The linker takes this one instead of the C library's.
extern "C" void* dlopen(char const* file, int mode) noexcept {
  static auto const real = reinterpret_cast<void* (*)(char const*, int)>(dlsym(RTLD_NEXT, "dlopen"));
  if (file != nullptr && (mode & RTLD_NOLOAD) != 0 && std::string_view(file).starts_with("libcuda."))
    ++searches;
  return real(file, mode);
}

namespace ddp::testing {
namespace {

// A search goes through all folders of libraries, and memory is asked about for each parameter of a model.
TEST(DriverState, IsLookedForOnceWhereThereIsNone) {
  searches = 0;
  for (int i = 0; i < 1000; ++i) EXPECT_FALSE(cuda_is_initialized());
  EXPECT_LE(searches, 1);
}

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
