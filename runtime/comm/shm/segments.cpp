#include "comm/shm/segments.hpp"

#include <algorithm>

namespace ddp::shm {

std::shared_ptr<Segment> Segments::add(Segment segment) {
  auto added = std::make_shared<Segment>(std::move(segment));
  std::erase_if(living_, [](auto const& old) { return old.expired(); });
  living_.push_back(added);
  return added;
}

Location Segments::locate(std::size_t rank, void const* data, std::size_t bytes) const noexcept {
  auto const begin = reinterpret_cast<std::uintptr_t>(data);
  for (auto const& candidate : living_) {
    auto const segment = candidate.lock();
    if (!segment) continue;
    auto const part = reinterpret_cast<std::uintptr_t>(segment->parts[rank]);
    if (begin >= part && begin + bytes <= part + segment->bytes) return {segment->id, begin - part};
  }
  return {};
}

std::byte* Segments::resolve(std::size_t rank, Location location) const noexcept {
  if (location.segment == Location::kProcess) return reinterpret_cast<std::byte*>(location.offset);
  for (auto const& candidate : living_) {
    auto const segment = candidate.lock();
    if (segment && segment->id == location.segment) return segment->parts[rank] + location.offset;
  }
  return nullptr;
}

}  // namespace ddp::shm
