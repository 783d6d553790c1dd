#include "comm/mpi/channels.hpp"

#include <algorithm>
#include <cstring>

namespace ddp::mpi {
namespace {

constexpr std::size_t kSmallBytes = (16_KiB).value;  ///< go with their header
constexpr std::size_t kPieceBytes = (8_MiB).value;   ///< MPI counts with an int

struct Header {
  std::uint64_t whole = 0;
  std::uint64_t dtype = 0;
};

}  // namespace

void Channels::run(std::span<Transfer> transfers) {
  auto const all_done = [&] {
    return std::ranges::all_of(transfers, [](Transfer const& one) { return one.done(); });
  };
  try {
    group_.wait(
        [&] {
          while (advance_in_order(transfers, [this](Transfer& transfer) { return advance(transfer); })) {
          }
          return all_done();
        },
        [&] { return awaited_peers(transfers); });
  } catch (...) {
    give_up(transfers);
    throw;
  }
}

bool Channels::advance(Transfer& transfer) {
  using State = Transfer::State;
  switch (transfer.state) {
    case State::begins:
      return transfer.sending ? offer(transfer) : accept(transfer);
    case State::offered:
      if (!group_.take(transfer.peer, Tag::go)) return false;
      transfer.state = State::moves;
      start_piece(transfer);
      return true;
    case State::moves:
      return move(transfer);
    case State::done:
      break;
  }
  return false;
}

bool Channels::offer(Transfer& transfer) {
  Header const header{transfer.whole, static_cast<std::uint64_t>(transfer.dtype)};
  bool const small = transfer.bytes() <= kSmallBytes;
  letter_.resize(sizeof(header) + (small ? transfer.bytes() : 0));
  std::memcpy(letter_.data(), &header, sizeof(header));
  if (small && transfer.count != 0)
    std::memcpy(letter_.data() + sizeof(header), transfer.data, transfer.bytes());
  group_.post(transfer.peer, Tag::header, letter_);
  transfer.state = small ? Transfer::State::done : Transfer::State::offered;
  return true;
}

bool Channels::accept(Transfer& transfer) {
  auto const letter = group_.take(transfer.peer, Tag::header);
  if (!letter) return false;
  Header header;
  std::memcpy(&header, letter->bytes.data(), sizeof(header));
  if (header.whole != transfer.whole || header.dtype != static_cast<std::uint64_t>(transfer.dtype)) {
    MemberGroup const& members = group_.members();
    group_.fail_and_throw(ErrorCode::mismatch,
                          describe_mismatch({members.me(), transfer.dtype, transfer.whole},
                                            {members.world_ranks[transfer.peer],
                                             static_cast<DType>(header.dtype), header.whole}));
  }
  if (transfer.bytes() <= kSmallBytes) {
    if (transfer.count != 0)
      std::memcpy(transfer.data, letter->bytes.data() + sizeof(header), transfer.bytes());
    transfer.state = Transfer::State::done;
    return true;
  }
  transfer.state = Transfer::State::moves;
  start_piece(transfer);
  group_.post(transfer.peer, Tag::go, {});
  return true;
}

void Channels::start_piece(Transfer& transfer) {
  auto const bytes = static_cast<int>(std::min(kPieceBytes, transfer.bytes() - transfer.offset));
  std::byte* const piece = transfer.data + transfer.offset;
  auto const peer = static_cast<int>(transfer.peer);
  auto const tag = static_cast<int>(Tag::payload);
  // NOLINTBEGIN(clang-analyzer-optin.mpi.MPI-Checker): move() waits for it, with MPI_Test
  check(transfer.sending ? MPI_Isend(piece, bytes, MPI_BYTE, peer, tag, group_.comm(), &transfer.request)
                         : MPI_Irecv(piece, bytes, MPI_BYTE, peer, tag, group_.comm(), &transfer.request),
        transfer.sending ? "MPI_Isend" : "MPI_Irecv");
  // NOLINTEND(clang-analyzer-optin.mpi.MPI-Checker)
}

bool Channels::move(Transfer& transfer) {
  int done = 0;
  MPI_Status status;
  check(MPI_Test(&transfer.request, &done, &status), "MPI_Test");
  if (done == 0) return false;
  if (!transfer.sending) {
    int count = 0;
    check(MPI_Get_count(&status, MPI_BYTE, &count), "MPI_Get_count");
    if (count == 0) {  // its sender gave up, and says why
      transfer.state = Transfer::State::begins;
      return false;
    }
  }
  transfer.offset += std::min(kPieceBytes, transfer.bytes() - transfer.offset);
  if (transfer.offset == transfer.bytes()) {
    transfer.state = Transfer::State::done;
  } else {
    start_piece(transfer);
  }
  return true;
}

// What MPI has begun must end first, since the caller frees that memory. A receiver that may have said go
// gets an empty message instead.
void Channels::give_up(std::span<Transfer> transfers) {
  for (Transfer const& transfer : transfers) {
    if (transfer.state == Transfer::State::offered) group_.post(transfer.peer, Tag::payload, {});
  }
  for (Transfer& transfer : transfers) {
    group_.complete(
        [&] {
          while (transfer.state == Transfer::State::moves && move(transfer)) {
          }
          return transfer.state != Transfer::State::moves;
        },
        [&] { return std::vector<std::size_t>{transfer.peer}; });
  }
}

}  // namespace ddp::mpi
