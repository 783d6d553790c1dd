// Ranks that may be on several hosts.
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bootstrap/server/hosted_server.hpp"
#include "bootstrap/server/server_client.hpp"

namespace ddp {

/// A client of a server in rank 0's process, which is started through MPI, or by address; or of ddp-launch,
/// which started mpirun.
class HostedControl final : public ServerClient {
 public:
  /// How the job was started.
  struct Start {
    std::shared_ptr<HostedServer> server = nullptr;  ///< of rank 0
    bool is_mpi = false;                             ///< the ranks are MPI's too, with the same numbers
    void const* mpi_comm = nullptr;                  ///< their MPI_Comm; null: MPI_COMM_WORLD
    bool server_is_here = false;                     ///< on this host, and knows which ranks are stopped
    std::function<void()> left = [] {};              ///< called when this rank has left in order
  };

  /// As ServerClient. Collective: returns when all ranks have joined.
  HostedControl(RankInfo const& info, FileDescriptor socket, Server server, Start start, Deadline deadline);

  void report_error(Failure const& failure) noexcept override;
  void leave() noexcept override;
  [[nodiscard]] RankInfo completed(RankInfo info) const override;
  /// The host's name of each rank.
  [[nodiscard]] std::vector<std::string> const& host_names() const noexcept { return host_names_; }
  /// The process of another rank of this host; 0 for all other ranks.
  [[nodiscard]] pid_t process_of(Rank other) const noexcept;
  [[nodiscard]] bool is_mpi() const noexcept { return start_.is_mpi; }
  [[nodiscard]] void const* mpi_comm() const noexcept { return start_.mpi_comm; }

 protected:
  [[nodiscard]] Outcome ask(wire::Frame request, Deadline deadline) override;

 private:
  void meet_others(Deadline deadline);

  Start start_;
  std::map<Rank, pid_t> here_;  // on this host
  std::vector<std::string> host_names_;
};

/// "; rank 1 runs on node7", for a message about ranks; empty where all ranks of the job are on one host.
[[nodiscard]] std::string hosts_of(ControlPlane const& control, std::span<Rank const> ranks);

/// note_stopped() for those of `ranks` that are on this host; nothing where their processes are not known.
void note_stopped(Failure& failure, ControlPlane const& control, std::span<Rank const> ranks);

/// Whether these ranks are MPI's, with the same numbers.
[[nodiscard]] bool is_mpi(ControlPlane const& control) noexcept;
/// Then the MPI_Comm of all of them; null: MPI_COMM_WORLD.
[[nodiscard]] void const* mpi_comm(ControlPlane const& control) noexcept;

}  // namespace ddp
