#include "comm/staged/communicator.hpp"

#include <algorithm>
#include <exception>

#include "comm/default_allocation.hpp"
#include "comm/fingerprint.hpp"
#include "comm/solo/communicator.hpp"
#include "ddp/core/text.hpp"
#include "ddp/device/device_guard.hpp"
#include "ddp/device/memory.hpp"
#include "ddp/device/tensor_ops.hpp"
#include "device/stream/stream_watch.hpp"

namespace ddp {
namespace {

// A communicator costs two of these. Smaller ones would spend their time on starting copies, and let one
// operation fill the GPU's queue of a thousand entries.
constexpr std::size_t kHalfBytes = (4_MiB).value;

std::byte* at(void const* base, std::size_t element, DType dtype) {
  return static_cast<std::byte*>(const_cast<void*>(base)) + element * size_of(dtype);
}

}  // namespace

// The steps of one call. While one step goes through the inner communicator, the device's stream copies the
// step before it out and the one after it in:
//   stream: in 0, in 1, wait for 0, out 0, in 2, wait for 1, out 1, …
//   host:   await in 0, pass on 0, await in 1, say that 0 is done, pass on 1, await in 2, …
// The host says that 0 is done only after it has awaited in 1. That costs nothing, since the stream copies 1
// in before it waits for 0. It says so after a failure too, so that no failure leaves a GPU waiting. The
// host's stream never calls CUDA here: the driver may be locked until this very GPU moves on.
class StagedCommunicator::Pipeline {
 public:
  Pipeline(StagedCommunicator& communicator, Stream& stream) : self_(communicator), stream_(stream) {}

  /// Host memory for the next step. The stream has copied out by then what is there now.
  [[nodiscard]] std::byte* staging() const { return self_.half(pushed_ % 2); }
  [[nodiscard]] double* factor() const { return &self_.factors_.as<double>()[pushed_ % 2]; }

  void push(Step const& step) {
    for (std::size_t i = 0; i < step.count; ++i) self_.copy_in(step.parts[i], stream_);
    self_.host_.wait(stream_);
    if (pushed_ != 0) stream_.wait(self_.host_);
    self_.pass_on(step);
    if (pushed_ != 0) copy_out(previous_);
    previous_ = step;
    ++pushed_;
  }
  void finish() {
    if (pushed_ == 0) return;
    stream_.wait(self_.host_);
    copy_out(previous_);
  }

 private:
  void copy_out(Step const& step) {
    for (std::size_t i = 0; i < step.count; ++i) self_.copy_out(step.parts[i], stream_);
  }

  StagedCommunicator& self_;
  Stream& stream_;
  Step previous_;
  std::size_t pushed_ = 0;
};

// The parts of a rank's messages of one direction with one peer, in their order.
class StagedCommunicator::Messages {
 public:
  Messages(std::span<Operation const> all, OperationKind kind, int peer)
      : all_(all), kind_(kind), peer_(peer) {}

  /// Adds the next part, if there is one, to `step`, to lie at `staging`.
  void add_to(Step& step, std::byte* staging) {
    while (next_ < all_.size() && (all_[next_].kind != kind_ || !(all_[next_].peer == peer_))) ++next_;
    if (next_ == all_.size()) return;
    Operation const& message = all_[next_];
    std::size_t const length = std::min(kHalfBytes / 2 / size_of(message.dtype), message.count - offset_);
    step.parts[step.count++] = {message, offset_, length, staging, nullptr};
    offset_ += length;
    if (offset_ < message.count) return;
    ++next_;
    offset_ = 0;
  }

