#include "comm/nccl/rank_order.hpp"

#include <cuda_runtime_api.h>

#include "comm/kernels/element_parts.hpp"
#include "comm/nccl/group_calls.hpp"
#include "core/round_up.hpp"
#include "ddp/device/device_guard.hpp"
#include "ddp/device/memory.hpp"
#include "device/cuda/check.hpp"

namespace ddp {
namespace {

// Up to so many bytes from all ranks together go to every rank, which saves a second exchange.
constexpr std::size_t kSmall = std::size_t{256} << 10;
// Of parts, so that kernels load whole packs.
constexpr std::size_t kPartBytes = 128;

}  // namespace

NcclRankOrder::NcclRankOrder(Device device, Rank rank, std::size_t ranks, ncclComm_t communicator)
    : device_(device), rank_(rank.index()), ranks_(ranks), communicator_(communicator) {
  for (DType const each : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    cuda::load_reduce_in_rank_order(each);
  }
}

bool NcclRankOrder::matters(Operation const& operation) noexcept {
  using Kind = ReduceOp::Kind;
  Kind const kind = operation.op.kind;
  return is_reduction(operation.kind) && is_floating(operation.dtype) && kind != Kind::min &&
         kind != Kind::max && operation.count > 0;
}

ncclResult_t NcclRankOrder::launch(std::span<Operation const> operations, CudaStream& stream,
                                   Call const& call) {
  plan(operations);
  NcclGroupCalls exchanges;
  ncclResult_t result = ncclSuccess;
  for (Operation const& operation : operations) {
    if (result == ncclSuccess && !matters(operation)) result = call(operation);
  }
  for (Piece const& piece : pieces_) {
    if (result == ncclSuccess) result = exchange(piece, stream);
  }
  result = exchanges.end(result);
  if (result != ncclSuccess) return result;

  for (Piece const& piece : pieces_) reduce(piece, stream);

  NcclGroupCalls results;
  for (Piece const& piece : pieces_) {
    if (result == ncclSuccess) result = give(piece, stream);
  }
  return results.end(result);
}

void NcclRankOrder::plan(std::span<Operation const> operations) {
  pieces_.clear();
  bytes_ = 0;
  for (Operation const& operation : operations) {
    if (!matters(operation)) continue;
    std::size_t const count = operation.count;
    std::size_t const size = size_of(operation.dtype);
    std::size_t part = 0;
    if (operation.kind == OperationKind::reduce_scatter) {
      add({&operation, 0, count, true});
      continue;
    }
    if (operation.kind == OperationKind::all_reduce && count * size * ranks_ > kSmall) {
      std::size_t const unit = kPartBytes / size;
      part = count / ranks_ / unit * unit;
    }
    if (part > 0) add({&operation, 0, part, true});
    if (part * ranks_ < count) add({&operation, part * ranks_, count - part * ranks_, false});
  }
  make_room(bytes_);
}

void NcclRankOrder::add(Piece piece) {
  piece.pitch = round_up(piece.count * size_of(piece.operation->dtype), kPartBytes);
  piece.received = bytes_;
  bytes_ += (ranks_ - 1) * piece.pitch + round_up(ranks_ * sizeof(double), kPartBytes);
  pieces_.push_back(piece);
}

// Steps are alike, so this happens in the first ones only.
void NcclRankOrder::make_room(std::size_t bytes) {
  if (!memory_.empty() && memory_.back().view().count() >= bytes) return;
  memory_.push_back(zeros(Shape{bytes}, DType::u8, device_));
}

bool NcclRankOrder::receives(Piece const& piece, std::size_t rank) const noexcept {
  return piece.operation->kind != OperationKind::reduce || piece.operation->root.index() == rank;
}

cuda::RankElements NcclRankOrder::elements(Piece const& piece) const {
  std::size_t const size = size_of(piece.operation->dtype);
  std::byte const* const received = at(memory_.back().view().data, piece.received, 1);
  return {.own = at(piece.operation->in, piece.begin_of(rank_), size),
          .others = received,
          .pitch = piece.pitch,
          .rank = rank_,
          .ranks = ranks_,
          .factors = piece.operation->op.factor == nullptr
                         ? nullptr
                         : reinterpret_cast<double const*>(received + (ranks_ - 1) * piece.pitch)};
}

ncclResult_t NcclRankOrder::exchange(Piece const& piece, CudaStream& stream) const {
  Operation const& operation = *piece.operation;
  cuda::RankElements const from = elements(piece);
  auto* const received = static_cast<std::byte*>(const_cast<void*>(from.others));
  auto* const factors = const_cast<double*>(from.factors);
  std::size_t const size = size_of(operation.dtype);
  if (factors != nullptr) {
    DeviceGuard const guard(device_);
    cuda::check(cudaMemcpyAsync(factors + rank_, operation.op.factor, sizeof(double), cudaMemcpyDefault,
                                stream.handle()),
                "copying a factor");
  }
  ncclResult_t result = ncclSuccess;
  auto const made = [&](ncclResult_t call) { return (result = call) == ncclSuccess; };
  for (std::size_t r = 0; r < ranks_; ++r) {
    int const peer = static_cast<int>(r);
    if (r == rank_) continue;
    if (receives(piece, r)) {
      void const* const part = at(operation.in, piece.begin_of(r), size);
      if (!made(ncclSend(part, piece.count * size, ncclUint8, peer, communicator_, stream.handle()))) break;
      if (factors != nullptr &&
          !made(ncclSend(factors + rank_, 1, ncclFloat64, peer, communicator_, stream.handle()))) {
        break;
      }
    }
    if (receives(piece, rank_)) {
      void* const theirs = received + (r < rank_ ? r : r - 1) * from.pitch;
      if (!made(ncclRecv(theirs, piece.count * size, ncclUint8, peer, communicator_, stream.handle()))) break;
      if (factors != nullptr &&
          !made(ncclRecv(factors + r, 1, ncclFloat64, peer, communicator_, stream.handle()))) {
        break;
      }
    }
  }
  return result;
}

void NcclRankOrder::reduce(Piece const& piece, CudaStream& stream) const {
  Operation const& operation = *piece.operation;
  if (!receives(piece, rank_)) return;
  bool const is_scattered = operation.kind == OperationKind::reduce_scatter;
  std::size_t const to = is_scattered ? 0 : piece.begin_of(rank_);
  cuda::reduce_in_rank_order(at(operation.out, to, size_of(operation.dtype)), elements(piece), piece.count,
                             operation.dtype, operation.op.kind, stream);
}

ncclResult_t NcclRankOrder::give(Piece const& piece, CudaStream& stream) const {
  Operation const& operation = *piece.operation;
  if (operation.kind != OperationKind::all_reduce || !piece.is_parted) return ncclSuccess;
  std::size_t const bytes = piece.count * size_of(operation.dtype);
  return ncclAllGather(at(operation.out, rank_ * bytes, 1), operation.out, bytes, ncclUint8, communicator_,
                       stream.handle());
}

}  // namespace ddp
