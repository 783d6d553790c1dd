// Versions of other libraries: where the libraries are found, and what their version numbers mean. The
// launcher asks in child processes, a program in its own.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace ddp {

/// A library that can be asked for its version without being initialised.
struct VersionedLibrary {
  std::span<char const* const> files;      ///< its names, the likeliest first
  char const* function;                    ///< the library's function that tells its version
  std::string (*version)(void* function);  ///< what that function says, in words; empty if it refuses
};
extern VersionedLibrary const kNccl;   ///< "2.28.3"
extern VersionedLibrary const kMpi;    ///< its own words up to the first comma or line end: "Open MPI 4.1.4"
extern VersionedLibrary const kCudnn;  ///< "9.3.0"

/// A function of a library that was loaded, and stays loaded.
struct LoadedFunction {
  void* address = nullptr;  ///< null: none of the files can be loaded and has it
  std::string problem;      ///< if so: what is wrong with the first file
};
[[nodiscard]] LoadedFunction load_function(std::span<char const* const> files, char const* function);

/// Of NCCL and cuDNN: 22803 is "2.28.3"; before NCCL 2.9 and cuDNN 9, 2804 was "2.8.4" (nccl.h, NCCL_VERSION;
/// cudnn_version.h, CUDNN_VERSION).
[[nodiscard]] std::string packed_version_text(std::size_t code);
/// 13000 is "13.0" (cuda.h, CUDA_VERSION). Empty for 0, which CUDA says where there is no driver.
[[nodiscard]] std::string cuda_version_text(int code);
/// What cudnnGetVersion(), at this address, says.
[[nodiscard]] std::size_t cudnn_version_code(void* function);

}  // namespace ddp
