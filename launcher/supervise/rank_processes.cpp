#include "launcher/supervise/rank_processes.hpp"

#include <sys/prctl.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>

#include "launcher/process/process_tree.hpp"

namespace ddp::launcher {
namespace {

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

void RankProcesses::send(std::size_t index, int signal) const {
  if (runs(children_[index])) signal_group(children_[index], signal);
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
  kill(-child.pid, SIGKILL);
  end_processes([this] { return adopted(); },
                [&](ProcessEntry const& process) { return process.session == child.pid; });
  waitpid(child.pid, nullptr, 0);
  guard_->forget(child.pid);
  child.pidfd.reset();
}

void RankProcesses::reap_others() {
  for (pid_t const pid : adopted()) waitpid(pid, nullptr, WNOHANG);
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
  end_sessions(remaining);
  for (pid_t const pid : remaining) waitpid(pid, nullptr, WNOHANG);
}

std::vector<pid_t> RankProcesses::adopted() const {
  auto pids = children_of_this_process();
  std::erase_if(pids, [this](pid_t pid) {
    auto const is_it = [pid](Child const& child) { return runs(child) && child.pid == pid; };
    return pid == guard_->pid() || std::ranges::any_of(children_, is_it);
  });
  return pids;
}

}  // namespace ddp::launcher
