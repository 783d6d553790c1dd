#include "device/info/library_version.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "ddp/core/text.hpp"

namespace ddp {
namespace {

constexpr std::array kNcclFiles{"libnccl.so.2"};
// Open MPI's since 1.10 and since 5, then those of MPICH and Intel MPI.
constexpr std::array kMpiFiles{"libmpi.so.40", "libmpi.so.12", "libmpich.so.12", "libmpi.so"};
constexpr std::array kCudnnFiles{"libcudnn.so.9", "libcudnn.so.8", "libcudnn.so"};

std::string nccl_version(void* function) {
  int code = 0;
  bool const told = reinterpret_cast<int (*)(int*)>(function)(&code) == 0;
  return told ? packed_version_text(static_cast<std::size_t>(code)) : std::string();
}

std::string mpi_version(void* function) {
  // 8192: what MPICH's MPI_MAX_LIBRARY_VERSION_STRING is; Open MPI's is 256.
  std::array<char, 8192 + 1> words{};
  int length = 0;
  reinterpret_cast<int (*)(char*, int*)>(function)(words.data(), &length);
  std::string version = words.data();
  version.resize(std::min(version.size(), version.find_first_of(",\n")));
  constexpr std::string_view kOpenMpi = "Open MPI v";
  if (version.starts_with(kOpenMpi)) version.replace(0, kOpenMpi.size(), "Open MPI ");
  return version;
}

std::string cudnn_version(void* function) { return packed_version_text(cudnn_version_code(function)); }

}  // namespace

VersionedLibrary const kNccl{kNcclFiles, "ncclGetVersion", &nccl_version};
VersionedLibrary const kMpi{kMpiFiles, "MPI_Get_library_version", &mpi_version};
VersionedLibrary const kCudnn{kCudnnFiles, "cudnnGetVersion", &cudnn_version};

LoadedFunction load_function(std::span<char const* const> files, char const* function) {
  LoadedFunction found;
  for (char const* const file : files) {
    void* const library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    found.address = library == nullptr ? nullptr : dlsym(library, function);
    if (found.address != nullptr) return {found.address, {}};
    char const* const why = dlerror();
    if (found.problem.empty()) found.problem = why == nullptr ? file : why;
  }
  return found;
}

std::string packed_version_text(std::size_t code) {
  std::size_t const unit = code < 10000 ? 1000 : 10000;
  std::size_t const rest = code % unit;
  return text(code / unit, ".", rest / 100, ".", rest % 100);
}

std::string cuda_version_text(int code) {
  if (code == 0) return {};
  return text(code / 1000, ".", code % 1000 / 10);
}

std::size_t cudnn_version_code(void* function) { return reinterpret_cast<std::size_t (*)()>(function)(); }

}  // namespace ddp
