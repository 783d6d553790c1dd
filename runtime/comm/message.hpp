// Point-to-point messages that move together, whichever backend moves them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "ddp/core/dtype.hpp"

namespace ddp {

/// One side of a message.
struct Message {
  bool sending = false;
  std::size_t peer = 0;
  std::byte* data = nullptr;
  std::size_t count = 0;
  DType dtype = DType::u8;
  std::size_t whole = 0;  ///< elements of the message that this is a part of: both sides must agree on it
};

// Below, a transfer is a Message with done().

/// One turn over all transfers; returns whether anything moved. A transfer waits for earlier ones of its
/// direction with its peer, so messages of a pair keep their order. `advance(transfer)` says whether it
/// moved.
template <class Transfer, class Advance>
bool advance_in_order(std::span<Transfer> transfers, Advance advance) {
  bool moved = false;
  for (std::size_t i = 0; i < transfers.size(); ++i) {
    Transfer& transfer = transfers[i];
    if (transfer.done()) continue;
    auto const earlier = transfers.first(i);
    bool const blocked = std::any_of(earlier.begin(), earlier.end(), [&](Transfer const& other) {
      return !other.done() && other.peer == transfer.peer && other.sending == transfer.sending;
    });
    // A later turn waits for a transfer's request. NOLINTNEXTLINE(clang-analyzer-optin.mpi.MPI-Checker)
    if (!blocked && advance(transfer)) moved = true;
  }
  return moved;
}

/// The peers of those that are not done.
template <class Transfer>
[[nodiscard]] std::vector<std::size_t> awaited_peers(std::span<Transfer> transfers) {
  std::vector<std::size_t> peers;
  for (Transfer const& transfer : transfers) {
    if (!transfer.done()) peers.push_back(transfer.peer);
  }
  return peers;
}

}  // namespace ddp
