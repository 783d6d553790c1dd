// D5, D14: questions about devices, libraries and threads, in a process without a GPU.
#include "ddp/device/queries.hpp"

#include <dlfcn.h>
#include <gmock/gmock.h>

#include <array>
#include <cstdlib>
#include <thread>

#include "ddp/device/host_threads.hpp"
#include "ddp/device/tensor_ops.hpp"
#include "device/info/cudnn.hpp"
#include "device/info/library_version.hpp"
#include "support/devices/virtual_cpus.hpp"
#include "support/errors.hpp"

namespace ddp::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr Device kGpu{DeviceKind::cuda, DeviceIndex{0}};

// Before anything asks for GPUs, and none are visible: so that these tests mean the same on every machine.
class Queries : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    setenv("CUDA_VISIBLE_DEVICES", "", 1);
    set_logical_devices({.kind = DeviceKind::cpu, .limits = {std::nullopt, 1_MiB}});
  }
};

TEST_F(Queries, D5WhatIsThereIsTold) {
  EXPECT_FALSE(cuda_is_initialized()) << "nobody has asked for a GPU";
  EXPECT_FALSE(cuda_is_available());
  EXPECT_EQ(device_count(), 0);
  EXPECT_EQ(device_count(DeviceKind::cpu), 2);
  EXPECT_EQ(device_name(cpu(1)), "CPU");
  EXPECT_EQ(error_of([] { static_cast<void>(device_name(cpu(2))); }).code(), ErrorCode::not_found);
  EXPECT_EQ(error_of([] { static_cast<void>(device_name(kGpu)); }).code(), ErrorCode::not_found);
}

TEST_F(Queries, D5PropertiesOfACpu) {
  DeviceProperties const properties = device_properties(cpu(1));
  EXPECT_EQ(properties.name, "CPU");
  EXPECT_EQ(properties.memory, memory_info(cpu(1)).total);
  EXPECT_GT(properties.memory, 1_MiB) << "the machine's: the limit is another question";
  EXPECT_EQ(properties.multiprocessors, allowed_cpus());
  EXPECT_EQ(properties.capability, ComputeCapability{});
  EXPECT_THAT(message_of([] { static_cast<void>(device_capability(cpu(0))); }), HasSubstr("expected a GPU"));
}

TEST_F(Queries, D5TheCurrentDeviceIsTheThreadsOwn) {
  EXPECT_EQ(current_device(), cpu(0));
  set_device(cpu(1));
  EXPECT_EQ(current_device(), cpu(1));
  {
    DeviceGuard const guard(cpu(0));
    EXPECT_EQ(current_device(), cpu(0));
  }
  EXPECT_EQ(current_device(), cpu(1));
  std::thread([] { EXPECT_EQ(current_device(), cpu(0)); }).join();
  EXPECT_EQ(error_of([] { set_device(cpu(2)); }).code(), ErrorCode::not_found);
  EXPECT_EQ(current_device(), cpu(1)) << "what is not there was not chosen";
  set_device(cpu(0));
}

TEST_F(Queries, D5ToMovesValues) {
  Tensor const from = zeros(Shape{2, 3}, DType::f32, cpu(0));
  from.as<float>()[5] = 2.5F;
  Tensor const there = to(from, cpu(1));
  EXPECT_EQ(describe(there), "f32[2,3] on cpu:1");
  EXPECT_EQ(there.as<float>()[5], 2.5F);
  from.as<float>()[5] = 1.0F;
  EXPECT_EQ(there.as<float>()[5], 2.5F) << "a copy";
  EXPECT_EQ(to(zeros(Shape{0}, DType::i32, cpu(1)), cpu(0)).view().device, cpu(0));
  EXPECT_EQ(error_of([&] { static_cast<void>(to(from, kGpu)); }).code(), ErrorCode::not_found);
  EXPECT_EQ(
      error_of([] { static_cast<void>(to(Tensor::zeros(Shape{1U << 20}, DType::f32), cpu(1))); }).code(),
      ErrorCode::out_of_memory)
      << "its limit holds";
}

CudnnAnswer answer_of_cudnn(char const* code, TensorView const& tensor) {
  setenv("FAKE_CUDNN", code, 1);
  return cudnn_answer(tensor, [] {
    return load_function(std::array<char const*, 2>{"libddp_not_there.so.9", FAKE_CUDNN_LIBRARY},
                         kCudnn.function);
  });
}

