// The algorithms of MpiCommunicator. All ranks have passed Group::meet(): what begins here runs to its end.
#include <algorithm>

#include "comm/kernels/element_parts.hpp"
#include "comm/mpi/communicator.hpp"

namespace ddp {

// Up to this size, that of all ranks together, every rank reduces all elements: one step instead of two.
constexpr std::size_t kOneStepBytes = (64_KiB).value;
// The most bytes of a step, and so the scratch memory of an operation.
constexpr std::size_t kChunkBytes = (8_MiB).value;

std::byte* MpiCommunicator::scratch(std::size_t bytes) {
  if (scratch_.size() < bytes) scratch_.resize(bytes);
  return scratch_.data();
}

// What a lost rank was to send never comes, though MPI takes the message for complete: finish_step() waits
// until the control plane tells of the loss.
void MpiCommunicator::note(int result, char const* doing, std::size_t peer) {
  if (!mpi::got_through(result, doing)) lost_ = peer;
}

void MpiCommunicator::give(std::size_t peer, void const* data, std::size_t bytes) {
  if (bytes == 0 || peer == group_.rank()) return;
  // NOLINTNEXTLINE(clang-analyzer-optin.mpi.MPI-Checker): finish_step() waits for it, with MPI_Testall
  note(MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, static_cast<int>(peer),
                 static_cast<int>(mpi::Tag::exchange), group_.comm(),
                 &requests_.emplace_back(MPI_REQUEST_NULL)),
       "MPI_Isend", peer);
  step_peers_.push_back(peer);
}

void MpiCommunicator::get(std::size_t peer, void* data, std::size_t bytes) {
  if (bytes == 0 || peer == group_.rank()) return;
  // NOLINTNEXTLINE(clang-analyzer-optin.mpi.MPI-Checker): finish_step() waits for it, with MPI_Testall
  note(MPI_Irecv(data, static_cast<int>(bytes), MPI_BYTE, static_cast<int>(peer),
                 static_cast<int>(mpi::Tag::exchange), group_.comm(),
                 &requests_.emplace_back(MPI_REQUEST_NULL)),
       "MPI_Irecv", peer);
  step_peers_.push_back(peer);
}

void MpiCommunicator::finish_step() {
  statuses_.assign(requests_.size(), {});
  group_.complete(
      [this] {
        if (lost_) return false;
        int done = 0;
        int const result =
            MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done, statuses_.data());
        if (result != MPI_ERR_IN_STATUS) {
          static_cast<void>(mpi::got_through(result, "MPI_Testall"));
        } else {
          for (std::size_t i = 0; i < statuses_.size(); ++i) {
            int const error = statuses_[i].MPI_ERROR;
            if (error != MPI_ERR_PENDING) note(error, "MPI_Testall", step_peers_[i]);
          }
        }
        return done != 0 && !lost_;
      },
      [this] {
        std::vector<std::size_t> members;
        if (lost_) members.push_back(*lost_);
        for (std::size_t i = 0; i < requests_.size(); ++i) {
          bool const known = std::ranges::find(members, step_peers_[i]) != members.end();
          if (requests_[i] != MPI_REQUEST_NULL && !known) members.push_back(step_peers_[i]);
        }
        return members;
      });
  requests_.clear();
  step_peers_.clear();
}

// Receives `length` elements of every other rank into scratch, in rank order.
void MpiCommunicator::collect_parts(Operation const& operation, void const* mine, std::size_t length) {
  std::size_t const bytes = length * size_of(operation.dtype);
  std::byte* const room = scratch(bytes * group_.size());
  for (std::size_t r = 0; r < group_.size(); ++r) {
    sources_[r].data = r == group_.rank() ? static_cast<std::byte const*>(mine) : room + r * bytes;
    get(r, room + r * bytes, bytes);
  }
}

void MpiCommunicator::reduce_collected(Operation const& operation, void const* mine, void* out,
                                       std::size_t length) {
  sources_[group_.rank()].data = mine;
  reduce_elements({&out, 1}, sources_, length, operation.dtype, operation.op.kind,
                  operation.op.factor != nullptr);
}

// Chunk by chunk: receives every rank's elements of this rank's part into scratch, then does what `use`
// begins. `use` gets functions from a rank to its part, and to the part's places in input and output.
template <class Use>
void MpiCommunicator::exchange_parts(Operation const& operation, Use const& use) {
  std::size_t const element = size_of(operation.dtype);
  std::size_t const me = group_.rank();
  std::size_t const chunk = kChunkBytes / element;
  for (std::size_t offset = 0; offset < operation.count; offset += chunk) {
    std::size_t const length = std::min(chunk, operation.count - offset);
    auto const part = [&](std::size_t r) { return part_of(length, r, group_.size(), element); };
    auto const in = [&](std::size_t r) { return at(operation.in, offset + part(r).begin, element); };
    auto const out = [&](std::size_t r) { return at(operation.out, offset + part(r).begin, element); };
    collect_parts(operation, in(me), part(me).count);
    for (std::size_t r = 0; r < group_.size(); ++r) give(r, in(r), part(r).count * element);
    finish_step();
    use(part, in, out);
    finish_step();
  }
}

