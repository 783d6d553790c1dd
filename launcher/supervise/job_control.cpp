#include "launcher/supervise/job_control.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>

namespace ddp::launcher {
namespace {

constexpr std::array kOfTheJob{SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGTSTP};

}  // namespace

void reset_signals() noexcept {
  for (int signal = 1; signal < NSIG; ++signal) {
    if (std::find(kOfTheJob.begin(), kOfTheJob.end(), signal) != kOfTheJob.end()) continue;
    struct sigaction action {};
    if (sigaction(signal, nullptr, &action) != 0 || action.sa_handler != SIG_IGN) continue;
    action.sa_handler = SIG_DFL;
    sigaction(signal, &action, nullptr);
  }
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
}

HeldStopKey::HeldStopKey() noexcept {
  struct sigaction action {};
  sigaction(SIGTSTP, nullptr, &action);
  sigset_t held;
  sigemptyset(&held);
  if (action.sa_handler != SIG_IGN) sigaddset(&held, SIGTSTP);
  sigprocmask(SIG_BLOCK, &held, &former_);
}

HeldStopKey::~HeldStopKey() { sigprocmask(SIG_SETMASK, &former_, nullptr); }

bool stdin_is_the_jobs() noexcept {
  return isatty(STDIN_FILENO) == 0 || tcgetpgrp(STDIN_FILENO) == getpgrp();
}

}  // namespace ddp::launcher
