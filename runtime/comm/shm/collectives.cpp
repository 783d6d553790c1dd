// The algorithms of ShmCommunicator.
#include <algorithm>
#include <exception>
#include <thread>

#include "comm/kernels/element_parts.hpp"
#include "comm/shm/communicator.hpp"

namespace ddp {
namespace {

// Below kDirectBytes every rank reduces all elements itself, through staging. Up to shm::kOneShotBytes it
// does so too, if no rank's memory can be seen by the others: that costs less than two more barriers.
// Otherwise each rank reduces its part: in place if all memory can be seen, through staging if not. In place
// this moves half as many cache lines between two processors as exchanging all elements, which is worth a
// second barrier where the processors are far apart.
constexpr std::size_t kDirectBytes = 512;

bool is_private(shm::Announcement const& said) noexcept {
  return said.in.allocation == shm::Location::kPrivate || said.out.allocation == shm::Location::kPrivate;
}

// Lasts from before a rank arrives until it is done with the memory of others. A rank that leaves by an
// exception waits until there are no visitors. That is short: visitors wait only for ranks of this group, and
// since the group has failed already, their waits end.
class Visit {
 public:
  explicit Visit(shm::Visitors* visitors) noexcept
      : visitors_(visitors), exceptions_(std::uncaught_exceptions()) {
    if (visitors_ != nullptr) visitors_->count.fetch_add(1);
  }
  Visit(Visit const&) = delete;
  Visit& operator=(Visit const&) = delete;
  ~Visit() {
    if (visitors_ == nullptr) return;
    visitors_->count.fetch_sub(1);
    if (std::uncaught_exceptions() == exceptions_) return;
    while (visitors_->count.load() != 0) std::this_thread::yield();
  }