 private:
  std::span<Operation const> all_;
  OperationKind kind_;
  int peer_;
  std::size_t next_ = 0;
  std::size_t offset_ = 0;
};

StagedCommunicator::StagedCommunicator(std::unique_ptr<Communicator> inner, Device device,
                                       std::chrono::milliseconds timeout)
    : Communicator(inner->rank(), inner->size(), device),
      inner_(std::move(inner)),
      timeout_(timeout),
      last_(device) {
  require(inner_->device().kind == DeviceKind::cpu, [&] {
    return text("a staged communicator needs one for host memory, not for ", inner_->device());
  });
  try {
    DeviceGuard const guard(device);
    staging_ = pinned_zeros(Shape{2 * kHalfBytes}, DType::u8);
    factors_ = pinned_zeros(Shape{2}, DType::f64);
  } catch (std::exception const& error) {
    inner_->abort(error.what());
    throw;
  }
}

// What the inner communicator failed with, its operations on the host's stream failed with too.
void StagedCommunicator::check_health() const {
  try {
    inner_->check_health();
  } catch (std::exception const&) {
    host_.watch()->program_knows();
    throw;
  }
}

void StagedCommunicator::abort(std::string_view reason) noexcept {
  host_.watch()->program_knows();
  inner_->abort(reason);
}

void StagedCommunicator::enqueue(std::span<Operation const> operations, Stream& stream) {
  check_health();
  require(stream.device() == device(), [&] {
    return text(to_string(operations[0].kind), ": expected a stream of ", device(), ", found one of ",
                stream.device());
  });
  try {
    Pipeline pipeline(*this, stream);
    for (Operation const& operation : operations) {
      if (!is_message(operation.kind)) run_collective(operation, pipeline);
    }
    run_messages(operations, pipeline);
    pipeline.finish();
    last_.was_enqueued(stream);
  } catch (std::exception const& error) {
    abort(error.what());
    throw;
  }
  // If the host's stream has failed because the stream that it waited for failed, the others need not wait
  // for this rank.
  host_.enqueue_always([this] {
    try {
      host_.watch()->check();
    } catch (std::exception const& error) {
      inner_->abort(error.what());
    }
  });
}

void StagedCommunicator::run_collective(Operation const& operation, Pipeline& pipeline) {
  std::size_t const most = kHalfBytes / size_of(operation.dtype) / slots(operation.kind);
  std::size_t offset = 0;
  do {
    std::size_t const length = std::min(most, operation.count - offset);
    Step step;
    step.parts[step.count++] = {operation, offset, length, pipeline.staging(), pipeline.factor()};
    pipeline.push(step);
    offset += length;
  } while (offset < operation.count);
}

// Moves those operations that are messages. In each round every rank sends to the rank `distance` after it
// and receives from the one `distance` before it: a rank waits only for what its peer does in the same round.
void StagedCommunicator::run_messages(std::span<Operation const> operations, Pipeline& pipeline) {
  for (int distance = 0; distance < size(); ++distance) {
    Messages sends(operations, OperationKind::send, (rank().value() + distance) % size());
    Messages receives(operations, OperationKind::recv, (rank().value() + size() - distance) % size());
    for (;;) {
      Step step;
      sends.add_to(step, pipeline.staging());
      receives.add_to(step, pipeline.staging() + kHalfBytes / 2);
      if (step.count == 0) break;
      pipeline.push(step);
    }
  }
}

std::byte* StagedCommunicator::half(std::size_t index) const noexcept {
  return static_cast<std::byte*>(staging_.view().data) + index * kHalfBytes;
}

// How many blocks of its length a part takes in staging.
std::size_t StagedCommunicator::slots(OperationKind kind) const noexcept {
  return has_block_of_every_rank(kind) ? static_cast<std::size_t>(size()) : 1;
}

StagedCommunicator::Side StagedCommunicator::input(Operation const& operation) const noexcept {
  switch (operation.kind) {
    case OperationKind::reduce_scatter:
    case OperationKind::all_to_all:
      return {static_cast<std::size_t>(size()), 0};
    case OperationKind::all_gather:
      return {1, rank().index()};
    case OperationKind::broadcast:
      return {operation.peer == rank() ? 1U : 0U, 0};
    default:
      return {operation.in != nullptr ? 1U : 0U, 0};
  }
}

StagedCommunicator::Side StagedCommunicator::output(Operation const& operation) const noexcept {
  switch (operation.kind) {
    case OperationKind::all_gather:
    case OperationKind::all_to_all:
      return {static_cast<std::size_t>(size()), 0};
    case OperationKind::reduce_scatter:
      return {1, rank().index()};
    case OperationKind::broadcast:
      return {operation.peer == rank() ? 0U : 1U, 0};
    case OperationKind::reduce:
      return {operation.peer == rank() ? 1U : 0U, 0};
    default:
      return {operation.out != nullptr ? 1U : 0U, 0};
  }
}

TensorView StagedCommunicator::on_host(Part const& part, std::size_t slot) const {
  return {at(part.staging, slot * part.length, part.operation.dtype), Shape{part.length},
          part.operation.dtype, inner_->device()};
}

TensorView StagedCommunicator::on_device(Part const& part, void const* base, std::size_t block) const {
  Operation const& operation = part.operation;
  return {at(base, block * operation.count + part.offset, operation.dtype), Shape{part.length},
          operation.dtype, device()};
}

void StagedCommunicator::copy_in(Part const& part, Stream& stream) const {
  Side const side = input(part.operation);
  for (std::size_t block = 0; block < side.blocks; ++block) {
    copy_elements(on_host(part, side.first + block), on_device(part, part.operation.in, block), stream);
  }
  double const* const factor = part.operation.op.factor;
  if (factor == nullptr) return;
  copy_elements({part.factor, Shape{1}, DType::f64, inner_->device()},
                {const_cast<double*>(factor), Shape{1}, DType::f64, device()}, stream);
}

void StagedCommunicator::copy_out(Part const& part, Stream& stream) const {
  Side const side = output(part.operation);
  for (std::size_t block = 0; block < side.blocks; ++block) {
    copy_elements(on_device(part, part.operation.out, block), on_host(part, side.first + block), stream);
  }
}

// Every collective works in place in staging.
void StagedCommunicator::pass_on(Step const& step) {
  std::array<Operation, 2> operations;
  for (std::size_t i = 0; i < step.count; ++i) {
    Part const& part = step.parts[i];
    Operation& inner = operations[i] = part.operation;
    inner.in = on_host(part, input(inner).first).data;
    inner.out = on_host(part, output(inner).first).data;
    inner.count = part.length;
    inner.whole = part.operation.count;
    if (inner.op.factor != nullptr) inner.op.factor = part.factor;
  }
  forward(*inner_, std::span(operations).first(step.count), host_);
}

void StagedCommunicator::finish_operations(char const* what) const {
  last_.wait(
      what, timeout_, [this] { check_health(); },
      [this](std::string const& message) { inner_->abort(message); });
}

std::unique_ptr<Communicator> StagedCommunicator::split_off(std::span<Rank const> ranks) {
  finish_operations("split");
  auto child = inner_->split(ranks);
  if (!child) return nullptr;
  if (child->size() == 1) return std::make_unique<SoloCommunicator>(device(), timeout_);
  return std::make_unique<StagedCommunicator>(std::move(child), device(), timeout_);
}

Tensor StagedCommunicator::allocate(Bytes bytes) {
  finish_operations("allocate");
  return default_allocation_together(*inner_, bytes, device(), all_ranks(size()));
}

}  // namespace ddp
