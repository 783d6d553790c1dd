#include "comm/shm_channels.hpp"

#include <algorithm>
#include <cstring>

#include "comm/fingerprint.hpp"

namespace ddp::shm {
namespace {

// Copies between a ring at byte position `position` and plain memory.
void from_ring(std::byte const* ring, std::uint32_t position, std::byte* to, std::size_t bytes) {
  std::size_t const start = position % kRingBytes;
  std::size_t const first = std::min(bytes, kRingBytes - start);
  std::memcpy(to, ring + start, first);
  if (bytes > first) std::memcpy(to + first, ring, bytes - first);
}

void to_ring(std::byte* ring, std::uint32_t position, std::byte const* from, std::size_t bytes) {
  std::size_t const start = position % kRingBytes;
  std::size_t const first = std::min(bytes, kRingBytes - start);
  std::memcpy(ring + start, from, first);
  if (bytes > first) std::memcpy(ring, from + first, bytes - first);
}

}  // namespace

bool Channels::send(Transfer& transfer) {
  Region const& region = meeting_.region();
  Channel& channel = region.channel(meeting_.rank().index(), transfer.peer);
  std::byte* const ring = region.ring(meeting_.rank().index(), transfer.peer);
  std::uint32_t written = channel.written.load(std::memory_order_relaxed);
  std::size_t room = kRingBytes - (written - channel.read.load(std::memory_order_acquire));
  if (transfer.moved == 0) {
    if (room < sizeof(Header)) return false;
    Header const header{transfer.whole, static_cast<std::uint64_t>(transfer.dtype)};
    to_ring(ring, written, reinterpret_cast<std::byte const*>(&header), sizeof(header));
    written += sizeof(Header);
    room -= sizeof(Header);
    transfer.moved = sizeof(Header);
  } else if (room == 0) {
    return false;
  }
  std::size_t const bytes = std::min(room, total(transfer) - transfer.moved);
  if (bytes != 0) to_ring(ring, written, transfer.data + (transfer.moved - sizeof(Header)), bytes);
  transfer.moved += bytes;
  channel.written.store(written + static_cast<std::uint32_t>(bytes), std::memory_order_release);
  meeting_.ring(transfer.peer);
  return true;
}

bool Channels::receive(Transfer& transfer) {
  Region const& region = meeting_.region();
  Channel& channel = region.channel(transfer.peer, meeting_.rank().index());
  std::byte const* const ring = region.ring(transfer.peer, meeting_.rank().index());
  std::uint32_t read = channel.read.load(std::memory_order_relaxed);
  std::size_t available = channel.written.load(std::memory_order_acquire) - read;
  if (transfer.moved == 0) {
    if (available < sizeof(Header)) return false;
    Header header;
    from_ring(ring, read, reinterpret_cast<std::byte*>(&header), sizeof(header));
    if (header.whole != transfer.whole || header.dtype != static_cast<std::uint64_t>(transfer.dtype)) {
      meeting_.fail_and_throw(
          ErrorCode::mismatch,
          describe_mismatch(
              {meeting_.world_rank(meeting_.rank().index()), transfer.dtype, transfer.whole},
              {meeting_.world_rank(transfer.peer), static_cast<DType>(header.dtype), header.whole}));
    }
    read += sizeof(Header);
    available -= sizeof(Header);
    transfer.moved = sizeof(Header);
  } else if (available == 0) {
    return false;
  }
  std::size_t const bytes = std::min(available, total(transfer) - transfer.moved);
  if (bytes != 0) from_ring(ring, read, transfer.data + (transfer.moved - sizeof(Header)), bytes);
  transfer.moved += bytes;
  channel.read.store(read + static_cast<std::uint32_t>(bytes), std::memory_order_release);
  meeting_.ring(transfer.peer);
  return true;
}

bool Channels::advance(Transfer& transfer) { return transfer.sending ? send(transfer) : receive(transfer); }

// One turn over all transfers; returns whether anything moved.
bool Channels::advance_all(std::span<Transfer> transfers) {
  bool moved = false;
  for (std::size_t i = 0; i < transfers.size(); ++i) {
    Transfer& transfer = transfers[i];
    if (done(transfer)) continue;
    bool const blocked = std::any_of(
        transfers.begin(), transfers.begin() + static_cast<std::ptrdiff_t>(i), [&](Transfer const& earlier) {
          return !done(earlier) && earlier.peer == transfer.peer && earlier.sending == transfer.sending;
        });
    if (!blocked && advance(transfer)) moved = true;
  }
  return moved;
}

void Channels::run(std::span<Transfer> transfers) {
  std::vector<std::size_t> peers;
  while (!std::all_of(transfers.begin(), transfers.end(), done)) {
    if (advance_all(transfers)) continue;
    peers.clear();
    for (Transfer const& transfer : transfers) {
      if (!done(transfer)) peers.push_back(transfer.peer);
    }
    bool moved = false;
    meeting_.wait_for_bell([&] { return moved = moved || advance_all(transfers); }, peers);
  }
}

}  // namespace ddp::shm
