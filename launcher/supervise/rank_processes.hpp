// The processes of a job on this host; none may stay behind.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "launcher/process/control_directory.hpp"
#include "launcher/process/guard.hpp"
#include "launcher/process/spawn.hpp"

namespace ddp::launcher {

/// How a process ended.
struct ProcessEnd {
  int exit_code = 0;  ///< if no signal ended it
  int signal = 0;     ///< or 0
  bool core_dumped = false;
};

/// The processes of the ranks, or of mpirun, in the order of their start, with processes that they leave
/// behind and their control directory. A guard ends all of it when this process is killed.
class RankProcesses {
 public:
  /// Starts the guard, makes the directory, and adopts processes that ranks leave behind. Throws ExitError.
  RankProcesses();
  /// As end_all(); then removes the directory, and ends the guard last.
  ~RankProcesses() { end_all(); }
  RankProcesses(RankProcesses const&) = delete;
  RankProcesses& operator=(RankProcesses const&) = delete;

  [[nodiscard]] std::string const& directory() const noexcept { return directory_.path(); }
  /// For SpawnRequest.
  [[nodiscard]] int guard_fd() const noexcept { return guard_->fd(); }

  void add(Child child) { children_.push_back(std::move(child)); }
  /// In the place of one that is reaped.
  void replace(std::size_t index, Child child) { children_[index] = std::move(child); }
  [[nodiscard]] pid_t pid(std::size_t index) const noexcept { return children_[index].pid; }
  /// Readable when that process has ended; -1 once it is reaped, or given up by end_all().
  [[nodiscard]] int pidfd(std::size_t index) const noexcept { return children_[index].pidfd.get(); }
  /// Processes that are neither reaped nor given up by end_all().
  [[nodiscard]] std::size_t running() const noexcept;
  /// Sends a signal to their process groups, or to that of one.
  void send(int signal) const;
  void send(std::size_t index, int signal) const;

  /// nullopt while it runs. Until reap() no other process gets its number or its group's.
  [[nodiscard]] std::optional<ProcessEnd> end_of(std::size_t index) const;
  /// Of a process that has ended: kills what is left in its session.
  void reap(std::size_t index);
  /// At SIGCHLD: reaps adopted processes, and replaces the guard if somebody killed it.
  void reap_others();
  /// Kills all that is left, and waits a moment for its end. Safe to call again.
  void end_all();

 private:
  /// Children of this process that it did not start.
  [[nodiscard]] std::vector<pid_t> adopted() const;

  std::unique_ptr<Guard> guard_;  ///< destroyed last
  ControlDirectory directory_;
  std::vector<Child> children_;
};

}  // namespace ddp::launcher
