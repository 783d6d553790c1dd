#include "launcher/mpirun/mpi_rank_guard.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <thread>

#include "bootstrap/server/rendezvous.hpp"
#include "bootstrap/wire.hpp"
#include "core/parse_number.hpp"
#include "core/record.hpp"
#include "core/system/host_identity.hpp"
#include "core/system/pidfd.hpp"
#include "ddp/core/deadline.hpp"
#include "ddp/core/error.hpp"
#include "ddp/core/text.hpp"
#include "launcher/plan/cores.hpp"
#include "launcher/plan/first_line.hpp"
#include "launcher/process/exit_code.hpp"
#include "launcher/process/guard.hpp"
#include "launcher/process/job_control.hpp"
#include "launcher/process/process_tree.hpp"
#include "launcher/process/spawn.hpp"

namespace ddp::launcher {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kBetweenLooks{5000};
constexpr milliseconds kWithoutPidfds{50};
constexpr milliseconds kAttempt{5000};
constexpr milliseconds kAttemptInHaste{700};
constexpr milliseconds kBetweenAttempts{1000};
constexpr milliseconds kCutOff{60000};

// What signal handlers know. Signals come in wait() only.
volatile std::sig_atomic_t told_to_end = 0;
volatile std::sig_atomic_t rank_runs = 0;
pid_t rank_process = 0;

/// mpirun kills its ranks, and this process, so long after it has told them to end: here a moment less.
milliseconds time_after_the_word() {
  char const* seconds = std::getenv("PRTE_MCA_odls_base_sigkill_timeout");  // Open MPI 5's
  if (seconds == nullptr) seconds = std::getenv("OMPI_MCA_odls_base_sigkill_timeout");
  return milliseconds(parse_number<int>(seconds != nullptr ? seconds : "").value_or(1) * 1000 - 200);
}

/// ".0.75a0001.3" of "vader_segment.node7.0.75a0001.3", or of "sm_segment…" in Open MPI 5: its shared-memory
/// transport makes that file in /dev/shm for local rank 3, and a killed daemon leaves it there. Empty outside
/// of mpirun.
std::string end_of_segment() {
  char const* const job = std::getenv("PMIX_NAMESPACE");
  char const* const local_rank = std::getenv("OMPI_COMM_WORLD_LOCAL_RANK");
  std::uint32_t const number = open_mpi_job_number(job != nullptr ? job : "");
  if (number == 0 || local_rank == nullptr) return {};
  Classic<std::ostringstream> end;
  end << '.' << geteuid() << '.' << std::hex << number << '.' << local_rank;
  return std::move(end).str();
}

void remove_segment(std::string const& end) {
  std::error_code ignored;
  for (auto const& entry : std::filesystem::directory_iterator("/dev/shm", ignored)) {
    std::string const name = entry.path().filename().string();
    bool const is_segment = name.starts_with("vader_segment.") || name.starts_with("sm_segment.");
    if (!end.empty() && is_segment && name.ends_with(end)) {
      std::filesystem::remove(entry.path(), ignored);
    }
  }
}

// "ompi.4711"
bool is_numbered(std::string_view name, std::string_view prefix) {
  return name.size() > prefix.size() && name.starts_with(prefix) &&
         name.find_first_not_of("0123456789", prefix.size()) == std::string_view::npos;
}

bool is_folder_of_daemons(std::filesystem::path const& path) {
  return path.filename().string().starts_with("ompi.");
}

/// The daemon's files, by a variable that mpirun gives its ranks: "/tmp/ompi.node7.0/jf.0", or of Open MPI 5
/// "/tmp/ompi.4711", and "/tmp/prted.4711" on another host. Empty if its form is unexpected.
std::filesystem::path files_of_daemon() {
  char const* const folder = std::getenv("PMIX_SERVER_TMPDIR");
  std::filesystem::path const path(folder != nullptr ? folder : "");
  std::string const name = path.filename();
  bool const of_a_job = name.starts_with("jf.") && is_folder_of_daemons(path.parent_path());
  bool const of_five = is_numbered(name, "prted.") || is_numbered(name, "ompi.");
  return path.is_absolute() && (of_a_job || of_five) ? path : std::filesystem::path{};
}

/// mpirun's daemon on this host, or on its own host mpirun itself.
class Daemon {
 public:
  explicit Daemon(pid_t pid) : pid_(pid), process_(open_pidfd(pid)) {}

