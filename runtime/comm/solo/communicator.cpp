#include "comm/solo/communicator.hpp"

#include "comm/default_allocation.hpp"
#include "comm/kernels/cuda_kernels.hpp"
#include "comm/kernels/reduce_kernels.hpp"
#include "ddp/core/text.hpp"
#include "ddp/device/tensor_ops.hpp"

namespace ddp {

SoloCommunicator::SoloCommunicator(Device device, std::chrono::milliseconds timeout)
    : CommunicatorBackend(Rank{0}, 1, device), timeout_(timeout), last_(device) {}

void SoloCommunicator::enqueue(std::span<Operation const> operations, Stream& stream) {
  check_health();
  if (operations[0].begins.begins()) since_ = operations[0].begins.since();
  for (Operation const& operation : operations) run(operation, stream);
  last_.was_enqueued(stream);
}

std::string SoloCommunicator::why_not_recorded() const {
  return device().kind == DeviceKind::cuda ? "" : "a CPU has no CUDA graphs";
}

void SoloCommunicator::run(Operation const& operation, Stream& stream) {
  if (operation.kind == OperationKind::replay) {
    static_cast<RecordedGraph*>(operation.out)->launch(stream);
    return;
  }
  if (operation.count == 0) return;
  double const* const factor = operation.op.factor;
  if (factor == nullptr) {
    Shape const shape{operation.count};
    void* const in = const_cast<void*>(operation.in);  // only read
    copy_elements({operation.out, shape, operation.dtype, device()}, {in, shape, operation.dtype, device()},
                  stream);
  } else if (device().kind == DeviceKind::cuda) {
    cuda::scale_elements(operation.out, operation.in, operation.count, operation.dtype, factor, stream);
  } else {
    host_stream(stream).enqueue([operation] {
      ReduceSource const source{operation.in, *operation.op.factor};
      reduce_elements({&operation.out, 1}, {&source, 1}, operation.count, operation.dtype, operation.op.kind,
                      true);
    });
  }
}

void SoloCommunicator::finish_operations(char const* what) const {
  last_.wait(
      what, timeout_, [this] { check_health(); }, [](Failure const&) {});
}

std::unique_ptr<Communicator> SoloCommunicator::split_off(std::span<Rank const> ranks) {
  finish_operations("split");
  if (ranks.empty()) return nullptr;
  require(ranks.size() == 1 && ranks[0] == 0, [&] {
    return text("split: the only rank, 0, gave the group [", join(ranks, ", "),
                "]; expected [0] or an empty one");
  });
  return std::make_unique<SoloCommunicator>(device(), timeout_);
}

Tensor SoloCommunicator::allocate(Bytes bytes) {
  finish_operations("allocate");
  return default_allocation(bytes, device());
}

}  // namespace ddp
