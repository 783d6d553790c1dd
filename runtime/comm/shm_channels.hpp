// Point-to-point messages through rings in shared memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "comm/shm_meeting.hpp"
#include "ddp/core/dtype.hpp"

namespace ddp::shm {

/// One message, on its way.
struct Transfer {
  bool sending = false;
  std::size_t peer = 0;
  std::byte* data = nullptr;
  std::size_t count = 0;
  DType dtype = DType::u8;
  std::size_t whole = 0;  ///< of the message that this is a part of: what both sides must agree on
  std::size_t moved = 0;  ///< bytes, header included
};

/// The rings of one rank. Messages of a pair arrive in the order in which they were sent.
class Channels {
 public:
  explicit Channels(Meeting& meeting) : meeting_(meeting) {}

  /// Moves all `transfers` together until they are done. Transfers of one direction with one peer keep their
  /// order. Throws CommError(mismatch) when a message has another count or dtype than its recv.
  void run(std::span<Transfer> transfers);

 private:
  struct Header {
    std::uint64_t whole = 0;
    std::uint64_t dtype = 0;
  };
  [[nodiscard]] bool advance(Transfer& transfer);
  [[nodiscard]] bool send(Transfer& transfer);
  [[nodiscard]] bool receive(Transfer& transfer);
  [[nodiscard]] static std::size_t total(Transfer const& transfer) {
    return sizeof(Header) + transfer.count * size_of(transfer.dtype);
  }
  [[nodiscard]] static bool done(Transfer const& transfer) { return transfer.moved == total(transfer); }
  [[nodiscard]] bool advance_all(std::span<Transfer> transfers);

  Meeting& meeting_;
};

}  // namespace ddp::shm
