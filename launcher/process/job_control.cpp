#include "launcher/process/job_control.hpp"

#include <unistd.h>

#include <algorithm>

namespace ddp::launcher {

void reset_signals() noexcept {
  for (int signal = 1; signal < NSIG; ++signal) {
    if (signal == SIGTSTP || std::ranges::find(kJobSignals, signal) != kJobSignals.end()) continue;
    struct sigaction action {};
    if (sigaction(signal, nullptr, &action) != 0 || action.sa_handler != SIG_IGN) continue;
    action.sa_handler = SIG_DFL;
    sigaction(signal, &action, nullptr);
  }
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
}

sigset_t watched_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGCHLD);
  for (int const signal : kJobSignals) {
    struct sigaction action {};
    sigaction(signal, nullptr, &action);
    if (action.sa_handler != SIG_IGN) sigaddset(&set, signal);
  }
  return set;
}

bool stdin_is_the_jobs() noexcept {
  return isatty(STDIN_FILENO) == 0 || tcgetpgrp(STDIN_FILENO) == getpgrp();
}

HeldTerminalSignals::HeldTerminalSignals() noexcept {
  struct sigaction action {};
  sigaction(SIGTSTP, nullptr, &action);
  sigset_t held;
  sigemptyset(&held);
  if (action.sa_handler != SIG_IGN) sigaddset(&held, SIGTSTP);
  sigaddset(&held, SIGWINCH);
  sigprocmask(SIG_BLOCK, &held, &former_);
}

HeldTerminalSignals::~HeldTerminalSignals() { sigprocmask(SIG_SETMASK, &former_, nullptr); }

void stop_this_process() {
  sigset_t stop_key;
  sigset_t former;
  sigemptyset(&stop_key);
  sigaddset(&stop_key, SIGTSTP);
  raise(SIGTSTP);  // it waits, since it is blocked
  sigprocmask(SIG_UNBLOCK, &stop_key, &former);
  sigprocmask(SIG_SETMASK, &former, nullptr);
}

}  // namespace ddp::launcher