 private:
  shm::Visitors* visitors_;
  int exceptions_;
};

}  // namespace

// Whether `rule` holds for the announcement of every rank; the answer is the same on every rank.
template <class Rule>
bool ShmCommunicator::every_rank(Rule rule) const {
  for (std::size_t r = 0; r < barrier_.region().size(); ++r) {
    if (!rule(r)) return false;
  }
  return true;
}

void ShmCommunicator::all_reduce(Operation const& operation) {
  std::size_t const bytes = operation.count * size_of(operation.dtype);
  bool const direct = bytes >= kDirectBytes;
  announce(operation);
  auto const stages_all = [&](std::size_t r) {
    return bytes <= shm::kOneShotBytes && (!direct || is_private(announcement(r)));
  };
  std::uint32_t const stage = barrier_.next_stage();
  if (stages_all(rank().index())) {
    copy_bytes(barrier_.region().staging(rank().index(), stage), operation.in, bytes);
  }
  Visit const visit(in_process_ && direct ? &barrier_.region().visitors() : nullptr);
  barrier_.meet();
  compare_announcements();
  if (direct && direct_possible()) {
    barrier_.throw_if_failed();  // a rank that failed before this visit will not wait for it
    all_reduce_direct(operation);
  } else if (every_rank(stages_all)) {
    reduce_staged(operation, operation.out, 0, operation.count, stage);
  } else {
    all_reduce_staged(operation);
  }
}

// Whether every rank sees every rank's memory. It depends on the announcements alone, so every rank gets the
// same answer.
bool ShmCommunicator::direct_possible() const {
  shm::Announcement const& first = announcement(0);
  if (is_private(first)) return false;
  return every_rank([&](std::size_t r) {
    shm::Announcement const& other = announcement(r);
    return other.in.allocation == first.in.allocation && other.out.allocation == first.out.allocation;
  });
}

// Each rank reduces its part from all ranks' memory into all ranks' memory.
void ShmCommunicator::all_reduce_direct(Operation const& operation) {
  std::size_t const element = size_of(operation.dtype);
  std::size_t const ranks = barrier_.region().size();
  Part const part = part_of(operation.count, rank().index(), ranks, element);
  for (std::size_t r = 0; r < ranks; ++r) {
    shm::Announcement const& said = announcement(r);
    sources_[r].data = at(allocations_.resolve(r, said.in), part.begin, element);
    destinations_[r] = at(allocations_.resolve(r, said.out), part.begin, element);
  }
  reduce_elements(destinations_, sources_, part.count, operation.dtype, operation.op.kind,
                  operation.op.factor != nullptr);
  barrier_.meet();
}

// Through staging, a chunk at a time: copy in, barrier, reduce the own part, barrier, copy other parts out.
void ShmCommunicator::all_reduce_staged(Operation const& operation) {
  std::size_t const element = size_of(operation.dtype);
  std::size_t const ranks = barrier_.region().size();
  std::size_t const chunk = shm::kStagingBytes / element;
  for (std::size_t offset = 0; offset < operation.count; offset += chunk) {
    std::size_t const length = std::min(chunk, operation.count - offset);
    std::uint32_t const raw = barrier_.next_stage();
    copy_bytes(barrier_.region().staging(rank().index(), raw), at(operation.in, offset, element),
               length * element);
    barrier_.meet();
    std::uint32_t const reduced = barrier_.next_stage();
    Part const mine = part_of(length, rank().index(), ranks, element);
    reduce_staged(operation, at(barrier_.region().staging(rank().index(), reduced), mine.begin, element),
                  mine.begin, mine.count, raw);
    barrier_.meet();
    for (std::size_t r = 0; r < ranks; ++r) {
      Part const part = part_of(length, r, ranks, element);
      copy_bytes(at(operation.out, offset + part.begin, element),
                 at(barrier_.region().staging(r, reduced), part.begin, element), part.count * element);
    }
  }
}

// out = the reduction over ranks of `length` elements, from element `stage_offset` of their staging on.
void ShmCommunicator::reduce_staged(Operation const& operation, void* out, std::size_t stage_offset,
                                    std::size_t length, std::uint32_t stage) {
  for (std::size_t r = 0; r < sources_.size(); ++r) {
    sources_[r].data = at(barrier_.region().staging(r, stage), stage_offset, size_of(operation.dtype));
  }
  void* destination = out;
  reduce_elements({&destination, 1}, sources_, length, operation.dtype, operation.op.kind,
                  operation.op.factor != nullptr);
}

// Whether every rank shows the others its input and all can see it; the same on every rank.
bool ShmCommunicator::sees_every_in() const {
  std::int64_t const first = announcement(0).in.allocation;
  return first != shm::Location::kPrivate &&
         every_rank([&](std::size_t r) { return announcement(r).in.allocation == first; });
}

// Each rank takes what it needs from the inputs of all, which stay as they are until all have it.
void ShmCommunicator::exchange_direct(Operation const& operation) {
  std::size_t const element = size_of(operation.dtype);
  std::size_t const me = rank().index();
  for (std::size_t r = 0; r < barrier_.region().size(); ++r) {
    std::byte* const in = allocations_.resolve(r, announcement(r).in);
    if (operation.kind == OperationKind::reduce_scatter) {
      sources_[r].data = at(in, me * operation.count, element);
    } else {
      copy_bytes(at(operation.out, r * operation.count, element), r == me ? operation.in : in,
                 operation.count * element);
    }
  }
  if (operation.kind == OperationKind::reduce_scatter) {
    void* destination = operation.out;
    reduce_elements({&destination, 1}, sources_, operation.count, operation.dtype, operation.op.kind,
                    operation.op.factor != nullptr);
  }
  barrier_.meet();
}

// Everything but all-reduce: copy in, barrier, copy out, a chunk of each block at a time. What a rank shows
// is not copied in unless another shows nothing.
void ShmCommunicator::exchange(Operation const& operation) {
  bool const blocks =
      operation.kind == OperationKind::reduce_scatter || operation.kind == OperationKind::all_to_all;
  std::size_t const parts = blocks ? barrier_.region().size() : 1;
  std::size_t const chunk = shm::kStagingBytes / size_of(operation.dtype) / parts;
  std::size_t offset = 0;
  announce(operation);
  auto const shows = [&](std::size_t r) { return announcement(r).in.allocation != shm::Location::kPrivate; };
  Visit const visit(in_process_ && shows(rank().index()) ? &barrier_.region().visitors() : nullptr);
  bool is_staged = !shows(rank().index());
  do {
    std::size_t const length = std::min(chunk, operation.count - offset);
    std::uint32_t stage = barrier_.next_stage();
    auto const meet = [&] {
      if (is_staged) stage_in(operation, offset, length, barrier_.region().staging(rank().index(), stage));
      barrier_.meet();
    };
    meet();
    if (offset == 0) {
      compare_announcements();
      if (sees_every_in()) {
        barrier_.throw_if_failed();  // a rank that failed before this visit will not wait for it
        return exchange_direct(operation);
      }
      if (!every_rank([&](std::size_t r) { return !shows(r); })) {
        is_staged = true;
        stage = barrier_.next_stage();
        meet();
      }
    }
    stage_out(operation, offset, length, stage);
    offset += length;
  } while (offset < operation.count);
}

void ShmCommunicator::stage_in(Operation const& operation, std::size_t offset, std::size_t length,
                               std::byte* staging) const {
  std::size_t const element = size_of(operation.dtype);
  switch (operation.kind) {
    case OperationKind::reduce_scatter:
    case OperationKind::all_to_all:
      for (std::size_t r = 0; r < barrier_.region().size(); ++r) {
        copy_bytes(at(static_cast<void*>(staging), r * length, element),
                   at(operation.in, r * operation.count + offset, element), length * element);
      }
      break;
    case OperationKind::broadcast:
      if (operation.root != rank()) break;
      [[fallthrough]];
    case OperationKind::reduce:
    case OperationKind::all_gather:
      copy_bytes(staging, at(operation.in, offset, element), length * element);
      break;
    default:
      break;
  }
}

void ShmCommunicator::stage_out(Operation const& operation, std::size_t offset, std::size_t length,
                                std::uint32_t stage) {
  std::size_t const element = size_of(operation.dtype);
  shm::Region const& region = barrier_.region();
  std::size_t const me = rank().index();
  switch (operation.kind) {
    case OperationKind::reduce:
      if (operation.root == rank()) {
        reduce_staged(operation, at(operation.out, offset, element), 0, length, stage);
      }
      break;
    case OperationKind::reduce_scatter:
      reduce_staged(operation, at(operation.out, offset, element), me * length, length, stage);
      break;
    case OperationKind::all_gather:
    case OperationKind::all_to_all: {
      std::size_t const from = operation.kind == OperationKind::all_to_all ? me * length : 0;
      for (std::size_t r = 0; r < region.size(); ++r) {
        copy_bytes(at(operation.out, r * operation.count + offset, element),
                   at(region.staging(r, stage), from, element), length * element);
      }
      break;
    }
    case OperationKind::broadcast:
      if (operation.root != rank()) {
        copy_bytes(at(operation.out, offset, element), region.staging(operation.root.index(), stage),
                   length * element);
      }
      break;
    default:
      break;
  }
}

}  // namespace ddp
