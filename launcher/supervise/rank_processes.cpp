#include "launcher/supervise/rank_processes.hpp"

#include <sys/prctl.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <thread>

#include "ddp/core/deadline.hpp"
#include "launcher/process/process_tree.hpp"

namespace ddp::launcher {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLeftoverTime{2000};

bool runs(Child const& child) { return static_cast<bool>(child.pidfd); }

}  // namespace

RankProcesses::RankProcesses() {
  // The guard knows the directory before it exists, so that a killed launcher never leaves it behind.
  guard_ = std::make_unique<Guard>(directory_.path());
  directory_.make();
  prctl(PR_SET_CHILD_SUBREAPER, 1);  // what ranks leave behind becomes a child of this process
}

std::size_t RankProcesses::running() const noexcept {
  return static_cast<std::size_t>(std::ranges::count_if(children_, runs));
}

void RankProcesses::send(int signal) const {
  for (Child const& child : children_) {
    if (runs(child)) signal_group(child, signal);
  }
}

std::optional<ProcessEnd> RankProcesses::end_of(std::size_t index) const {
  Child const& child = children_[index];
  siginfo_t info{};
  bool const known = runs(child) && waitid(P_PIDFD, static_cast<id_t>(child.pidfd.get()), &info,
                                           WEXITED | WNOHANG | WNOWAIT) == 0;
  if (!known || info.si_pid == 0) return std::nullopt;
  ProcessEnd end;
  (info.si_code == CLD_EXITED ? end.exit_code : end.signal) = info.si_status;
  end.core_dumped = info.si_code == CLD_DUMPED;
  return end;
}

void RankProcesses::reap(std::size_t index) {
  Child& child = children_[index];
  end_leftovers(child.pid);
  waitpid(child.pid, nullptr, 0);
  guard_->forget(child.pid);
  child.pidfd.reset();
}

void RankProcesses::reap_others() {
  for (pid_t const pid : children_of_this_process()) {
    if (is_adopted(pid)) waitpid(pid, nullptr, WNOHANG);
  }
  if (!guard_->has_ended()) return;
  guard_ = std::make_unique<Guard>(directory_.path());
  for (Child const& child : children_) {
    if (runs(child)) guard_->watch(child.pid);
  }
}

void RankProcesses::end_all() {
  std::vector<pid_t> remaining;
  for (Child& child : children_) {
    if (!runs(child)) continue;
    remaining.push_back(child.pid);
    child.pidfd.reset();
  }
  if (remaining.empty()) return;
  end_sessions(remaining, Deadline::after(kLeftoverTime));
  for (pid_t const pid : remaining) waitpid(pid, nullptr, WNOHANG);
}

bool RankProcesses::is_adopted(pid_t pid) const noexcept {
  auto const is_it = [pid](Child const& child) { return runs(child) && child.pid == pid; };
  return pid != guard_->pid() && std::ranges::none_of(children_, is_it);
}

void RankProcesses::end_leftovers(pid_t session) const {
  Deadline const deadline = Deadline::after(kLeftoverTime);
  kill(-session, SIGKILL);
  for (bool someone_lives = true; someone_lives && !deadline.expired();) {
    someone_lives = false;
    for (pid_t const pid : children_of_this_process()) {
      if (!is_adopted(pid)) continue;
      ProcessEntry const process = read_process(pid);
      if (process.zombie) {
        waitpid(pid, nullptr, WNOHANG);
      } else if (process.session == session) {
        if (!is_cleaning_up(pid, deadline)) kill(pid, SIGKILL);
        someone_lives = true;
      }
    }
    if (someone_lives) std::this_thread::sleep_for(milliseconds(1));
  }
}

}  // namespace ddp::launcher
