// What a process owes to, and is owed by, whoever started it: signals, and the terminal.
#pragma once

#include <csignal>

namespace ddp::launcher {

/// No signal is ignored or blocked from here on, whatever a supervisor left behind: with SIGCHLD ignored no
/// child could be waited for. What ends, stops or notifies a job stays ignored where it is (nohup). System
/// calls only.
void reset_signals() noexcept;

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

}  // namespace ddp::launcher
