#include "comm/nccl/operations.hpp"

#include <algorithm>
#include <utility>

#include "comm/kernels/cuda_kernels.hpp"
#include "comm/nccl/check.hpp"
#include "comm/nccl/group_calls.hpp"
#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"
#include "ddp/device/device_guard.hpp"
#include "ddp/device/memory.hpp"
#include "device/cuda/check.hpp"

namespace ddp {
namespace {

// Each word has a cache line of its own.
constexpr std::size_t kWordBytes = 128;

// NCCL has no i16 and no bool. They are not reduced, so any type of their size carries their bits.
ncclDataType_t type_of(DType dtype) noexcept {
  switch (dtype) {
    case DType::f64:
      return ncclFloat64;
    case DType::f32:
      return ncclFloat32;
    case DType::f16:
    case DType::i16:
      return ncclFloat16;
    case DType::bf16:
      return ncclBfloat16;
    case DType::i32:
      return ncclInt32;
    case DType::i64:
      return ncclInt64;
    case DType::u8:
    case DType::i8:
    case DType::boolean:
      break;
  }
  return ncclUint8;
}

ncclRedOp_t reduction_of(ReduceOp::Kind kind, DType dtype, NcclAverage const& average) noexcept {
  switch (kind) {
    case ReduceOp::Kind::product:
      return ncclProd;
    case ReduceOp::Kind::min:
      return ncclMin;
    case ReduceOp::Kind::max:
      return ncclMax;
    case ReduceOp::Kind::average:
      return average.reduction(dtype);
    case ReduceOp::Kind::sum:
      break;
  }
  return ncclSum;
}

}  // namespace

NcclCommunicator::Operations::Scratch::Scratch(std::size_t bytes, cudaStream_t stream) : stream_(stream) {
  cuda::check(cudaMallocAsync(&data_, bytes, stream_),
              text("memory beside an operation's own, ", to_string(Bytes{bytes})));
}

NcclCommunicator::Operations::Scratch::Scratch(Scratch&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), stream_(other.stream_) {}

NcclCommunicator::Operations::Scratch::~Scratch() {
  if (data_ == nullptr) return;
  if (cudaError_t const result = cudaFreeAsync(data_, stream_); result != cudaSuccess) {
    log(LogLevel::debug, text("freeing memory of an operation: ", cudaGetErrorName(result)));
  }
}

NcclCommunicator::Operations::Operations(Device device, Rank rank, int size, ncclComm_t communicator)
    : rank_(rank),
      size_(static_cast<std::size_t>(size)),
      communicator_(communicator),
      average_(size_, communicator),
      words_(zeros(Shape{3 * kWordBytes}, DType::u8, device)) {
  auto* const words = static_cast<std::byte*>(words_.view().data);
  barrier_word_ = words + 2 * kWordBytes;
  for (DType const dtype : {DType::f32, DType::f64}) {
    ScaledSum& sum = scaled_sum(dtype);
    sum.scalar = words + (dtype == DType::f64 ? 1 : 0) * kWordBytes;
    nccl::check(
        ncclRedOpCreatePreMulSum(&sum.reduction, sum.scalar, type_of(dtype), ncclScalarDevice, communicator_),
        "making a scaled sum");
  }
}

void NcclCommunicator::Operations::combine_in_rank_order() {
  if (size_ > 1) rank_order_.emplace(words_.view().device, rank_, size_, communicator_);
}

ncclResult_t NcclCommunicator::Operations::launch(std::span<Operation const> operations, CudaStream& stream) {
  if (rank_order_ && std::ranges::any_of(operations, &NcclRankOrder::matters)) {
    ncclResult_t const result =
        rank_order_->launch(operations, stream, [&](Operation const& other) { return call(other, stream); });
    scratch_.clear();
    return result;
  }
  for (ScaledSum& sum : scaled_sums_) sum.factor = nullptr;
  ncclResult_t result = ncclSuccess;
  if (operations.size() == 1) {
    result = call(operations[0], stream);
  } else {
    NcclGroupCalls group;
    for (Operation const& operation : operations) {
      if (result == ncclSuccess) result = call(operation, stream);
    }
    result = group.end(result);
  }
  scratch_.clear();
  if (result == ncclSuccess) {
    for (Operation const& operation : operations) finish(operation, stream);
  }
  return result;
}

// Only the root of a reduce has a result.
void NcclCommunicator::Operations::finish(Operation const& operation, CudaStream& stream) const {
  if (operation.op.kind != ReduceOp::Kind::average) return;
  if (operation.kind == OperationKind::reduce && !(operation.root == rank_)) return;
  average_.finish(operation.out, operation.count, operation.dtype, stream);
}

ncclResult_t NcclCommunicator::Operations::call(Operation const& operation, CudaStream& stream) {
  if (operation.kind == OperationKind::barrier) {
    return ncclAllReduce(barrier_word_, barrier_word_, 1, ncclInt32, ncclSum, communicator_, stream.handle());
  }
  if (operation.kind == OperationKind::replay) {
    static_cast<RecordedGraph*>(operation.out)->launch(stream);
    return ncclSuccess;
  }
  if (operation.count == 0) return ncclSuccess;
  std::size_t const count = operation.count;
  ncclDataType_t const type = type_of(operation.dtype);
  ncclRedOp_t const reduction = reduction_of(operation.op.kind, operation.dtype, average_);
  int const root = operation.root.value();
  auto const summed = [&](std::size_t elements, void* where) {
    return operation.op.factor == nullptr ? Summed{operation.in, reduction}
                                          : scaled(operation, elements, where, stream);
  };
  switch (operation.kind) {
    case OperationKind::all_reduce: {
      Summed const sum = summed(count, operation.out);
      return ncclAllReduce(sum.in, operation.out, count, type, sum.reduction, communicator_, stream.handle());
    }
    case OperationKind::reduce: {
      Summed const sum = summed(count, nullptr);
      return ncclReduce(sum.in, operation.out, count, type, sum.reduction, root, communicator_,
                        stream.handle());
    }
    case OperationKind::reduce_scatter: {
      std::size_t const before = static_cast<std::size_t>(rank_.value()) * count * size_of(operation.dtype);
      bool const in_place = static_cast<std::byte const*>(operation.in) + before == operation.out;
      Summed const sum = summed(count * size_, in_place ? const_cast<void*>(operation.in) : nullptr);
      return ncclReduceScatter(sum.in, operation.out, count, type, sum.reduction, communicator_,
                               stream.handle());
    }
    case OperationKind::all_gather:
      return ncclAllGather(operation.in, operation.out, count, type, communicator_, stream.handle());
    case OperationKind::all_to_all:
      return all_to_all(operation, stream);
    case OperationKind::broadcast:
      return ncclBroadcast(operation.in, operation.out, count, type, root, communicator_, stream.handle());
    case OperationKind::barrier:
    case OperationKind::replay:
      break;
  }
  return ncclInvalidArgument;
}

// NCCL reads the scalar when it runs, and would not turn NaN × 0 into 0, as set_factor() does. In a group,
// which is one kernel, a scalar can hold one factor only. A 16-bit factor would be too coarse. With one rank
// NCCL would leave elements out, as in an average.
NcclCommunicator::Operations::Summed NcclCommunicator::Operations::scaled(Operation const& operation,
                                                                          std::size_t count, void* where,
                                                                          CudaStream& stream) {
  double const* const factor = operation.op.factor;
  bool const wide = operation.dtype == DType::f32 || operation.dtype == DType::f64;
  ScaledSum& sum = scaled_sum(operation.dtype);
  if (size_ > 1 && operation.in == where && wide && (sum.factor == nullptr || sum.factor == factor)) {
    cuda::set_factor(sum.scalar, where, count, operation.dtype, factor, stream);
    sum.factor = factor;
    return {where, sum.reduction};
  }
  if (where == nullptr) {
    DeviceGuard const guard(stream.device());
    where = scratch_.emplace_back(count * size_of(operation.dtype), stream.handle()).data();
  }
  cuda::scale_elements(where, operation.in, count, operation.dtype, factor, stream);
  return {where, ncclSum};
}

ncclResult_t NcclCommunicator::Operations::all_to_all(Operation const& operation, CudaStream& stream) {
  std::size_t const block = operation.count * size_of(operation.dtype);
  ncclDataType_t const type = type_of(operation.dtype);
  auto const* in = static_cast<std::byte const*>(operation.in);
  auto* const out = static_cast<std::byte*>(operation.out);
  if (operation.in == operation.out) {
    DeviceGuard const guard(stream.device());
    Scratch const& copy = scratch_.emplace_back(size_ * block, stream.handle());
    cuda::check(cudaMemcpyAsync(copy.data(), in, size_ * block, cudaMemcpyDeviceToDevice, stream.handle()),
                "copying memory");
    in = static_cast<std::byte const*>(copy.data());
  }
  NcclGroupCalls group;
  ncclResult_t result = ncclSuccess;
  for (std::size_t r = 0; r < size_ && result == ncclSuccess; ++r) {
    int const peer = static_cast<int>(r);
    result = ncclSend(in + r * block, operation.count, type, peer, communicator_, stream.handle());
    if (result != ncclSuccess) break;
    result = ncclRecv(out + r * block, operation.count, type, peer, communicator_, stream.handle());
  }
  return group.end(result);
}

}  // namespace ddp