TEST_F(Queries, D5CudnnTakesFloatsOnAGpuWhereItIs) {
  constexpr char const* kNewest = "90300";
  constexpr char const* kOld = "8005";
  TensorView tensor{nullptr, Shape{4}, DType::f32, kGpu};
  EXPECT_TRUE(answer_of_cudnn(kNewest, tensor));
  EXPECT_TRUE(answer_of_cudnn(kOld, tensor));
  auto const nothing = [] {
    return load_function(std::array<char const*, 1>{"libddp_not_there.so.9"}, kCudnn.function);
  };
  EXPECT_THAT(cudnn_answer(tensor, nothing).reason,
              ::testing::AllOf(StartsWith("cuDNN cannot be loaded: "), HasSubstr("libddp_not_there.so.9")));
  tensor.dtype = DType::bf16;
  EXPECT_TRUE(answer_of_cudnn(kNewest, tensor));
  EXPECT_EQ(answer_of_cudnn(kOld, tensor).reason, "cuDNN knows bf16 since 8.1, and this is cuDNN 8.0.5");
  tensor.dtype = DType::i32;
  EXPECT_THAT(answer_of_cudnn(kNewest, tensor).reason, HasSubstr("this is i32[4] on cuda:0"));
  tensor = {nullptr, Shape{4}, DType::f32, cpu(0)};
  EXPECT_THAT(cudnn_would_accept(tensor).reason, HasSubstr("computes on GPUs"));
}

TEST(VersionText, D5SaysWhatLibrariesCount) {
  EXPECT_EQ(packed_version_text(8907), "8.9.7");
  EXPECT_EQ(packed_version_text(90300), "9.3.0");
  EXPECT_EQ(packed_version_text(91001), "9.10.1");
  EXPECT_EQ(cuda_version_text(13000), "13.0");
  EXPECT_EQ(cuda_version_text(12040), "12.4");
  EXPECT_EQ(cuda_version_text(0), "");
}

TEST_F(Queries, D5VersionsAreThoseOfThisProcess) {
  LibraryVersions const versions = library_versions();
  EXPECT_EQ(versions.cuda_runtime.empty(), !is_built_with_cuda());
  bool const has_mpi = dlsym(RTLD_DEFAULT, "MPI_Get_library_version") != nullptr;
  EXPECT_EQ(versions.mpi.empty(), !has_mpi);
  bool const has_nccl = dlsym(RTLD_DEFAULT, "ncclGetVersion") != nullptr ||
                        (is_built_with_cuda() && dlopen("libnccl.so.2", RTLD_LAZY | RTLD_LOCAL) != nullptr);
  EXPECT_EQ(versions.nccl.empty(), !has_nccl);
}

TEST(HostThreads, D14AreTheEnvironmentsUnlessTheProgramSays) {
  unsetenv("OMP_NUM_THREADS");
  EXPECT_EQ(host_threads(), allowed_cpus());
  EXPECT_GE(allowed_cpus(), 1);
  for (auto const& [given, expected] : {std::pair("3", 3), {"5,2", 5}, {" 7 ", 7}}) {
    setenv("OMP_NUM_THREADS", given, 1);
    EXPECT_EQ(host_threads(), expected) << given;
  }
  for (char const* const no_number : {"", "many", "0", "-2", "3x"}) {
    setenv("OMP_NUM_THREADS", no_number, 1);
    EXPECT_EQ(host_threads(), allowed_cpus()) << no_number;
  }
  EXPECT_EQ(error_of([] { set_host_threads(0); }).code(), ErrorCode::invalid_argument);
  EXPECT_EQ(host_threads(), allowed_cpus());
  set_host_threads(6);
  setenv("OMP_NUM_THREADS", "3", 1);
  EXPECT_EQ(host_threads(), 6) << "the program goes before the environment";
}

TEST(HostThreads, D14AnOpenMpRuntimeIsTold) {
  void* const library = dlopen("libgomp.so.1", RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) GTEST_SKIP() << "no OpenMP runtime here: " << dlerror();
  auto const most = reinterpret_cast<int (*)()>(dlsym(library, "omp_get_max_threads"));
  ASSERT_NE(most, nullptr);
  set_host_threads(5);
  EXPECT_EQ(most(), 5);
  set_host_threads(2);
  EXPECT_EQ(most(), 2);
}

}  // namespace
}  // namespace ddp::testing
