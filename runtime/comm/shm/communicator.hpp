// Ranks that share memory: processes of one host, or threads of one process.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "comm/host_communicator_base.hpp"
#include "comm/kernels/reduce_kernels.hpp"
#include "comm/shm/allocations.hpp"
#include "comm/shm/barrier.hpp"

namespace ddp {

/// Collectives through shared memory. Small ones copy into staging and reduce on every rank (one barrier);
/// larger all-reduces let each rank reduce its part of the elements for all ("two-shot"), straight from and
/// to the ranks' own memory where that is visible to all: memory from allocate(), or any memory when ranks
/// are threads. Large reduce-scatters and all-gathers take from such memory too. Sums are taken in rank
/// order, so a result does not depend on the path, the sizes of buckets, or timing.
class ShmCommunicator final : public HostCommunicatorBase {
 public:
  /// Owner of the region; shared by the communicators of all ranks if ranks are threads.
  using RegionOwner = std::shared_ptr<SharedMemory>;

  /// `in_process`: ranks are threads of this process.
  ShmCommunicator(RegionOwner memory, bool in_process, MemberGroup members, Device device);

  [[nodiscard]] std::string_view backend() const noexcept override;
  [[nodiscard]] std::unique_ptr<Communicator> split_off(std::span<Rank const> ranks) override;
  [[nodiscard]] Tensor allocate(Bytes bytes) override;
  void check_health() const override { barrier_.throw_if_failed(); }

  /// How this rank waits: Barrier::spins().
  [[nodiscard]] bool spins() const noexcept { return barrier_.spins(); }

  /// New memory for a region of `size` ranks.
  [[nodiscard]] static RegionOwner make_region(int size);

 private:
  // What other ranks need to map this rank's memory.
  struct Offer {
    SharedMemory::Handle handle;
    std::shared_ptr<SharedMemory>* shared = nullptr;  // ranks of one process take it from here
  };

  void run_collective(Operation const& operation) override;
  void fail(Failure const& failure) noexcept override { barrier_.fail(failure); }

  void announce(Operation const& operation);
  void compare_announcements();

  void all_reduce(Operation const& operation);
  void all_reduce_direct(Operation const& operation);
  void all_reduce_staged(Operation const& operation);
  void exchange(Operation const& operation);
  void exchange_direct(Operation const& operation);
  void stage_in(Operation const& operation, std::size_t offset, std::size_t length, std::byte* staging) const;
  void stage_out(Operation const& operation, std::size_t offset, std::size_t length, std::uint32_t stage);
  void reduce_staged(Operation const& operation, void* out, std::size_t stage_offset, std::size_t length,
                     std::uint32_t stage);
  template <class Rule>
  [[nodiscard]] bool every_rank(Rule rule) const;
  [[nodiscard]] bool direct_possible() const;
  [[nodiscard]] bool sees_every_in() const;
  [[nodiscard]] shm::Location locate(void const* data, std::size_t bytes) const;
  [[nodiscard]] shm::Announcement const& announcement(std::size_t rank) const;
  [[nodiscard]] std::shared_ptr<SharedMemory> take(Offer const& offer) const;

  RegionOwner memory_;
  bool in_process_;
  shm::Barrier barrier_;
  shm::Allocations allocations_;
  std::uint32_t announced_stage_ = 0;
  std::shared_ptr<SharedMemory> offered_;
  std::vector<ReduceSource> sources_;  // scratch, one per rank
  std::vector<void*> destinations_;
};

}  // namespace ddp
