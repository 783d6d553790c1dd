#include "comm/shm/allocations.hpp"

#include <algorithm>

namespace ddp::shm {

std::shared_ptr<Allocation> Allocations::add(Allocation allocation) {
  auto added = std::make_shared<Allocation>(std::move(allocation));
  std::erase_if(living_, [](auto const& old) { return old.expired(); });
  living_.push_back(added);
  return added;
}

Location Allocations::locate(std::size_t rank, void const* data, std::size_t bytes) const noexcept {
  auto const begin = reinterpret_cast<std::uintptr_t>(data);
  for (auto const& candidate : living_) {
    auto const allocation = candidate.lock();
    if (!allocation) continue;
    auto const part = reinterpret_cast<std::uintptr_t>(allocation->parts[rank]);
    if (begin >= part && begin + bytes <= part + allocation->bytes) return {allocation->id, begin - part};
  }
  return {};
}

std::byte* Allocations::resolve(std::size_t rank, Location location) const noexcept {
  if (location.allocation == Location::kProcess) return reinterpret_cast<std::byte*>(location.offset);
  for (auto const& candidate : living_) {
    auto const allocation = candidate.lock();
    if (allocation && allocation->id == location.allocation) return allocation->parts[rank] + location.offset;
  }
  return nullptr;
}

}  // namespace ddp::shm
