// Ranks that mpirun, srun or another process manager of MPI started.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bootstrap/control_client.hpp"
#include "bootstrap/letters.hpp"
#include "bootstrap/mpi/lifelines.hpp"
#include "bootstrap/mpi/messages.hpp"
#include "bootstrap/mpi/server.hpp"
#include "core/system/file_descriptor.hpp"

namespace ddp {

/// A control plane over MPI: requests go to a thread of rank 0. Its ranks are those of MPI_COMM_WORLD.
///
/// MPI does not tell of dead ranks: mpirun kills the job when one dies. lost() knows who left in order, which
/// processes of this host have ended otherwise, and through rank 0 which ones of other hosts have
/// (Lifelines).
class MpiControl final : public ControlClient {
 public:
  /// Starts MPI in this process. Throws Error(unsupported) if MPI's ranks are not those that the environment
  /// tells of, CommError(timeout). Where MPI_Init itself hangs past the deadline, the process ends with a
  /// report.
  [[nodiscard]] static std::shared_ptr<MpiControl> join(RankInfo const& info, Deadline deadline);
  ~MpiControl() override;

  [[nodiscard]] std::vector<Failure> lost() const override;
  [[nodiscard]] bool delivers_letters() const noexcept override { return true; }
  void post(Rank to, std::string_view channel, std::string_view bytes) override;
  [[nodiscard]] std::optional<Letter> take(std::string_view channel) override;
  void report_error(Failure const& failure) noexcept override;
  /// Writes it into the flight recorder, which a ddp-launch that started mpirun on this host reads.
  void report_progress(Progress const& progress) noexcept override;
  void leave() noexcept override;
  [[nodiscard]] RankInfo completed(RankInfo info) const override;
  /// The host's name of each rank.
  [[nodiscard]] std::vector<std::string> const& host_names() const noexcept { return host_names_; }
  /// The process of another rank of this host; 0 for all other ranks.
  [[nodiscard]] pid_t process_of(Rank rank) const noexcept;

 protected:
  [[nodiscard]] Outcome ask(Request const& request, Deadline deadline) override;

 private:
  MpiControl(RankInfo const& info, Deadline deadline);

  // A rank of this host, the own one aside.
  struct Neighbour {
    Rank rank;
    int pid = 0;
    FileDescriptor pidfd;
  };
  void meet_others(Deadline deadline);
  void watch_other_hosts(bool with_server, Deadline deadline);
  [[nodiscard]] std::optional<Outcome> answer_to(std::uint64_t request);
  void send(wire::Frame const& frame) const;
  [[nodiscard]] bool is_lost(Rank other) const;
  void hear_news() const;

  std::string error_file_;
  std::shared_ptr<mpi::Messages> messages_;
  std::shared_ptr<MpiServer> server_;  // of rank 0
  std::unique_ptr<mpi::Stay> stay_;
  mutable Lifeline lifeline_;  // of ranks on other hosts than rank 0's
  std::vector<Neighbour> neighbours_;
  std::vector<std::string> host_names_;
  LocalRank local_rank_;
  int local_size_ = 1;
  Letters letters_;
  mutable std::mutex mutex_;
  mutable std::vector<Failure> lost_;
  bool has_left_ = false;
  std::uint64_t next_request_ = 1;
};

/// "; rank 1 runs on node7", for a message about ranks; empty where all ranks of the job are on one host.
[[nodiscard]] std::string hosts_of(ControlPlane const& control, std::span<Rank const> ranks);

/// note_stopped() for those of `ranks` that are on this host; nothing if is_mpi() is false.
void note_stopped(Failure& failure, ControlPlane const& control, std::span<Rank const> ranks);

/// Whether these ranks are MPI's, with the same numbers.
[[nodiscard]] bool is_mpi(ControlPlane const& control) noexcept;

/// In builds without MPI: throws Error(unsupported) with what works instead.
[[nodiscard]] std::shared_ptr<ControlPlane> connect_mpi_control(RankInfo const& info, Deadline deadline);

}  // namespace ddp
