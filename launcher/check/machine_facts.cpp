#include "launcher/check/machine_facts.hpp"

#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "core/system/pidfd.hpp"
#include "launcher/plan/program.hpp"
#include "launcher/process/exit_code.hpp"

namespace ddp::launcher {
namespace {

Limit limit(rlim_t value) { return value == RLIM_INFINITY ? Limit{} : Limit{value}; }

std::optional<ShmFilesystem> shared_memory(char const* folder) {
  struct statvfs found {};
  if (statvfs(folder, &found) != 0) return std::nullopt;
  return ShmFilesystem{Bytes{found.f_blocks * found.f_frsize}, Bytes{found.f_bavail * found.f_frsize},
                       access(folder, W_OK | X_OK) == 0};
}

std::vector<std::string> names_in(char const* folder) {
  std::vector<std::string> names;
  std::error_code none;
  for (auto const& entry : std::filesystem::directory_iterator(folder, none)) {
    names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string pidfd_problem() { return open_pidfd(getpid()) ? std::string{} : std::strerror(errno); }

LibraryVersion version_of_mpirun() {
  try {
    return program_version(find_program("mpirun"));
  } catch (ExitError const& error) {
    if (error.exit_code() == exit_code::kRetry) throw;
    return {{}, {}, error.what()};
  }
}

}  // namespace

MachineFacts read_facts(BuiltWith const& built_with) {
  VersionQuestion nccl = ask_version(kNccl);
  VersionQuestion mpi = ask_version(kMpi);
  MachineFacts facts;
  facts.built_with = built_with;
  facts.nccl = nccl.answer();
  facts.mpi = mpi.answer();
  facts.mpirun = version_of_mpirun();
  facts.shared_memory = shared_memory("/dev/shm");
  rlimit found{};
  if (getrlimit(RLIMIT_MEMLOCK, &found) == 0) facts.locked_memory = limit(found.rlim_cur);
  if (getrlimit(RLIMIT_NOFILE, &found) == 0) {
    facts.open_files = limit(found.rlim_cur);
    facts.most_open_files = limit(found.rlim_max);
  }
  facts.rdma_devices = names_in("/sys/class/infiniband");
  utsname system{};
  if (uname(&system) == 0) facts.kernel = system.release;
  facts.pidfd_problem = pidfd_problem();
  return facts;
}

}  // namespace ddp::launcher
