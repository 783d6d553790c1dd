#include "comm/shm_communicator.hpp"

#include <algorithm>
#include <exception>

#include "ddp/core/text.hpp"

namespace ddp {
namespace {

std::string describe(shm::Announcement const& said) {
  using Kind = Communicator::OperationKind;
  auto const kind = static_cast<Kind>(said.kind);
  std::string words = to_string(kind);
  bool const reduces = kind == Kind::all_reduce || kind == Kind::reduce || kind == Kind::reduce_scatter;
  if (reduces) {
    words += text(" (", said.scaled != 0 ? "scaled " : "",
                  to_string(static_cast<ReduceOp::Kind>(said.reduction)), ")");
  }
  if (kind == Kind::barrier) return words;
  words += text(" of ", static_cast<DType>(said.dtype), "[", said.count, "]");
  if (kind == Kind::reduce) words += text(" to rank ", said.peer);
  if (kind == Kind::broadcast) words += text(" from rank ", said.peer);
  return words;
}

// A group as split() exchanges it, without the filling behind it: "2, 0".
std::string list(std::span<std::int32_t const> group) {
  auto const end = std::find_if(group.begin(), group.end(), [](std::int32_t member) { return member < 0; });
  return join(std::span(group.begin(), end), ", ");
}

// Counts an operation as finished, however it ends.
class Finished {
 public:
  explicit Finished(std::atomic<int>& pending) noexcept : pending_(pending) {}
  Finished(Finished const&) = delete;
  Finished& operator=(Finished const&) = delete;
  ~Finished() { --pending_; }

