// Version numbers of libraries, as each library counts, in words. The launcher asks in child processes, a
// program of the libraries that it has loaded; what the numbers mean stands here once.
#pragma once

#include <cstddef>
#include <string>

namespace ddp {

/// 22803 is "2.28.3"; before 2.9, 2804 was "2.8.4" (nccl.h, NCCL_VERSION).
[[nodiscard]] std::string nccl_version_text(int code);
/// 13000 is "13.0" (cuda.h, CUDA_VERSION). Empty for 0, which CUDA says where there is no driver.
[[nodiscard]] std::string cuda_version_text(int code);
/// 90300 is "9.3.0"; before 9, 8907 was "8.9.7" (cudnn_version.h, CUDNN_VERSION).
[[nodiscard]] std::string cudnn_version_text(std::size_t code);

/// What an MPI library says of itself, up to the first comma or line end: "Open MPI 4.1.4".
/// `function` is its MPI_Get_library_version, which may be called before MPI is initialised.
[[nodiscard]] std::string mpi_version_text(void* function);

}  // namespace ddp
