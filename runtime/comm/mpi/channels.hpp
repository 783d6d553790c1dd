// Point-to-point messages over MPI.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "comm/message.hpp"
#include "comm/mpi/group.hpp"

namespace ddp::mpi {

/// One message, on its way.
struct Transfer : Message {
  enum class State { begins, offered, moves, done };
  State state = State::begins;
  std::size_t offset = 0;                  ///< bytes that have moved
  MPI_Request request = MPI_REQUEST_NULL;  ///< of the piece that moves
  [[nodiscard]] std::size_t bytes() const { return count * size_of(dtype); }
  [[nodiscard]] bool done() const { return state == State::done; }
};

/// Moves messages of one rank. A small one goes with its header, from memory of the group. A large one is
/// offered by its header; its receiver compares, prepares, and says go: before that nothing of the caller's
/// memory is MPI's, and both sides can give up.
class Channels {
 public:
  explicit Channels(Group& group) : group_(group) {}

  /// Moves all `transfers` together until they are done. Transfers of one direction with one peer keep their
  /// order. Throws CommError(mismatch) when a message has another count or dtype than its recv.
  void run(std::span<Transfer> transfers);

 private:
  [[nodiscard]] bool advance(Transfer& transfer);
  [[nodiscard]] bool offer(Transfer& transfer);
  [[nodiscard]] bool accept(Transfer& transfer);
  void start_piece(Transfer& transfer);
  [[nodiscard]] bool move(Transfer& transfer);
  void give_up(std::span<Transfer> transfers);

  Group& group_;
  std::vector<std::byte> letter_;
};

}  // namespace ddp::mpi