 private:
  std::atomic<int>& pending_;
};

bool same(shm::Announcement const& a, shm::Announcement const& b) {
  return a.sequence == b.sequence && a.count == b.count && a.kind == b.kind && a.dtype == b.dtype &&
         a.reduction == b.reduction && a.scaled == b.scaled && a.peer == b.peer;
}

}  // namespace

ShmCommunicator::RegionOwner ShmCommunicator::make_region(int size) {
  return std::make_shared<SharedMemory>(SharedMemory::create(Bytes{shm::Region::bytes(size)}, false));
}

ShmCommunicator::ShmCommunicator(RegionOwner memory, bool in_process, Rank rank,
                                 std::vector<Rank> world_ranks, Device device,
                                 std::shared_ptr<ControlPlane> control, std::chrono::milliseconds timeout)
    : Communicator(rank, static_cast<int>(world_ranks.size()), device),
      memory_(std::move(memory)),
      in_process_(in_process),
      meeting_(shm::Region(memory_->data(), size()), rank, std::move(world_ranks), std::move(control),
               timeout),
      channels_(meeting_),
      sources_(static_cast<std::size_t>(size())),
      destinations_(static_cast<std::size_t>(size())) {
  meeting_.set_activity([this] { return activity(); });
}

std::string_view ShmCommunicator::backend() const noexcept {
  if (size() == 1) return "solo";
  return in_process_ ? "in-process" : "shm";
}

void ShmCommunicator::enqueue(Operation const& operation, Stream& stream) {
  HostStream& host = host_stream(stream);
  if (grouping_) {
    group_.push_back(operation);
    group_stream_ = &host;
    return;
  }
  ++pending_;
  host.enqueue([this, operation] {
    Finished const finished(pending_);
    run(operation);
  });
}

// split() and allocate() run in the caller: nothing may be under way in a worker at the same time.
void ShmCommunicator::require_idle(char const* what) const {
  meeting_.throw_if_failed();
  if (pending_ == 0) return;
  throw Error(ErrorCode::invalid_state, text(what, ": ", pending_.load(),
                                             " operations of this communicator are still "
                                             "on a stream; call synchronize() on that stream first"));
}

void ShmCommunicator::begin_group() {
  std::erase_if(batches_, [](Batch const& batch) { return batch.done.load(); });
  group_.clear();
  grouping_ = true;
}

void ShmCommunicator::end_group(bool start) {
  grouping_ = false;
  if (!start || group_.empty()) return;
  HostStream& stream = host_stream(*group_stream_);
  auto const one_sided = [](Operation const& operation) {
    return operation.kind == OperationKind::send || operation.kind == OperationKind::recv;
  };
  std::vector<shm::Transfer> transfers;
  for (Operation const& operation : group_) {
    if (!one_sided(operation)) {
      ++pending_;
      stream.enqueue([this, operation] {
        Finished const finished(pending_);
        run(operation);
      });
      continue;
    }
    transfers.push_back(transfer_of(operation));
  }
  if (transfers.empty()) return;
  Batch& batch = batches_.emplace_back();
  batch.transfers = std::move(transfers);
  ++pending_;
  stream.enqueue([this, &batch] {
    Finished const finished(pending_);
    run_transfers(batch.transfers);
    batch.done = true;
  });
}

shm::Transfer ShmCommunicator::transfer_of(Operation const& operation) {
  bool const sending = operation.kind == OperationKind::send;
  void* const data = sending ? const_cast<void*>(operation.in) : operation.out;  // a send only reads it
  return {sending,         operation.peer.index(), static_cast<std::byte*>(data),
          operation.count, operation.dtype,        0};
}

void ShmCommunicator::run(Operation const& operation) {
  meeting_.throw_if_failed();
  current_ = operation;
  switch (operation.kind) {
    case OperationKind::send:
    case OperationKind::recv: {
      shm::Transfer transfer = transfer_of(operation);
      channels_.run({&transfer, 1});
      break;
    }
    case OperationKind::all_reduce:
      ++sequence_;
      all_reduce(operation);
      break;
    default:
      ++sequence_;
      exchange(operation);
      break;
  }
  current_.reset();
}

void ShmCommunicator::run_transfers(std::span<shm::Transfer> transfers) {
  meeting_.throw_if_failed();
  current_.reset();
  channels_.run(transfers);
}

// Says what this rank does next, to be read by all who see it arrive at the next stage.
void ShmCommunicator::announce(Operation const& operation) {
  announced_stage_ = meeting_.next_stage();
  shm::Announcement& mine = meeting_.region().slot(rank().index()).announcements[announced_stage_ % 2];
  mine.sequence = sequence_;
  mine.count = operation.count;
  mine.kind = static_cast<std::uint8_t>(operation.kind);
  mine.dtype = static_cast<std::uint8_t>(operation.dtype);
  mine.reduction = static_cast<std::uint8_t>(operation.op.kind);
  mine.scaled = operation.op.factor != nullptr ? 1 : 0;
  mine.peer = operation.peer.value();
  mine.factor = operation.op.factor != nullptr ? *operation.op.factor : 1.0;
  std::size_t const bytes = operation.count * size_of(operation.dtype);
  bool const may_be_direct = operation.kind == OperationKind::all_reduce;
  mine.in = may_be_direct ? locate(operation.in, bytes) : shm::Location{};
  mine.out = may_be_direct ? locate(operation.out, bytes) : shm::Location{};
}

shm::Announcement const& ShmCommunicator::announcement(std::size_t rank) const {
  return meeting_.region().slot(rank).announcements[announced_stage_ % 2];
}

// Every rank reads the same announcements, so every rank throws the same error. Factors are kept, since an
// operation of several stages may outlast the announcements.
void ShmCommunicator::compare_announcements() {
  for (std::size_t r = 0; r < sources_.size(); ++r) sources_[r].factor = announcement(r).factor;
  shm::Announcement const& first = announcement(0);
  for (std::size_t r = 1; r < meeting_.region().size(); ++r) {
    shm::Announcement const& other = announcement(r);
    if (same(first, other)) continue;
    std::string const number = first.sequence == other.sequence
                                   ? text("operation ", first.sequence)
                                   : text("operation ", first.sequence, " and ", other.sequence);
    meeting_.fail_and_throw(
        ErrorCode::mismatch,
        text(
            number, " differs between ranks: rank ", meeting_.world_rank(0), " called ", describe(first),
            ", rank ", meeting_.world_rank(r), " called ", describe(other),
            "; every rank must call the same operations, with the same counts and types, in the same order"));
  }
}

std::string ShmCommunicator::activity() const {
  if (!current_) return "a group of sends and receives";
  if (current_->kind == OperationKind::send || current_->kind == OperationKind::recv) {
    return text(
        to_string(current_->kind), current_->kind == OperationKind::send ? " to rank " : " from rank ",
        meeting_.world_rank(current_->peer.index()), " of ", current_->dtype, "[", current_->count, "]");
  }
  return text("operation ", sequence_, ", ", describe(announcement(rank().index())));
}

shm::Location ShmCommunicator::locate(void const* data, std::size_t bytes) const {
  if (in_process_) return {shm::Location::kProcess, reinterpret_cast<std::uintptr_t>(data)};
  return segments_.locate(rank().index(), data, bytes);
}

// Every rank's part of `count` elements of T each, right now, in this thread.
template <class T>
std::vector<T> ShmCommunicator::gather_now(std::vector<T> const& mine) {
  std::vector<T> all(mine.size() * meeting_.region().size());
  Operation operation;
  operation.kind = OperationKind::all_gather;
  operation.in = mine.data();
  operation.out = all.data();
  operation.count = mine.size() * sizeof(T);
  operation.dtype = DType::u8;
  run(operation);
  return all;
}

std::shared_ptr<SharedMemory> ShmCommunicator::take(Offer const& offer) const {
  if (in_process_) return *offer.shared;
  return std::make_shared<SharedMemory>(SharedMemory::open(offer.handle));
}

// The others may be waiting for this rank: end their waits too.
void ShmCommunicator::fail_with(std::exception const& error) noexcept {
  auto const* const known = dynamic_cast<Error const*>(&error);
  meeting_.fail(known != nullptr ? known->code() : ErrorCode::aborted, error.what());
}

std::unique_ptr<Communicator> ShmCommunicator::split(std::span<Rank const> ranks) {
  require_idle("split");
  auto const parent_size = static_cast<std::size_t>(size());
  std::vector<std::int32_t> mine(parent_size, -1);
  for (std::size_t i = 0; i < std::min(ranks.size(), parent_size); ++i) mine[i] = ranks[i].value();
  bool bad = ranks.size() > parent_size;
  std::vector<bool> seen(parent_size);
  for (Rank const member : ranks) {
    bool const known = member.value() >= 0 && member.index() < parent_size;
    if (!known || seen[member.index()]) bad = true;
    if (known) seen[member.index()] = true;
  }
  if (!ranks.empty() && !seen[rank().index()]) bad = true;
  mine.push_back(bad ? 1 : 0);
  std::size_t const width = mine.size();
  std::vector<std::int32_t> const all = gather_now(mine);

  // Judged on every rank alike, so that all succeed or all throw.
  for (std::size_t r = 0; r < parent_size; ++r) {
    auto const group = std::span(all).subspan(r * width, parent_size);
    require(all[r * width + parent_size] == 0, [&] {
      return text(
          "split: rank ", meeting_.world_rank(r),
          " gave a group in which a rank stands twice or is not there, or that it is not in itself: [",
          list(group), "]");
    });
    for (std::int32_t const member : group) {
      if (member < 0) break;
      auto const theirs = std::span(all).subspan(static_cast<std::size_t>(member) * width, parent_size);
      require(std::equal(group.begin(), group.end(), theirs.begin()), [&] {
        return text("split: ranks ", r, " and ", member,
                    " of this communicator are in one group and gave different lists: [", list(group),
                    "] and [", list(theirs), "]");
      });
    }
  }

  try {
    bool const leads = !ranks.empty() && ranks[0] == rank();
    RegionOwner region = leads ? make_region(static_cast<int>(ranks.size())) : nullptr;
    offered_ = region;
    std::vector<Offer> const offers =
        gather_now(std::vector<Offer>{leads ? Offer{region->handle(), &offered_} : Offer{}});
    if (!ranks.empty() && !leads) region = take(offers[ranks[0].index()]);
    static_cast<void>(gather_now(std::vector<char>{1}));  // all have taken it
    if (ranks.empty()) return nullptr;
    if (leads) region->close_handle();
    std::vector<Rank> world_ranks;
    for (Rank const member : ranks) world_ranks.push_back(meeting_.world_rank(member.index()));
    auto const self = std::find(ranks.begin(), ranks.end(), rank()) - ranks.begin();
    return std::make_unique<ShmCommunicator>(std::move(region), in_process_, Rank{static_cast<int>(self)},
                                             std::move(world_ranks), device(), meeting_.control(),
                                             meeting_.timeout());
  } catch (std::exception const& error) {
    fail_with(error);
    throw;
  }
}

Tensor ShmCommunicator::allocate(Bytes bytes) {
  require_idle("allocate");
  // What is available is read before any rank takes any, so that all judge by the same numbers.
  std::vector<std::uint64_t> const wishes =
      gather_now(std::vector<std::uint64_t>{bytes.value, SharedMemory::available().value});
  std::size_t const ranks = wishes.size() / 2;
  for (std::size_t r = 0; r < ranks; ++r) {
    require(wishes[2 * r] == wishes[0], [&] {
      return text("allocate: rank ", meeting_.world_rank(0), " asks for ", wishes[0], " bytes, rank ",
                  meeting_.world_rank(r), " for ", wishes[2 * r], "; every rank must ask for the same size");
    });
  }
  for (std::size_t r = 0; r < ranks; ++r) {
    if (bytes.value <= wishes[2 * r + 1] / ranks) continue;
    throw Error(ErrorCode::out_of_memory,
                text("allocate: ", ranks, " ranks ask for ", to_string(bytes), " of host memory each, ",
                     to_string(Bytes{wishes[2 * r + 1]}), " are available to rank ", meeting_.world_rank(r)));
  }
  std::shared_ptr<SharedMemory> mine;
  std::string problem;
  try {
    mine = std::make_shared<SharedMemory>(
        SharedMemory::create(Bytes{std::max<std::size_t>(bytes.value, 1)}, true));
  } catch (std::exception const& error) {
    problem = error.what();
  }
  offered_ = mine;
  std::vector<char> const made = gather_now(std::vector<char>{mine ? '\1' : '\0'});
  for (std::size_t r = 0; r < ranks; ++r) {
    if (made[r] != 0) continue;
    throw Error(ErrorCode::out_of_memory, mine ? text("allocate: rank ", meeting_.world_rank(r),
                                                      " has no memory for ", to_string(bytes))
                                               : problem);
  }
  try {
    std::vector<Offer> const offers = gather_now(std::vector<Offer>{Offer{mine->handle(), &offered_}});
    shm::Segment segment;
    segment.id = segments_.next_id();
    segment.bytes = bytes.value;
    for (std::size_t r = 0; r < ranks; ++r) {
      segment.mappings.push_back(r == rank().index() ? mine : take(offers[r]));
      segment.parts.push_back(segment.mappings.back()->data());
    }
    static_cast<void>(gather_now(std::vector<char>{1}));  // all have taken theirs
    mine->close_handle();
    TensorView const view{mine->data(), Shape{bytes.value}, DType::u8, device()};
    return {view, segments_.add(std::move(segment))};
  } catch (std::exception const& error) {
    fail_with(error);
    throw;
  }
}

}  // namespace ddp
