#include "comm/staged/communicator.hpp"

#include <algorithm>
#include <exception>

#include "comm/default_allocation.hpp"
#include "comm/solo/communicator.hpp"
#include "ddp/core/text.hpp"
#include "ddp/device/device_guard.hpp"
#include "ddp/device/memory.hpp"
#include "ddp/device/tensor_ops.hpp"
#include "device/stream/stream_watch.hpp"

namespace ddp {
namespace {

// A communicator takes two of these. With smaller ones most time would go into starting copies, and one
// operation could fill the GPU's queue of a thousand entries.
constexpr std::size_t kHalfBytes = (4_MiB).value;

std::byte* at(void const* base, std::size_t element, DType dtype) {
  return static_cast<std::byte*>(const_cast<void*>(base)) + element * size_of(dtype);
}

}  // namespace

// The parts of one call. While one part goes through the inner communicator, the device's stream copies the
// part before it out and the one after it in:
//   stream: in 0, in 1, wait for 0, out 0, in 2, wait for 1, out 1, …
//   host:   await in 0, pass on 0, await in 1, say that 0 is done, pass on 1, await in 2, …
// The host says that 0 is done only after it has awaited in 1. That costs nothing, since the stream copies 1
// in before it waits for 0. It says so after a failure too, so that no failure leaves a GPU waiting. The
// host's stream never calls CUDA here: the driver may be locked until this very GPU moves on.
class StagedCommunicator::Pipeline {
 public:
  Pipeline(StagedCommunicator& communicator, Stream& stream) : self_(communicator), stream_(stream) {}

  /// Host memory for the next part. Before that part is copied in, the stream has copied out what is there
  /// now.
  [[nodiscard]] std::byte* staging() const { return self_.half(pushed_ % 2); }
  [[nodiscard]] double* factor() const { return &self_.factors_.as<double>()[pushed_ % 2]; }

  void push(Part const& part) {
    self_.copy_in(part, stream_);
    self_.host_.wait(stream_);
    if (pushed_ != 0) stream_.wait(self_.host_);
    self_.pass_on(part);
    if (pushed_ != 0) self_.copy_out(previous_, stream_);
    previous_ = part;
    ++pushed_;
  }
  void finish() {
    if (pushed_ == 0) return;
    stream_.wait(self_.host_);
    self_.copy_out(previous_, stream_);
  }

 private:
  StagedCommunicator& self_;
  Stream& stream_;
  Part previous_;
  std::size_t pushed_ = 0;
};

StagedCommunicator::StagedCommunicator(std::unique_ptr<Communicator> inner, Device device,
                                       std::chrono::milliseconds timeout,
                                       std::shared_ptr<StepCommits> commits)
    : CommunicatorBackend(inner->rank(), inner->size(), device),
      inner_(std::move(inner)),
      timeout_(timeout),
      commits_(std::move(commits)),
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

// If the inner communicator fails, so do its operations on the host's stream, with the same error.
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
    for (Operation const& operation : operations) run(operation, pipeline);
    pipeline.finish();
    last_.was_enqueued(stream);
  } catch (std::exception const& error) {
    abort(error.what());
    throw;
  }
}

void StagedCommunicator::run(Operation const& operation, Pipeline& pipeline) {
  std::size_t const most = kHalfBytes / size_of(operation.dtype) / slots(operation.kind);
  std::size_t offset = 0;
  do {
    std::size_t const length = std::min(most, operation.count - offset);
    pipeline.push({operation, offset, length, pipeline.staging(), pipeline.factor()});
    offset += length;
  } while (offset < operation.count);
}

std::byte* StagedCommunicator::half(std::size_t index) const noexcept {
  return static_cast<std::byte*>(staging_.view().data) + index * kHalfBytes;
}

// How many blocks of its own length a part takes in staging.
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
      return {operation.root == rank() ? 1U : 0U, 0};
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
      return {operation.root == rank() ? 0U : 1U, 0};
    case OperationKind::reduce:
      return {operation.root == rank() ? 1U : 0U, 0};
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
void StagedCommunicator::pass_on(Part const& part) {
  Operation inner = part.operation;
  inner.in = on_host(part, input(inner).first).data;
  inner.out = on_host(part, output(inner).first).data;
  inner.count = part.length;
  inner.whole = part.operation.count;
  if (inner.op.factor != nullptr) inner.op.factor = part.factor;
  backend_of(*inner_).enqueue({&inner, 1}, host_);
  host_.enqueue_always([this] { tell_of_failure(); });
}

// Before the device goes on, which it does after a failure too. If the host's stream has failed because the
// stream that it waited for failed, the other ranks need not wait for this one.
void StagedCommunicator::tell_of_failure() {
  try {
    host_.watch()->check();
  } catch (std::exception const& error) {
    if (commits_) commits_->poison();
    inner_->abort(error.what());
  }
}

void StagedCommunicator::finish_operations(char const* what) const {
  last_.wait(
      what, timeout_, [this] { check_health(); },
      [this](Failure const& failure) { inner_->abort(to_string(failure)); });
}

std::unique_ptr<Communicator> StagedCommunicator::split_off(std::span<Rank const> ranks) {
  finish_operations("split");
  auto child = inner_->split(ranks);
  if (!child) return nullptr;
  if (child->size() == 1) return std::make_unique<SoloCommunicator>(device(), timeout_);
  return std::make_unique<StagedCommunicator>(std::move(child), device(), timeout_, commits_);
}

Tensor StagedCommunicator::allocate(Bytes bytes) {
  finish_operations("allocate");
  return default_allocation_together(*inner_, bytes, device(), all_ranks(size()));
}

}  // namespace ddp
