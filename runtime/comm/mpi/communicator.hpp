// CPU ranks of any hosts, over MPI.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "comm/host_communicator_base.hpp"
#include "comm/kernels/reduce_kernels.hpp"
#include "comm/mpi/group.hpp"

namespace ddp {

/// Collectives as messages of MPI. Reductions do not use MPI's own: every rank gets its part of the elements
/// from all ranks, reduces them in rank order with the kernels of ShmCommunicator, and passes the result on.
/// So both give the same bits, 16-bit floats are rounded once, and each rank has a factor of its own; it
/// sends as many bytes as a ring does. Only a large operation that is under way when a process ends cannot be
/// abandoned (mpi::Group).
class MpiCommunicator final : public HostCommunicatorBase {
 public:
  /// Takes `comm`. Otherwise as mpi::Group.
  MpiCommunicator(MPI_Comm comm, std::uint64_t id, MemberGroup members);

  [[nodiscard]] std::string_view backend() const noexcept override { return "mpi"; }
  [[nodiscard]] std::unique_ptr<Communicator> split_off(std::span<Rank const> ranks) override;
  [[nodiscard]] Tensor allocate(Bytes bytes) override;
  void check_health() const override { group_.throw_if_failed(); }

 private:
  void run_collective(Operation const& operation) override;
  void fail(Failure const& failure) noexcept override { group_.fail(failure); }

  void all_reduce(Operation const& operation);
  void reduce(Operation const& operation);
  void reduce_scatter(Operation const& operation);
  void exchange_blocks(Operation const& operation);
  void broadcast(Operation const& operation);

  // One step of a collective: messages to and from all peers at once. None go to this rank itself.
  void give(std::size_t peer, void const* data, std::size_t bytes);
  void get(std::size_t peer, void* data, std::size_t bytes);
  void note(int result, char const* doing, std::size_t peer);
  void finish_step();

  void collect_parts(Operation const& operation, void const* mine, std::size_t length);
  template <class Use>
  void exchange_parts(Operation const& operation, Use const& use);
  void reduce_collected(Operation const& operation, void const* mine, void* out, std::size_t length);
  [[nodiscard]] std::byte* scratch(std::size_t bytes);

  mutable mpi::Group group_;
  std::vector<MPI_Request> requests_;    // of the step
  std::vector<MPI_Status> statuses_;     // of each request, where MPI_Testall says so
  std::optional<std::size_t> lost_;      // of whom MPI has said that it has gone
  std::vector<std::size_t> step_peers_;  // of each request
  std::vector<std::byte> scratch_;
  std::vector<double> factors_;
  std::vector<ReduceSource> sources_;
};

}  // namespace ddp
