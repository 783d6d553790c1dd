// The parts common to all backends: argument checks, and groups.
#include "comm/communicator_backend.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"
#include "ddp/device/device_placement.hpp"
#include "ddp/device/queries.hpp"
#include "device/memory/memory_place.hpp"
#include "observe/flight_recorder.hpp"

namespace ddp {
namespace {

using Kind = ReduceOp::Kind;

bool overlap(TensorView const& a, TensorView const& b) {
  auto const a_begin = reinterpret_cast<std::uintptr_t>(a.data);
  auto const b_begin = reinterpret_cast<std::uintptr_t>(b.data);
  return a_begin < b_begin + b.bytes() && b_begin < a_begin + a.bytes();
}

std::byte* part(TensorView const& whole, std::size_t index, std::size_t count) {
  return static_cast<std::byte*>(whole.data) + index * count * size_of(whole.dtype);
}

// Checks both sides: the same dtype, counts in the ratio in_parts : out_parts, and no overlap unless
// `in_place`.
void check_pair(char const* operation, TensorView const& in, TensorView const& out, std::size_t in_parts,
                std::size_t out_parts, bool in_place) {
  require(in.dtype == out.dtype, [&] {
    return text(operation, ": in is ", describe(in), " and out is ", describe(out), "; they need one dtype");
  });
  require(in.count() * out_parts == out.count() * in_parts, [&] {
    return text(operation, ": in has ", in.count(), " elements and out ", out.count(),
                "; expected a ratio of ", in_parts, " to ", out_parts);
  });
  require(in_place || !overlap(in, out),
          [&] { return text(operation, ": in and out overlap, and not in the way that works in place"); });
}

void check_reduction(char const* operation, ReduceOp op, DType dtype) {
  require(is_reducible(dtype), [&] {
    return text(operation, ": there is no ", to_string(op.kind), " of ", dtype, "; ",
                dtype == DType::boolean ? "view it as u8, of which max is \"or\" and min is \"and\""
                                        : "convert it to i32 or another type that can be reduced");
  });
  require(op.kind != Kind::average || is_floating(dtype), [&] {
    return text(operation, ": the average of ", dtype,
                " is not an integer; use a floating point type, or sum and divide as you mean it");
  });
  require(op.factor == nullptr || (op.kind == Kind::sum && is_floating(dtype)), [&] {
    return text(operation, ": a factor needs a sum of floating point numbers, this is ", to_string(op.kind),
                " of ", dtype);
  });
}

void check_rank(char const* operation, char const* which, Rank rank, int size) {
  require(rank.value() >= 0 && rank.value() < size, [&] {
    return text(operation, ": ", which, " ", rank, " is not a rank of this communicator (0 to ", size - 1,
                ")");
  });
}

// A hash of all bits of an address, since addresses of large blocks differ in high bits only.
std::size_t place_of(std::uintptr_t address) { return address * 0x9e3779b97f4a7c15U >> 32U; }

// Copies what fits; the rest of `chars` stays zero.
template <std::size_t N>
void put(std::array<char, N>& chars, std::string_view text) {
  std::copy_n(text.data(), std::min(text.size(), N), chars.data());
}

}  // namespace

// Host memory is checked only if CUDA runs already: otherwise no pointer can be a GPU's.
CommunicatorBackend::CommunicatorBackend(Rank rank, int size, Device device) noexcept
    : Communicator(rank, size, device),
      asks_cuda_(device.kind == DeviceKind::cuda || cuda_is_initialized()) {}

// Checks one side of an operation: memory that exists, on the communicator's device. Asking CUDA takes a good
// part of the time of a small operation. So CUDA is asked once for each address, and again only if another
// address has replaced it in known_.
void CommunicatorBackend::check_view(char const* operation, char const* which, TensorView const& view) {
  require(view.device == device(), [&] {
    return text(operation, ": ", which, " is ", describe(view), ", this communicator carries memory of ",
                device());
  });
  require(view.data != nullptr || view.count() == 0,
          [&] { return text(operation, ": ", which, " is a null pointer for ", describe(view)); });
  auto const address = reinterpret_cast<std::uintptr_t>(view.data);
  require(address % size_of(view.dtype) == 0, [&] {
    return text(operation, ": ", which, " is not aligned to its elements of ", size_of(view.dtype), " bytes");
  });
  if (!asks_cuda_ || view.count() == 0) return;
  void const*& known = known_[place_of(address) % known_.size()];
  if (known == view.data) return;
  std::string const wrong = why_memory_is_elsewhere(view);
  require(wrong.empty(), [&] { return text(operation, ": ", which, " is ", wrong); });
  known = view.data;
}

void CommunicatorBackend::submit(Operation operation, Stream& stream) {
  operation.begins = std::exchange(next_begins_, {});
  if (in_group_) {
    require(group_stream_ == nullptr || group_stream_ == &stream,
            "all operations of a group must be on one stream; this one is on another");
    group_stream_ = &stream;
  }
  if (!name_.empty() && !is_recording_) {
    record(operation);
    if (log_device_placement()) log_placement(operation);
  }
  if (in_group_) {
    group_.push_back(operation);
  } else {
    enqueue({&operation, 1}, stream);
  }
}

void CommunicatorBackend::record_as(std::string_view name) {
  recorded_as_ = flight_recorder().name(name);
  name_ = name;
  collectives_ = 0;
}

std::unique_ptr<Communicator> Communicator::split(std::span<Rank const> ranks, std::string_view name) {
  CommunicatorBackend& self = backend_of(*this);
  auto part = self.split_off(ranks);
  ++self.splits_;
  if (!part) return nullptr;
  if (!name.empty()) {
    backend_of(*part).record_as(name);
  } else if (!self.name_.empty()) {
    backend_of(*part).record_as(text(self.name_, ", split ", self.splits_, " with rank ", ranks[0]));
  }
  return part;
}

void CommunicatorBackend::log_placement(Operation const& operation) const {
  log_line("placement", text(to_string(operation.kind), ' ', operation.dtype, '[', operation.count, "] on ",
                             device(), " by ", backend(), " (", name_, ')'));
}

// Records at the call, so that an operation that hangs is recorded too.
void CommunicatorBackend::record(Operation const& operation) noexcept {
  FlightRecorder::Entry entry;
  entry.sequence = ++collectives_;
  entry.count = operation.count;
  entry.peer = operation.root.value();
  entry.communicator = recorded_as_;
  entry.dtype = operation.dtype;
  put(entry.what, to_string(operation.kind));
  if (is_reduction(operation.kind)) put(entry.reduction, to_string(operation.op.kind));
  flight_recorder().record(entry);
}

void Communicator::all_reduce(TensorView const& in, TensorView const& out, ReduceOp op, Stream& stream) {
  CommunicatorBackend& self = backend_of(*this);
  self.check_view("all_reduce", "in", in);
  self.check_view("all_reduce", "out", out);
  check_pair("all_reduce", in, out, 1, 1, in.data == out.data);
  check_reduction("all_reduce", op, in.dtype);
  self.submit({OperationKind::all_reduce, in.data, out.data, in.count(), in.dtype, op, Rank{0}}, stream);
}

void Communicator::all_reduce(TensorView const& in_out, ReduceOp op, Stream& stream) {
  all_reduce(in_out, in_out, op, stream);
}

void Communicator::reduce(TensorView const& in, TensorView const& out, ReduceOp op, Rank root,
                          Stream& stream) {
  CommunicatorBackend& self = backend_of(*this);
  check_rank("reduce", "root", root, size_);
  self.check_view("reduce", "in", in);
  check_reduction("reduce", op, in.dtype);
  if (rank_ == root) {
    self.check_view("reduce", "out", out);
    check_pair("reduce", in, out, 1, 1, in.data == out.data);
  }
  self.submit({OperationKind::reduce, in.data, out.data, in.count(), in.dtype, op, root}, stream);
}

void Communicator::reduce_scatter(TensorView const& in, TensorView const& out, ReduceOp op, Stream& stream) {
  CommunicatorBackend& self = backend_of(*this);
  auto const size = static_cast<std::size_t>(size_);
  self.check_view("reduce_scatter", "in", in);
  self.check_view("reduce_scatter", "out", out);
  check_pair("reduce_scatter", in, out, size, 1, part(in, rank_.index(), out.count()) == out.data);
  check_reduction("reduce_scatter", op, in.dtype);
  self.submit({OperationKind::reduce_scatter, in.data, out.data, out.count(), in.dtype, op, Rank{0}}, stream);
}

void Communicator::all_gather(TensorView const& in, TensorView const& out, Stream& stream) {
  CommunicatorBackend& self = backend_of(*this);
  auto const size = static_cast<std::size_t>(size_);
  self.check_view("all_gather", "in", in);
  self.check_view("all_gather", "out", out);
  check_pair("all_gather", in, out, 1, size, part(out, rank_.index(), in.count()) == in.data);
  self.submit({OperationKind::all_gather, in.data, out.data, in.count(), in.dtype, {}, Rank{0}}, stream);
}

void Communicator::all_to_all(TensorView const& in, TensorView const& out, Stream& stream) {
  CommunicatorBackend& self = backend_of(*this);
  auto const size = static_cast<std::size_t>(size_);
  self.check_view("all_to_all", "in", in);
  self.check_view("all_to_all", "out", out);
  check_pair("all_to_all", in, out, 1, 1, in.data == out.data);
  require(in.count() % size == 0, [&] {
    return text("all_to_all: ", in.count(), " elements do not divide into ", size, " equal parts");
  });
  self.submit({OperationKind::all_to_all, in.data, out.data, in.count() / size, in.dtype, {}, Rank{0}},
              stream);
}

void Communicator::broadcast(TensorView const& in_out, Rank root, Stream& stream) {
  CommunicatorBackend& self = backend_of(*this);
  check_rank("broadcast", "root", root, size_);
  self.check_view("broadcast", "in_out", in_out);
  self.submit({OperationKind::broadcast, in_out.data, in_out.data, in_out.count(), in_out.dtype, {}, root},
              stream);
}

void Communicator::barrier(Stream& stream) {
  backend_of(*this).submit({OperationKind::barrier, nullptr, nullptr, 0, DType::u8, {}, Rank{0}}, stream);
}

std::string CommunicatorBackend::why_not_recorded() const {
  return text("operations over ", backend(), " cannot be recorded into a CUDA graph");
}

void CommunicatorBackend::begin_recording(Stream& /*stream*/) {
  if (std::string const why = why_not_recorded(); !why.empty()) throw Error(ErrorCode::unsupported, why);
  is_recording_ = true;
}

void CommunicatorBackend::end_recording(std::shared_ptr<RecordedGraph> const& /*graph*/) {
  is_recording_ = false;
}

void CommunicatorBackend::replay(RecordedGraph& graph, Stream& stream) {
  // Ranks compare the digest as they compare a root.
  auto const digest = static_cast<int>(graph.digest & 0x7fffffffU);
  submit({OperationKind::replay, nullptr, &graph, graph.operations, DType::u8, {}, Rank{digest}}, stream);
}

void Communicator::begin_group() {
  CommunicatorBackend& self = backend_of(*this);
  require(!self.in_group_, "groups do not nest: this communicator is in a group already");
  self.group_.clear();
  self.in_group_ = true;
}

void Communicator::end_group() {
  CommunicatorBackend& self = backend_of(*this);
  if (self.group_.empty()) return discard_group();
  self.in_group_ = false;
  self.enqueue(self.group_, *std::exchange(self.group_stream_, nullptr));
}

void Communicator::discard_group() noexcept {
  CommunicatorBackend& self = backend_of(*this);
  self.in_group_ = false;
  self.group_stream_ = nullptr;
  self.annotate("", 0);  // this group's name must not go to the next group
}

}  // namespace ddp
