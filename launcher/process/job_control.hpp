// What this process shares with whoever started it: signals, and the terminal.
#pragma once

#include <array>
#include <csignal>

namespace ddp::launcher {

/// Signals that end or notify a job.
inline constexpr std::array kJobSignals{SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};

/// From here on no signal is ignored or blocked, whatever a supervisor left: with SIGCHLD ignored this could
/// not wait for children. Those of a job, and SIGTSTP, stay ignored (nohup). System calls only.
void reset_signals() noexcept;

/// Signals that the supervisor reads: SIGCHLD, and those of a job that are not ignored (nohup).
[[nodiscard]] sigset_t watched_signals();

/// Whether stdin is for the job: it is no terminal, or this process is in the terminal's foreground.
/// Otherwise the shell should get what is typed, but a rank, which has a session of its own, could read it.
[[nodiscard]] bool stdin_is_the_jobs() noexcept;

/// While it lives, signals that a terminal sends besides SIGINT are held for a reader of a signalfd: SIGTSTP,
/// unless it is ignored, and SIGWINCH.
class HeldTerminalSignals {
 public:
  HeldTerminalSignals() noexcept;
  ~HeldTerminalSignals();
  HeldTerminalSignals(HeldTerminalSignals const&) = delete;
  HeldTerminalSignals& operator=(HeldTerminalSignals const&) = delete;

 private:
  sigset_t former_{};
};

/// Stops this process, as the SIGTSTP would have that a HeldTerminalSignals held back. Returns on SIGCONT,
/// from the shell's fg or bg. Where no shell could send SIGCONT (xterm -e, ssh -t, a session's leader), the
/// kernel discards SIGTSTP, and this returns at once.
void stop_this_process();

}  // namespace ddp::launcher
