// D7
#include "device/registry/misspelt_variables.hpp"

#include <gmock/gmock.h>

namespace ddp::testing {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

using Names = std::vector<std::string>;

TEST(MisspeltVariables, AreNamedWithTheOneThatWasMeant) {
  EXPECT_THAT(misspelt_variables(Names{"HOME", "CUDA_VISIBLE_DIVICES", "DDP_TIMEOUTS"}),
              ElementsAre("CUDA_VISIBLE_DIVICES is set, and CUDA does not read it; did you mean "
                          "CUDA_VISIBLE_DEVICES?",
                          "DDP_TIMEOUTS is set, and ddp does not read it; did you mean DDP_TIMEOUT?"));
  for (char const* name : {"CUDA_VISIBLE_DEVICE", "CUDA_VISABLE_DEVISES", "CUDA_VISIBLES_DEVICES",
                           "CUDAVISIBLEDEVICES", "cuda_visible_devices", "CUDA_DEVICES_ORDER",
                           "CUDA_DEVICE_ODER", "DDP_LOGS", "ddp_log", "DDP_VIRTUAL_DEVICE", "DDP_BACKENDS"}) {
    EXPECT_EQ(misspelt_variables(Names{name}).size(), 1U) << name;
  }
}

TEST(MisspeltVariables, OnesThatAreReadAndOnesOfOthersAreLeftAlone) {
  EXPECT_THAT(misspelt_variables(Names{"CUDA_VISIBLE_DEVICES",
                                       "CUDA_DEVICE_ORDER",
                                       "DDP_LOG",
                                       "DDP_STATISTICS",
                                       "DDP_TRACE",
                                       "DDP_TIMEOUT",
                                       "DDP_INIT_TIMEOUT",
                                       "NVIDIA_VISIBLE_DEVICES",
                                       "HIP_VISIBLE_DEVICES",
                                       "ROCR_VISIBLE_DEVICES",
                                       "GPU_DEVICE_ORDINAL",
                                       "CUDA_DEVICE_MAX_CONNECTIONS",
                                       "CUDA_LAUNCH_BLOCKING",
                                       "CUDA_HOME",
                                       "CUDA_PATH",
                                       "LOG",
                                       "TRACE",
                                       "DDP_SRUN_MPI",
                                       "DDP_TEST_PYTHON",
                                       "PATH",
                                       "",
                                       "LD_LIBRARY_PATH"}),
              IsEmpty());
}

TEST(MisspeltVariables, AreLookedForInTheEnvironment) {
  ASSERT_EQ(::setenv("CUDA_VISIBLE_DIVICES", "0=1", 1), 0);
  EXPECT_THAT(variable_names(), Contains("CUDA_VISIBLE_DIVICES"));
  ::testing::internal::CaptureStderr();
  warn_of_misspelt_variables();
  warn_of_misspelt_variables();
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "[ddp] warning: CUDA_VISIBLE_DIVICES is set, and CUDA does not read it; did you mean "
            "CUDA_VISIBLE_DEVICES?\n")
      << "once in a process";
}

}  // namespace
}  // namespace ddp::testing
