#include "ddp/device/host_threads.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <cstring>

#include "core/system/allowed_cpus.hpp"
#include "ddp/core/error.hpp"
#include "ddp/core/text.hpp"

namespace ddp {
namespace {

std::atomic<int> chosen_threads{0};  // 0: not set

// The first number of OpenMP's list, such as "8,2"; 0 if it is unset or malformed, which OpenMP ignores too.
int from_environment() {
  char const* const given = std::getenv("OMP_NUM_THREADS");
  if (given == nullptr) return 0;
  int number = 0;
  char const* const end = given + std::strlen(given);
  char const* begin = given;
  while (begin != end && *begin == ' ') ++begin;
  auto const [after, problem] = std::from_chars(begin, end, number);
  bool const ends = after == end || *after == ',' || *after == ' ';
  return problem == std::errc{} && ends && number >= 1 ? number : 0;
}

}  // namespace

int allowed_cpus() {
  auto const allowed = static_cast<long>(allowed_cpu_numbers().size());
  return static_cast<int>(std::max(1L, allowed > 0 ? allowed : ::sysconf(_SC_NPROCESSORS_ONLN)));
}

int host_threads() {
  if (int const said = chosen_threads; said > 0) return said;
  if (int const inherited = from_environment(); inherited > 0) return inherited;
  return allowed_cpus();
}

void set_host_threads(int threads) {
  require(threads >= 1, [&] { return text("set_host_threads(", threads, "): expected 1 or more"); });
  chosen_threads = threads;
  if (void* const function = dlsym(RTLD_DEFAULT, "omp_set_num_threads")) {
    reinterpret_cast<void (*)(int)>(function)(threads);
  }
}

}  // namespace ddp
