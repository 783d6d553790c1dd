// Point-to-point messages through rings in shared memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "comm/message.hpp"
#include "comm/shm/meeting.hpp"

namespace ddp::shm {

/// One message, on its way.
struct Transfer : Message {
  std::size_t moved = 0;  ///< bytes, header included

  struct Header {
    std::uint64_t whole = 0;
    std::uint64_t dtype = 0;
  };
  [[nodiscard]] std::size_t total() const { return sizeof(Header) + count * size_of(dtype); }
  [[nodiscard]] bool done() const { return moved == total(); }
};

/// The rings of one rank. Messages of a pair arrive in the order in which they were sent.
class Channels {
 public:
  explicit Channels(Meeting& meeting) : meeting_(meeting) {}

  /// Moves all `transfers` together until they are done. Transfers of one direction with one peer keep their
  /// order. Throws CommError(mismatch) when a message has another count or dtype than its recv.
  void run(std::span<Transfer> transfers);

 private:
  [[nodiscard]] bool advance(Transfer& transfer);
  [[nodiscard]] bool send(Transfer& transfer);
  [[nodiscard]] bool receive(Transfer& transfer);

  Meeting& meeting_;
};

}  // namespace ddp::shm
