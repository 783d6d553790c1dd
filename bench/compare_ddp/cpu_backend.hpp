// What carries c10d's operations between CPU ranks: ddp's communicator. PyTorch's wheel comes without the
// headers of Gloo, and on CPUs the comparison only shows that it works.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "ddp/ddp.hpp"

namespace compare {

class CpuBackend : public c10d::Backend {
 public:
  explicit CpuBackend(ddp::World world)
      : Backend(static_cast<int>(world.rank().index()), world.size()), world_(std::move(world)) {}

  [[nodiscard]] std::string const getBackendName() const override { return "ddp"; }

  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors,
                                           c10d::BroadcastOptions const& options) override {
    for (at::Tensor const& each : tensors) {
      world_.communicator().broadcast(bytes_of(each), ddp::Rank{static_cast<int>(options.rootRank)},
                                      world_.stream());
    }
    return done(tensors, c10d::OpType::BROADCAST);
  }

  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           c10d::AllreduceOptions const& options) override {
    TORCH_CHECK(options.reduceOp == c10d::ReduceOp::SUM, "expected a sum");
    for (at::Tensor const& each : tensors) {
      world_.communicator().all_reduce(view_of(each), ddp::ReduceOp::sum(), world_.stream());
    }
    return done(tensors, c10d::OpType::ALLREDUCE);
  }

 private:
  class Done : public c10d::Work {
   public:
    Done(int rank, c10d::OpType operation, std::vector<at::Tensor> const& tensors)
        : Work(rank, operation),
          future_(c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()))) {
      future_->markCompleted(c10::IValue(tensors));
      finish();
    }
    c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }

   private:
    c10::intrusive_ptr<c10::ivalue::Future> future_;
  };

  c10::intrusive_ptr<c10d::Work> done(std::vector<at::Tensor> const& tensors, c10d::OpType operation) {
    return c10::make_intrusive<Done>(getRank(), operation, tensors);
  }

  static ddp::TensorView bytes_of(at::Tensor const& tensor) {
    TORCH_CHECK(tensor.is_contiguous(), "expected a contiguous tensor");
    return {tensor.data_ptr(), ddp::Shape{tensor.nbytes()}, ddp::DType::u8};
  }

  static ddp::TensorView view_of(at::Tensor const& tensor) {
    ddp::TensorView view = bytes_of(tensor);
    view.shape = ddp::Shape{static_cast<std::size_t>(tensor.numel())};
    switch (tensor.scalar_type()) {
      case torch::kFloat32:
        view.dtype = ddp::DType::f32;
        break;
      case torch::kFloat64:
        view.dtype = ddp::DType::f64;
        break;
      case torch::kBFloat16:
        view.dtype = ddp::DType::bf16;
        break;
      case torch::kInt32:
        view.dtype = ddp::DType::i32;
        break;
      case torch::kInt64:
        view.dtype = ddp::DType::i64;
        break;
      default:
        TORCH_CHECK(false, "expected f32, f64, bf16, i32 or i64, found ", tensor.scalar_type());
    }
    return view;
  }

  ddp::World world_;
};

}  // namespace compare
