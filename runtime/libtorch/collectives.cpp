#include "ddp/libtorch/collectives.hpp"

#include <ATen/Functions.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/variable.h>

#include <string>
#include <utility>
#include <vector>

#include "ddp/core/text.hpp"
#include "ddp/libtorch/distributed_data_parallel.hpp"
#include "libtorch/gpu_streams.hpp"
#include "libtorch/tensor_view.hpp"

namespace ddp::libtorch {
namespace {

// For bool only these mean something, and communicators reduce the bytes.
bool is_reduced_as_bytes(at::Tensor const& tensor, ReduceOp op) {
  return tensor.scalar_type() == at::kBool &&
         (op.kind == ReduceOp::Kind::max || op.kind == ReduceOp::Kind::min);
}

}  // namespace

class Collectives::Impl {
 public:
  explicit Impl(World world) : world_(std::move(world)), streams_(GpuStreams::of(world_.device())) {
    if (world_.device().kind == DeviceKind::cuda && world_.size() > 1) require_one_nccl();
  }

  void all_reduce(at::Tensor const& tensor, ReduceOp op) {
    write("all_reduce", tensor, [&](at::Tensor const& values) {
      TensorView const view = reduced("all_reduce", values, op);
      in_turn([&](Stream& stream) { world_.communicator().all_reduce(view, op, stream); });
    });
  }

  void broadcast(at::Tensor const& tensor, Rank root) {
    write("broadcast", tensor, [&](at::Tensor const& values) {
      TensorView const view = view_of("broadcast", values);
      in_turn([&](Stream& stream) { world_.communicator().broadcast(view, root, stream); });
    });
  }

  at::Tensor all_gather(at::Tensor const& tensor) {
    at::Tensor const mine = values_of("all_gather", tensor);
    std::vector<std::int64_t> shape = mine.sizes().vec();
    if (shape.empty()) shape.push_back(1);
    shape[0] *= world_.size();
    at::Tensor all = at::empty(shape, mine.options());
    TensorView const in = view_of("all_gather", mine);
    TensorView const out = view_of("all_gather", all);
    in_turn([&](Stream& stream) { world_.communicator().all_gather(in, out, stream); });
    return all;
  }

  at::Tensor reduce_scatter(at::Tensor const& tensor, ReduceOp op) {
    at::Tensor const whole = values_of("reduce_scatter", tensor);
    require(whole.dim() > 0 && whole.size(0) % world_.size() == 0, [&] {
      return text("reduce_scatter: expected a first dimension that ", world_.size(),
                  " ranks can share equally, found a tensor of shape ", c10::str(whole.sizes()),
                  ": pad it to a multiple");
    });
    std::vector<std::int64_t> shape = whole.sizes().vec();
    shape[0] /= world_.size();
    at::Tensor part = at::empty(shape, whole.options());
    TensorView const in = reduced("reduce_scatter", whole, op);
    TensorView const out = reduced("reduce_scatter", part, op);
    in_turn([&](Stream& stream) { world_.communicator().reduce_scatter(in, out, op, stream); });
    return part;
  }

  void barrier() {
    require_no_capture("barrier");
    in_turn([&](Stream& stream) { world_.communicator().barrier(stream); });
    world_.stream().synchronize();
  }

 private:
  template <class Operation>
  void in_turn(Operation operation) {
    streams_->in_turn(world_.stream(), operation);
  }

  // `operation` writes into a tensor of these values, which are then `tensor`'s.
  template <class Operation>
  void write(char const* name, at::Tensor const& tensor, Operation operation) {
    at::Tensor const values = values_of(name, tensor);
    require(at::has_internal_overlap(tensor) != at::MemOverlap::Yes, [&] {
      return text(name,
                  ": several elements of the tensor have one place in memory, so it cannot be written: "
                  "pass tensor.clone()");
    });
    operation(values);
    at::NoGradGuard const no_graph;
    if (!values.is_alias_of(tensor)) {
      tensor.copy_(values);
    } else if (!tensor.is_inference()) {
      torch::autograd::impl::bump_version(tensor);  // by which autograd and buffers notice
    }
  }

  // A row-major tensor of the values, without a lazy conjugate or sign: `tensor` itself if it is one.
  at::Tensor values_of(char const* name, at::Tensor const& tensor) const {
    require_no_capture(name);
    require(tensor.defined(), [&] { return text(name, ": expected a tensor, found an undefined one"); });
    c10::Device const own = device(world_);
    require(tensor.device() == own, [&] {
      return text(name, ": expected a tensor on ", own.str(), ", this rank's device, found one on ",
                  tensor.device().str(), ": move it to ddp::libtorch::device(world)");
    });
    require(!(tensor.requires_grad() && at::GradMode::is_enabled()), [&] {
      return text(name,
                  ": the tensor requires gradients, which would end here: pass tensor.detach(), or call "
                  "it under torch::NoGradGuard");
    });
    at::Tensor const values = tensor.detach().resolve_conj().resolve_neg();
    static_cast<void>(view_of(name, values));  // refuses what is not dense
    return values.contiguous();
  }

  void require_no_capture(char const* name) const {
    if (!streams_->is_capturing()) return;
    throw Error(ErrorCode::unsupported,
                text(name,
                     ": PyTorch's current stream is being recorded into a CUDA graph: "
                     "call it before or after the recorded step"));
  }

  TensorView view_of(char const* name, at::Tensor const& values) const {
    return libtorch::view_of(values, world_.device(), text(name, ": the tensor")).value;
  }

  TensorView reduced(char const* name, at::Tensor const& values, ReduceOp op) const {
    require(!values.is_complex() || op.kind == ReduceOp::Kind::sum || op.kind == ReduceOp::Kind::average,
            [&] {
              return text(name, ": there is no ", to_string(op.kind),
                          " of complex numbers; expected sum or average");
            });
    TensorView view = view_of(name, values);
    if (is_reduced_as_bytes(values, op)) view.dtype = DType::u8;
    return view;
  }

  World world_;
  std::unique_ptr<GpuStreams> streams_;
};

Collectives::Collectives(World world) : impl_(std::make_unique<Impl>(std::move(world))) {}
Collectives::~Collectives() = default;
Collectives::Collectives(Collectives&& other) noexcept = default;
Collectives& Collectives::operator=(Collectives&& other) noexcept = default;
void Collectives::all_reduce(at::Tensor const& tensor, ReduceOp op) { impl_->all_reduce(tensor, op); }
at::Tensor Collectives::all_gather(at::Tensor const& tensor) { return impl_->all_gather(tensor); }
void Collectives::broadcast(at::Tensor const& tensor, Rank root) { impl_->broadcast(tensor, root); }
at::Tensor Collectives::reduce_scatter(at::Tensor const& tensor, ReduceOp op) {
  return impl_->reduce_scatter(tensor, op);
}
void Collectives::barrier() { impl_->barrier(); }

}  // namespace ddp::libtorch
