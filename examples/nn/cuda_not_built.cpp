// What a build without CUDA has for the layers of GPUs. It makes no stream of a GPU, so that no program gets
// here.
#include "ddp/core/text.hpp"
#include "nn/adam.hpp"
#include "nn/linear.hpp"
#include "nn/relu.hpp"
#include "nn/sgd.hpp"
#include "nn/softmax_cross_entropy.hpp"

namespace nn::cuda {
namespace {

[[noreturn]] void refuse(ddp::Device device) {
  throw ddp::Error(ddp::ErrorCode::unsupported,
                   ddp::text("the layers of nn/ were built without CUDA and cannot work on ", device));
}

}  // namespace

std::shared_ptr<cublasContext> make_cublas(ddp::Stream& stream) { refuse(stream.device()); }
void linear_forward(Context const& context, ddp::TensorView const& /*x*/, ddp::TensorView const& /*weight*/,
                    ddp::TensorView const& /*bias*/, ddp::TensorView const& /*y*/) {
  refuse(context.device());
}
void linear_backward_weights(Context const& context, ddp::TensorView const& /*x*/,
                             ddp::TensorView const& /*dy*/, ddp::TensorView const& /*weight_gradient*/,
                             ddp::TensorView const& /*bias_gradient*/) {
  refuse(context.device());
}
void linear_backward_input(Context const& context, ddp::TensorView const& /*dy*/,
                           ddp::TensorView const& /*weight*/, ddp::TensorView const& /*dx*/) {
  refuse(context.device());
}
void relu_forward(Context const& context, ddp::TensorView const& /*y*/) { refuse(context.device()); }
void relu_backward(Context const& context, ddp::TensorView const& /*y*/, ddp::TensorView const& /*dy*/) {
  refuse(context.device());
}
void softmax_cross_entropy(Context const& context, ddp::TensorView const& /*logits*/,
                           ddp::TensorView const& /*labels*/, ddp::TensorView const& /*dlogits*/,
                           ddp::TensorView const& /*sums*/, std::size_t /*of*/) {
  refuse(context.device());
}
void write_step(Context const& context, ddp::TensorView const& /*numbers*/, AdamStep const& /*step*/) {
  refuse(context.device());
}
void adam_step(Context const& context, ddp::TensorView const& /*value*/, ddp::TensorView const& /*gradient*/,
               ddp::TensorView const& /*mean*/, ddp::TensorView const& /*square*/,
               ddp::TensorView const& /*numbers*/, ddp::TensorView const& /*skip*/) {
  refuse(context.device());
}
void sgd_step(Context const& context, ddp::TensorView const& /*value*/, ddp::TensorView const& /*gradient*/,
              ddp::TensorView const& /*velocity*/, SgdOptions const& /*options*/) {
  refuse(context.device());
}

}  // namespace nn::cuda