  [[nodiscard]] bool has_ended() const { return getppid() != pid_; }
  [[nodiscard]] int descriptor() const noexcept { return process_.get(); }
  /// Not mpirun itself.
  void end_if_on_another_host() const {
    std::string const name = first_line_of_file(text("/proc/", pid_, "/comm"));
    if (has_ended() || (name != "orted" && name != "prted")) return;
    kill(pid_, SIGKILL);
    for (Deadline const deadline = Deadline::after(kTimeToEnd); !has_ended() && !deadline.expired();) {
      std::this_thread::sleep_for(milliseconds(10));
    }
  }
  /// A daemon that ended in order has left nothing.
  void remove_files() const {
    std::error_code ignored;
    if (!has_ended() || files_.empty()) return;
    std::filesystem::remove_all(files_, ignored);
    auto const parent = files_.parent_path();
    if (is_folder_of_daemons(parent)) std::filesystem::remove(parent, ignored);  // if it is empty
  }

 private:
  pid_t pid_;
  FileDescriptor process_;
  std::filesystem::path files_ = files_of_daemon();
};

/// Until `descriptor` is readable, the daemon has ended, a signal comes, or the time is over.
void wait(Daemon const& daemon, int descriptor, milliseconds most) {
  int const still_there = daemon.has_ended() ? -1 : daemon.descriptor();
  std::array<pollfd, 2> ends{pollfd{still_there, POLLIN, 0}, pollfd{descriptor, POLLIN, 0}};
  bool const both = daemon.descriptor() >= 0 && descriptor >= 0;
  most = std::max(milliseconds(0), both ? most : std::min(most, kWithoutPidfds));
  timespec const time{most.count() / 1000, most.count() % 1000 * 1'000'000};
  sigset_t none;
  sigemptyset(&none);
  static_cast<void>(ppoll(ends.data(), ends.size(), &time, &none));
}

[[noreturn]] void become(std::string const& program, std::vector<std::string> const& command,
                         std::vector<int> const& cpus, pid_t guard) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != guard) _exit(exit_code::kSignalBase + SIGKILL);  // it is gone already
  stay_on(cpu_mask(cpus));
  auto const arguments = pointers(command);
  execv(program.c_str(), arguments.data());
  int const problem = errno;
  std::fprintf(stderr, "ddp-launch: %s could not be started: %s\n", program.c_str(), std::strerror(problem));
  std::fflush(stderr);
  _exit(exec_failure_code(problem));
}

/// A signal reaches the rank too, unless it has made a process group of its own, as `timeout` does.
void pass_on(int signal) {
  if (signal == SIGTERM) told_to_end = 1;
  if (rank_runs != 0) kill(-rank_process, signal);
}

void become_guard(pid_t rank) {
  rank_process = rank;
  rank_runs = 1;
  name_guard_process();
  prctl(PR_SET_CHILD_SUBREAPER, 1);  // what the rank leaves behind becomes a child of this process
  sigset_t passed;
  sigemptyset(&passed);
  for (int const signal : kJobSignals) {
    sigaddset(&passed, signal);
    std::signal(signal, pass_on);
  }
  sigprocmask(SIG_BLOCK, &passed, nullptr);
  FileDescriptor const null(open("/dev/null", O_RDWR | O_CLOEXEC));
  for (int const standard : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) dup2(null.get(), standard);
}

/// What the rank has left in this process's group, or in a group or session of its own.
void end_children() {
  end_processes(&children_of_this_process, [](ProcessEntry const& process) {
    return process.group == getpgrp() || process.group == rank_process || process.session == rank_process;
  });
}

bool is_told_to_end() {
  sigset_t pending;
  sigpending(&pending);
  return told_to_end != 0 || sigismember(&pending, SIGTERM) == 1;
}

RankEnd await_end(pid_t child, Daemon const& daemon) {
  FileDescriptor const process = open_pidfd(child);
  OomLooks oom;
  RankEnd end;
  std::optional<Deadline> last_moment;
  while (waitpid(child, &end.status, WNOHANG) == 0) {
    oom.look(Clock::now());
    if (told_to_end != 0 && !last_moment) last_moment = Deadline::after(time_after_the_word());
    if (daemon.has_ended()) {
      end.why = RankEnd::Why::without_mpirun;
      last_moment = Deadline::after(milliseconds(0));
    }
    auto most = last_moment ? last_moment->remaining() : kBetweenLooks;
    if (last_moment && last_moment->expired()) {
      kill(child, SIGKILL);
      most = milliseconds(10);
    }
    wait(daemon, process.get(), most);
  }
  rank_runs = 0;
  // A daemon that ends in order tells its ranks first.
  if (is_told_to_end() && WIFSIGNALED(end.status)) end.why = RankEnd::Why::told_to;
  if (end.status != 0) end.oom = oom.at_a_failure(Clock::now());
  return end;
}

/// mpirun, or its daemon here, ends the ranks, and waits for this process.
bool is_in_haste(Daemon const& daemon) { return is_told_to_end() || daemon.has_ended(); }

