#include "device/info/version_text.hpp"

#include <algorithm>
#include <array>
#include <string_view>

#include "ddp/core/text.hpp"

namespace ddp {

std::string nccl_version_text(int code) {
  // NCCL_VERSION(X,Y,Z) was X*1000+Y*100+Z up to 2.8, and is X*10000+Y*100+Z since.
  int const major = code < 10000 ? code / 1000 : code / 10000;
  int const rest = code < 10000 ? code % 1000 : code % 10000;
  return text(major, ".", rest / 100, ".", rest % 100);
}

std::string cuda_version_text(int code) {
  if (code == 0) return {};
  return text(code / 1000, ".", code % 1000 / 10);
}

std::string cudnn_version_text(std::size_t code) {
  std::size_t const unit = code < 10000 ? 1000 : 10000;
  std::size_t const rest = code % unit;
  return text(code / unit, ".", rest / 100, ".", rest % 100);
}

std::string mpi_version_text(void* function) {
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

}  // namespace ddp
