#include "comm/shm/communicator.hpp"

#include <algorithm>
#include <exception>

#include "comm/collective_arguments.hpp"
#include "comm/solo/communicator.hpp"
#include "ddp/core/text.hpp"
#include "device/memory/host_memory.hpp"
#include "device/memory/memory_account.hpp"

namespace ddp {
namespace {

// How much of its input a rank lets the others take from where it lies, if they can see it. Small parts cost
// less through staging, which needs one barrier instead of two.
std::size_t bytes_to_show(Operation const& operation, std::size_t ranks) noexcept {
  std::size_t const part = operation.count * size_of(operation.dtype);
  if (part <= shm::kOneShotBytes) return 0;
  if (operation.kind == OperationKind::reduce_scatter) return part * ranks;
  return operation.kind == OperationKind::all_gather ? part : 0;
}

}  // namespace

ShmCommunicator::RegionOwner ShmCommunicator::make_region(int size) {
  return std::make_shared<SharedMemory>(SharedMemory::create(Bytes{shm::Region::bytes(size)}, false));
}

ShmCommunicator::ShmCommunicator(RegionOwner memory, bool in_process, MemberGroup members, Device device)
    : HostCommunicatorBase(std::move(members), device),
      memory_(std::move(memory)),
      in_process_(in_process),
      barrier_(shm::Region(memory_->data(), size()), members_),
      sources_(static_cast<std::size_t>(size())),
      destinations_(static_cast<std::size_t>(size())) {}

std::string_view ShmCommunicator::backend() const noexcept { return in_process_ ? "in-process" : "shm"; }

void ShmCommunicator::run_collective(Operation const& operation) {
  ++sequence_;
  barrier_.begin(fingerprint_of(operation, sequence_));
  if (operation.kind == OperationKind::all_reduce) {
    all_reduce(operation);
  } else {
    exchange(operation);
  }
}

// Announces what this rank does next; ranks that see it arrive at the next stage can read that.
void ShmCommunicator::announce(Operation const& operation) {
  announced_stage_ = barrier_.next_stage();
  shm::Announcement& mine = barrier_.region().slot(rank().index()).announcements[announced_stage_ % 2];
  mine.said = fingerprint_of(operation, sequence_);
  mine.factor = operation.op.factor != nullptr ? *operation.op.factor : 1.0;
  std::size_t const bytes = operation.count * size_of(operation.dtype);
  bool const is_all_reduce = operation.kind == OperationKind::all_reduce;
  std::size_t const shown = is_all_reduce ? bytes : bytes_to_show(operation, sources_.size());
  mine.in = shown > 0 ? locate(operation.in, shown) : shm::Location{};
  mine.out = is_all_reduce ? locate(operation.out, bytes) : shm::Location{};
}

shm::Announcement const& ShmCommunicator::announcement(std::size_t rank) const {
  return barrier_.region().slot(rank).announcements[announced_stage_ % 2];
}

// Every rank reads the same announcements, so every rank throws the same error. Factors are kept, since an
// operation of several stages may outlast the announcements.
void ShmCommunicator::compare_announcements() {
  for (std::size_t r = 0; r < sources_.size(); ++r) sources_[r].factor = announcement(r).factor;
  auto const difference = find_difference(
      [this](std::size_t r) -> Fingerprint const& { return announcement(r).said; }, members_.world_ranks);
  if (difference) barrier_.fail_and_throw(*difference);
}

shm::Location ShmCommunicator::locate(void const* data, std::size_t bytes) const {
  if (in_process_) return {shm::Location::kProcess, reinterpret_cast<std::uintptr_t>(data)};
  return allocations_.locate(rank().index(), data, bytes);
}

std::shared_ptr<SharedMemory> ShmCommunicator::take(Offer const& offer) const {
  if (in_process_) return *offer.shared;
  return std::make_shared<SharedMemory>(SharedMemory::open(offer.handle));
}

std::unique_ptr<Communicator> ShmCommunicator::split_off(std::span<Rank const> ranks) {
  finish_operations("split");
  check_split_requests(gather_now(split_request(ranks, rank(), size())), members_.world_ranks);
  try {
    bool const leads = ranks.size() > 1 && ranks[0] == rank();
    RegionOwner region = leads ? make_region(static_cast<int>(ranks.size())) : nullptr;
    offered_ = region;
    std::vector<Offer> const offers =
        gather_now(std::vector<Offer>{leads ? Offer{region->handle(), &offered_} : Offer{}});
    if (ranks.size() > 1 && !leads) region = take(offers[ranks[0].index()]);
    static_cast<void>(gather_now(std::vector<char>{1}));  // all have taken the offer
    if (ranks.empty()) return nullptr;
    if (ranks.size() == 1) return std::make_unique<SoloCommunicator>(device(), members_.waiting.timeout);
    if (leads) region->close_handle();
    return std::make_unique<ShmCommunicator>(std::move(region), in_process_, members_.part(ranks), device());
  } catch (std::exception const& error) {
    barrier_.fail(failure_of(error));  // the others may be waiting for this rank
    throw;
  }
}

Tensor ShmCommunicator::allocate(Bytes bytes) {
  finish_operations("allocate");
  // Every rank asks how much is available before any rank allocates, so that all decide by the same numbers.
  auto const wishes = gather_now(std::vector<std::uint64_t>{bytes.value});
  auto const available = gather_now(std::vector<std::uint64_t>{host_memory().free.value});
  check_allocation_sizes(wishes, members_.world_ranks);
  std::size_t const ranks = wishes.size();
  for (std::size_t r = 0; r < ranks; ++r) {
    if (bytes.value <= available[r] / ranks) continue;
    throw Error(ErrorCode::out_of_memory,
                text("allocate: ", ranks, " ranks ask for ", to_string(bytes), " of host memory each, ",
                     to_string(Bytes{available[r]}), " are available to rank ", members_.world_ranks[r]));
  }
  struct Mine {
    std::shared_ptr<void> count;  // against the device's limit
    std::shared_ptr<SharedMemory> memory;
  };
  offered_.reset();  // every rank took it before it came here
  Mine mine = make_on_every_rank(
      bytes, members_.world_ranks,
      [&] {
        std::shared_ptr<void> count = count_memory(device(), bytes, "shared memory of a communicator");
        Bytes const least{std::max<std::size_t>(bytes.value, 1)};
        return Mine{std::move(count), std::make_shared<SharedMemory>(SharedMemory::create(least, true))};
      },
      [this](std::vector<std::uint8_t> const& made) { return gather_now(made); });
  offered_ = mine.memory;
  try {
    std::vector<Offer> const offers = gather_now(std::vector<Offer>{Offer{mine.memory->handle(), &offered_}});
    shm::Allocation allocation;
    allocation.id = allocations_.next_id();
    allocation.bytes = bytes.value;
    for (std::size_t r = 0; r < ranks; ++r) {
      allocation.mappings.push_back(r == rank().index() ? mine.memory : take(offers[r]));
      allocation.parts.push_back(allocation.mappings.back()->data());
    }
    static_cast<void>(gather_now(std::vector<char>{1}));  // all have taken all offers
    offered_.reset();
    mine.memory->close_handle();
    TensorView const view{mine.memory->data(), Shape{bytes.value}, DType::u8, device()};
    struct CountedAllocation {
      std::shared_ptr<void> count;
      std::shared_ptr<shm::Allocation> allocation;
    };
    return {view, std::make_shared<CountedAllocation>(
                      CountedAllocation{std::move(mine.count), allocations_.add(std::move(allocation))})};
  } catch (std::exception const& error) {
    barrier_.fail(failure_of(error));  // the others may be waiting for this rank
    throw;
  }
}

}  // namespace ddp
