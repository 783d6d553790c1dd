// What a process owes to, and is owed by, whoever started it: signals, and the terminal.
#pragma once

#include <csignal>

namespace ddp::launcher {

/// No signal is ignored or blocked from here on, whatever a supervisor left behind: with SIGCHLD ignored no
/// child could be waited for. What ends, stops or notifies a job stays ignored where it is (nohup). System
/// calls only.
void reset_signals() noexcept;

/// Signals that the supervisor reads: SIGCHLD, and of SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2
/// those that the launcher was not told to ignore (nohup).
[[nodiscard]] sigset_t watched_signals();

/// Whether stdin is for the job: no terminal, or one in whose foreground this process is. What is typed
/// otherwise is meant for the shell, though a rank, in a session of its own, could read it.
[[nodiscard]] bool stdin_is_the_jobs() noexcept;

/// While it lives, SIGTSTP waits for whoever reads it from a signalfd, instead of stopping this process at
/// once; unless it is ignored.
class HeldStopKey {
 public:
  HeldStopKey() noexcept;
  ~HeldStopKey();
  HeldStopKey(HeldStopKey const&) = delete;
  HeldStopKey& operator=(HeldStopKey const&) = delete;

 private:
  sigset_t former_{};
};

/// As the SIGTSTP does that was read instead of taken, while a HeldStopKey lives. Returns when somebody sends
/// SIGCONT: the shell's fg or bg. Where there is no shell that could (xterm -e, ssh -t, a session's leader),
/// the kernel discards SIGTSTP, though not SIGSTOP, and this returns at once.
void stop_this_process();

}  // namespace ddp::launcher
