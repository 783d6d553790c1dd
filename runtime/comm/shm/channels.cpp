#include "comm/shm/channels.hpp"

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
  std::size_t const me = meeting_.members().rank.index();
  Channel& channel = region.channel(me, transfer.peer);
  std::byte* const ring = region.ring(me, transfer.peer);
  std::uint32_t written = channel.written.load(std::memory_order_relaxed);
  std::size_t room = kRingBytes - (written - channel.read.load(std::memory_order_acquire));
  if (transfer.moved == 0) {
    if (room < sizeof(Transfer::Header)) return false;
    Transfer::Header const header{transfer.whole, static_cast<std::uint64_t>(transfer.dtype)};
    to_ring(ring, written, reinterpret_cast<std::byte const*>(&header), sizeof(header));
    written += sizeof(Transfer::Header);
    room -= sizeof(Transfer::Header);
    transfer.moved = sizeof(Transfer::Header);
  } else if (room == 0) {
    return false;
  }
  std::size_t const bytes = std::min(room, transfer.total() - transfer.moved);
  if (bytes != 0) to_ring(ring, written, transfer.data + (transfer.moved - sizeof(Transfer::Header)), bytes);
  transfer.moved += bytes;
  channel.written.store(written + static_cast<std::uint32_t>(bytes), std::memory_order_release);
  meeting_.ring(transfer.peer);
  return true;
}

bool Channels::receive(Transfer& transfer) {
  Region const& region = meeting_.region();
  MemberGroup const& members = meeting_.members();
  Channel& channel = region.channel(transfer.peer, members.rank.index());
  std::byte const* const ring = region.ring(transfer.peer, members.rank.index());
  std::uint32_t read = channel.read.load(std::memory_order_relaxed);
  std::size_t available = channel.written.load(std::memory_order_acquire) - read;
  if (transfer.moved == 0) {
    if (available < sizeof(Transfer::Header)) return false;
    Transfer::Header header;
    from_ring(ring, read, reinterpret_cast<std::byte*>(&header), sizeof(header));
    if (header.whole != transfer.whole || header.dtype != static_cast<std::uint64_t>(transfer.dtype)) {
      meeting_.fail_and_throw(ErrorCode::mismatch,
                              describe_mismatch({members.me(), transfer.dtype, transfer.whole},
                                                {members.world_ranks[transfer.peer],
                                                 static_cast<DType>(header.dtype), header.whole}));
    }
    read += sizeof(Transfer::Header);
    available -= sizeof(Transfer::Header);
    transfer.moved = sizeof(Transfer::Header);
  } else if (available == 0) {
    return false;
  }
  std::size_t const bytes = std::min(available, transfer.total() - transfer.moved);
  if (bytes != 0) from_ring(ring, read, transfer.data + (transfer.moved - sizeof(Transfer::Header)), bytes);
  transfer.moved += bytes;
  channel.read.store(read + static_cast<std::uint32_t>(bytes), std::memory_order_release);
  meeting_.ring(transfer.peer);
  return true;
}

bool Channels::advance(Transfer& transfer) { return transfer.sending ? send(transfer) : receive(transfer); }

void Channels::run(std::span<Transfer> transfers) {
  auto const advance_all = [&] {
    return advance_in_order(transfers, [this](Transfer& transfer) { return advance(transfer); });
  };
  for (;;) {
    if (advance_all()) continue;
    auto const peers = awaited_peers(transfers);
    if (peers.empty()) return;
    bool moved = false;
    meeting_.wait_for_bell([&] { return moved = moved || advance_all(); }, peers);
  }
}

}  // namespace ddp::shm