/// Tells ddp-launch, and waits for the answer if there is time. Returns whether it is told.
bool tell_once(Invitation const& launcher, std::string const& frame, Daemon const& daemon) {
  FileDescriptor const socket =
      launcher.connect(Deadline::after(is_in_haste(daemon) ? kAttemptInHaste : kAttempt));
  if (send(socket.get(), frame.data(), frame.size(), MSG_NOSIGNAL) != std::ssize(frame)) return false;
  for (std::array<char, 256> answer{}; !is_in_haste(daemon); wait(daemon, socket.get(), kBetweenLooks)) {
    ssize_t const count = recv(socket.get(), answer.data(), answer.size(), MSG_DONTWAIT);
    if (count >= 0 || (errno != EAGAIN && errno != EINTR)) return count > 0;
  }
  return true;
}

/// Ends a daemon that the network has cut off. A ddp-launch that is there and does not answer is stopped.
void tell_launcher(std::string const& invitation, std::string const& frame, Daemon const& daemon) try {
  Invitation const launcher = Invitation::parse(invitation);
  for (Deadline cut_off = Deadline::after(kCutOff);; wait(daemon, daemon.descriptor(), kBetweenAttempts)) {
    try {
      if (tell_once(launcher, frame, daemon)) return;
    } catch (Error const& error) {
      if (failure_of(error).manner == Failure::Manner::stopped) cut_off = Deadline::after(kCutOff);
    }
    if (is_in_haste(daemon)) return;
    if (cut_off.expired()) return daemon.end_if_on_another_host();
  }
} catch (Error const&) {  // nobody is to be told
}

}  // namespace

std::uint32_t open_mpi_job_number(std::string const& name) {
  std::size_t const at = name.rfind('@');
  if (at == std::string::npos) return parse_number<std::uint32_t>(name).value_or(0);
  std::uint32_t hash = 0;  // Jenkins's "one at a time"
  for (char const each : name.substr(0, at)) {
    hash += static_cast<unsigned char>(each);
    hash += hash << 10;
    hash ^= hash >> 6;
  }
  hash += hash << 3;
  hash ^= hash >> 11;
  hash += hash << 15;
  constexpr std::uint32_t kLow = 0xffff;
  std::uint32_t const number = parse_number<std::uint32_t>(name.substr(at + 1)).value_or(0);
  return ((hash >> 16) ^ (hash & kLow)) << 16 | (number & kLow);
}

std::string encode_rank_end(RankEnd const& end) {
  std::string words = record(end.status, static_cast<int>(end.why), static_cast<int>(end.device.kind),
                             end.device.index.value(), end.gpu);
  if (!end.oom) return words;
  std::string const oom =
      record(end.oom->before.file, end.oom->before.count, end.oom->after, end.oom->within.count());
  return words.size() + oom.size() <= wire::kLongestEnd ? words + oom : words;
}

RankEnd decode_rank_end(std::string const& words) {
  RankEnd end;
  int why = 0;
  int kind = 0;
  int index = 0;
  RecordReader in(words);
  if (!(in >> end.status >> why >> kind >> index >> end.gpu) || why < 0 || why > 2 || kind < 0 || kind > 1) {
    throw Error(ErrorCode::protocol, text("a guard tells of its rank's end \"", words,
                                          "\"; is ddp-launch of the same version on every host?"));
  }
  end.why = static_cast<RankEnd::Why>(why);
  end.device = {static_cast<DeviceKind>(kind), DeviceIndex{index}};
  OomWatch oom;
  std::int64_t within = 0;
  if (in >> oom.before.file >> oom.before.count >> oom.after >> within) {
    oom.within = std::chrono::seconds(within);
    end.oom = std::move(oom);
  }
  return end;
}

int run_guarded(std::string const& program, std::vector<std::string> const& command,
                PlannedRank const& planned, RankInfo const& place, pid_t parent) {
  if (getpgrp() != getpid()) setpgid(0, 0);
  Daemon const daemon(parent);
  std::string const segment = end_of_segment();
  pid_t const guard = getpid();
  pid_t const child = fork_guard();
  if (child == 0) become(program, command, planned.cpus, guard);
  become_guard(child);
  RankEnd end = await_end(child, daemon);
  end_children();
  remove_segment(segment);
  end.device = planned.device;
  end.gpu = planned.gpu.value;
  wire::Join const who{place.rank, place.size, place.generation, child, ddp::host_name(host_identity())};
  tell_launcher(place.control,
                wire::encode({wire::Type::ended, 1, encode_rank_end(end), wire::encode_join(who)}), daemon);
  daemon.remove_files();
  return WIFEXITED(end.status) ? WEXITSTATUS(end.status) : exit_code::kSignalBase + WTERMSIG(end.status);
}

}  // namespace ddp::launcher
