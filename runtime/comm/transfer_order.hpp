// Messages of a group on their way together.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

namespace ddp {

/// One turn over all transfers; returns whether anything moved. A transfer has `peer`, `sending` and done(),
/// and waits for earlier ones of its direction with its peer: so messages of a pair keep their order.
/// `advance(transfer)` says whether it moved.
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

}  // namespace ddp
