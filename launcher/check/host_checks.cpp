// --check: limits of the host for processes, and libraries that ddp does not build.

#include "ddp/core/text.hpp"
#include "launcher/check/machine_check.hpp"
#include "launcher/plan/plan.hpp"

namespace ddp::launcher {
namespace {

/// What NCCL's user guide (Memory issues, Shared memory) gives to containers: docker --shm-size=1g. Docker's
/// default, 64 MiB, was too little for four GPUs (NCCL's issues 290, 525).
constexpr Bytes kSharedMemory = 1_GiB;

/// What Linux gives to a process unless told otherwise (the kernel's INR_OPEN_CUR). Sockets of NCCL and MPI
/// grow with the number of ranks; ranks of shared memory open less than eight files.
constexpr std::size_t kOpenFiles = 1024;

/// The first version with ncclCommSplit().
constexpr char const* kLeastNccl = "2.18.1";

std::string number(Limit limit) { return limit ? text(*limit) : "unlimited"; }

bool is_below(Limit limit, std::size_t least) { return limit && *limit < least; }

std::string ranks_of(CheckedJob const& job) {
  return text(job.ranks, job.gpus.empty() ? " CPU rank" : " GPU rank", job.ranks == 1 ? "" : "s");
}

}  // namespace

Check check_linux(MachineFacts const& facts) {
  Check check{.name = "Linux", .found = facts.kernel};
  if (facts.pidfd_problem.empty()) return check;
  check.found += ": pidfd_open: " + facts.pidfd_problem;
  return check.judge(Verdict::failed, "Linux 5.3 or newer, where a process may watch others by pidfd",
                     "in a container: a newer runtime, whose seccomp profile allows it");
}

Check check_cores(CheckedJob const& job, Machine const& machine) {
  Check check{.name = "cores", .found = text(machine.allowed_cores, " allowed, for ", ranks_of(job))};
  if (machine.allowed_cores >= job.ranks) return check;
  return check.judge(
      Verdict::warning, "one at least for each rank",
      "fewer ranks, or more cores for this container or job (docker --cpus, srun --cpus-per-task)");
}

Check check_shared_memory(CheckedJob const& job, MachineFacts const& facts) {
  Check check{.name = "/dev/shm"};
  auto const& memory = facts.shared_memory;
  check.found = memory ? text(to_string(memory->total), ", ", to_string(memory->free), " free",
                              memory->writable ? "" : ", not writable")
                       : std::string("not there");
  if (!job.uses_nccl) {
    // ShmCommunicator maps memory without a name (memfd), which /dev/shm does not limit.
    check.found += text("; ", ranks_of(job), job.ranks == 1 ? " does" : " do", " without");
    return check;
  }
  if (!memory || !memory->writable) {
    // NCCL makes no communicator without /dev/shm.
    check.judge(Verdict::failed,
                "a file system in memory that this user may write: NCCL does not start without",
                "mount -t tmpfs -o mode=1777 tmpfs /dev/shm");
  } else if (memory->free < kSharedMemory) {
    check.judge(Verdict::warning, text(to_string(kSharedMemory), " free, as NCCL advises"),
                "docker --shm-size=1g, a volume of medium Memory in Kubernetes, "
                "mount -o remount,size=… /dev/shm; remove what dead jobs left there");
  }
  return check;
}

/// Memory that an InfiniBand adapter uses must be locked, without limit (NCCL's user guide, Open MPI's FAQ).
/// Nothing else needs that: CUDA's pinned memory does not count.
Check check_locked_memory(MachineFacts const& facts) {
  Check check{.name = "locked memory"};
  check.found = facts.locked_memory ? to_string(Bytes{*facts.locked_memory}) : "unlimited";
  if (facts.rdma_devices.empty()) {
    check.found += "; no InfiniBand or RoCE here that would need it";
    return check;
  }
  check.found += "; adapters: " + join(facts.rdma_devices, ", ");
  if (!facts.locked_memory) return check;
  return check.judge(Verdict::warning, "unlimited, for memory that the adapters use",
                     "ulimit -l unlimited; memlock in /etc/security/limits.conf, docker --ulimit memlock=-1, "
                     "LimitMEMLOCK=infinity for slurmd or sshd");
}

Check check_open_files(CheckedJob const& job, MachineFacts const& facts) {
  Check check{.name = "open files"};
  check.found = text(number(facts.open_files), ", at most ", number(facts.most_open_files));
  std::size_t const needed = descriptors_needed(job.ranks);
  if (is_below(facts.most_open_files, needed)) {
    check.judge(Verdict::failed, text(needed, " for ddp-launch with ", ranks_of(job)),
                "raise the hard limit: nofile in /etc/security/limits.conf, docker --ulimit nofile=65536");
  } else if (is_below(facts.open_files, kOpenFiles)) {
    check.judge(Verdict::warning, text(kOpenFiles, " for each rank: NCCL and MPI open sockets to all others"),
                text("ulimit -n ", kOpenFiles));
  }
  return check;
}

Check check_nccl(CheckedJob const& job, MachineFacts const& facts) {
  Check check{.name = "NCCL"};
  std::string const& version = facts.nccl.version;
  std::string const& built = facts.built_with.nccl;
  check.found = version.empty() ? text("none: ", facts.nccl.problem) : text(version, ", ", facts.nccl.path);
  if (!built.empty()) check.found += "; built with " + built;
  if (job.gpus.empty()) {
    check.found += "; CPU ranks do without";
    return check;
  }
  if (version.empty()) {
    check.judge(
        Verdict::warning, text(built.empty() ? kLeastNccl : built, " or newer"),
        "install libnccl2, or put its folder into LD_LIBRARY_PATH; nothing, if the program knows its own");
  } else if (version_parts(version).empty() || is_older(version, kLeastNccl)) {
    check.judge(Verdict::failed, text(kLeastNccl, " or newer"),
                "update libnccl2, or put a newer one's folder first into LD_LIBRARY_PATH");
  } else if (is_older(version, built)) {
    check.judge(Verdict::warning, text(built, " or newer"), "update libnccl2, or build with the older one");
  }
  return check;
}

Check check_mpi(MachineFacts const& facts) {
  Check check{.name = "MPI"};
  bool const has_library = !facts.mpi.version.empty();
  bool const has_mpirun = !facts.mpirun.version.empty();
  check.found =
      has_library ? text(facts.mpi.version, ", ", facts.mpi.path) : text("no library: ", facts.mpi.problem);
  check.found += has_mpirun ? text("; ", facts.mpirun.path, ": ", facts.mpirun.version)
                            : text("; no mpirun: ", facts.mpirun.problem);
  if (!facts.built_with.mpi.empty()) check.found += "; built with " + facts.built_with.mpi;
  if (!has_library && !has_mpirun) {
    check.found += "; only ranks that mpirun or srun start need it";
    return check;
  }
  auto const is_open_mpi = [](std::string const& words) { return words.find("Open") != std::string::npos; };
  bool const open_library = is_open_mpi(facts.mpi.version);
  bool const open_mpirun = is_open_mpi(facts.mpirun.version);
  bool const same_version = version_parts(facts.mpi.version) == version_parts(facts.mpirun.version);
  if (!has_library) {
    if (facts.built_with.mpi.empty()) return check;
    check.judge(Verdict::warning, "the library that programs of this build were linked with",
                "install libopenmpi3 (libopenmpi3t64), or put its folder into LD_LIBRARY_PATH");
  } else if (has_mpirun && (open_library != open_mpirun || (open_library && !same_version))) {
    check.judge(Verdict::warning,
                "an mpirun of the library's version: with another, each rank is a world of its own",
                "put the mpirun that belongs to the library first into PATH");
  }
  return check;
}

}  // namespace ddp::launcher