void MpiCommunicator::all_reduce(Operation const& operation) {
  std::size_t const element = size_of(operation.dtype);
  std::size_t const me = group_.rank();
  std::size_t const bytes = operation.count * element;
  if (bytes * group_.size() <= kOneStepBytes) {
    collect_parts(operation, operation.in, operation.count);
    for (std::size_t r = 0; r < group_.size(); ++r) give(r, operation.in, bytes);
    finish_step();
    reduce_collected(operation, operation.in, operation.out, operation.count);
    return;
  }
  exchange_parts(operation, [&](auto const& part, auto const& in, auto const& out) {
    reduce_collected(operation, in(me), out(me), part(me).count);
    for (std::size_t r = 0; r < group_.size(); ++r) {
      get(r, out(r), part(r).count * element);
      give(r, out(me), part(me).count * element);
    }
  });
}

// As all_reduce, but the parts go to the root only.
void MpiCommunicator::reduce(Operation const& operation) {
  std::size_t const element = size_of(operation.dtype);
  std::size_t const me = group_.rank();
  std::size_t const root = operation.root.index();
  exchange_parts(operation, [&](auto const& part, auto const& in, auto const& out) {
    if (me == root) {
      reduce_collected(operation, in(me), out(me), part(me).count);
      for (std::size_t r = 0; r < group_.size(); ++r) get(r, out(r), part(r).count * element);
    } else {
      std::byte* const mine = scratch(0) + me * part(me).count * element;  // this rank's place there is free
      reduce_collected(operation, in(me), mine, part(me).count);
      give(root, mine, part(me).count * element);
    }
  });
}

void MpiCommunicator::reduce_scatter(Operation const& operation) {
  std::size_t const element = size_of(operation.dtype);
  std::size_t const me = group_.rank();
  std::size_t const chunk = std::max<std::size_t>(kChunkBytes / element / group_.size(), 1);
  for (std::size_t offset = 0; offset < operation.count; offset += chunk) {
    std::size_t const length = std::min(chunk, operation.count - offset);
    auto const in = [&](std::size_t r) { return at(operation.in, r * operation.count + offset, element); };
    collect_parts(operation, in(me), length);
    for (std::size_t r = 0; r < group_.size(); ++r) give(r, in(r), length * element);
    finish_step();
    reduce_collected(operation, in(me), at(operation.out, offset, element), length);
  }
}

// all_gather: every rank gets this rank's only block. all_to_all: each rank gets a block of its own. In
// place, a block to be sent may lie where another one arrives, so it is sent from scratch.
void MpiCommunicator::exchange_blocks(Operation const& operation) {
  std::size_t const element = size_of(operation.dtype);
  std::size_t const me = group_.rank();
  std::size_t const chunk = std::max<std::size_t>(kChunkBytes / element / group_.size(), 1);
  bool const one_each = operation.kind == OperationKind::all_to_all;
  bool const in_place = one_each && operation.in == operation.out;
  auto const in = [&](std::size_t r, std::size_t offset) {
    return at(operation.in, (one_each ? r * operation.count : std::size_t{0}) + offset, element);
  };
  auto const out = [&](std::size_t r, std::size_t offset) {
    return at(operation.out, r * operation.count + offset, element);
  };
  copy_bytes(out(me, 0), in(me, 0), operation.count * element);
  for (std::size_t offset = 0; offset < operation.count; offset += chunk) {
    std::size_t const bytes = std::min(chunk, operation.count - offset) * element;
    std::byte* const room = in_place ? scratch(bytes * group_.size()) : nullptr;
    for (std::size_t r = 0; r < group_.size(); ++r) {
      std::byte const* from = in(r, offset);
      if (in_place) {
        copy_bytes(room + r * bytes, from, bytes);
        from = room + r * bytes;
      }
      give(r, from, bytes);
      get(r, out(r, offset), bytes);
    }
    finish_step();
  }
}

void MpiCommunicator::broadcast(Operation const& operation) {
  std::size_t const bytes = operation.count * size_of(operation.dtype);
  for (std::size_t offset = 0; offset < bytes; offset += kChunkBytes) {
    // NOLINTNEXTLINE(clang-analyzer-optin.mpi.MPI-Checker): finish_step() waits for it, with MPI_Testall
    note(MPI_Ibcast(static_cast<std::byte*>(operation.out) + offset,
                    static_cast<int>(std::min(kChunkBytes, bytes - offset)), MPI_BYTE, operation.root.value(),
                    group_.comm(), &requests_.emplace_back(MPI_REQUEST_NULL)),
         "MPI_Ibcast", operation.root.index());
    step_peers_.push_back(operation.root.index());
    finish_step();
  }
}

}  // namespace ddp
