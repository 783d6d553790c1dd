// Memory made by allocate(): every rank's part of it is mapped by all ranks.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/shared_memory.hpp"
#include "comm/shm/region.hpp"

namespace ddp::shm {

/// One collective allocation. Ranks of one process share the mappings.
struct Allocation {
  std::int64_t id = 0;
  std::size_t bytes = 0;                                ///< of each rank's part
  std::vector<std::byte*> parts;                        ///< by rank, as addresses of this process
  std::vector<std::shared_ptr<SharedMemory>> mappings;  ///< what keeps them mapped
};

/// The living segments of one communicator.
class Allocations {
 public:
  [[nodiscard]] std::int64_t next_id() noexcept { return ++last_id_; }
  /// The allocation lives while the returned pointer, or a copy, does.
  std::shared_ptr<Allocation> add(Allocation allocation);
  /// Where [data, data + bytes) lies in this rank's part of a living allocation; kPrivate if in none.
  [[nodiscard]] Location locate(std::size_t rank, void const* data, std::size_t bytes) const noexcept;
  /// The address of a location of `rank`. The allocation must be alive in this process.
  [[nodiscard]] std::byte* resolve(std::size_t rank, Location location) const noexcept;

 private:
  std::int64_t last_id_ = Location::kProcess;
  std::vector<std::weak_ptr<Allocation>> living_;
};

}  // namespace ddp::shm
