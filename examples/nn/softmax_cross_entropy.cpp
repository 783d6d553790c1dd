#include "nn/softmax_cross_entropy.hpp"

#include <utility>

#include "ddp/core/text.hpp"
#include "ddp/device/tensor_ops.hpp"

namespace nn {

SoftmaxCrossEntropy::SoftmaxCrossEntropy(Context const& context) : context_(context) {
  if (!context_.on_gpu()) return;
  sums_ = context_.zeros({4}, ddp::DType::f64);
  fetched_ = context_.pinned_zeros({4}, ddp::DType::f64);
}

void SoftmaxCrossEntropy::forward(ddp::TensorView const& logits, ddp::TensorView const& labels,
                                  ddp::TensorView const& dlogits, std::size_t of) {
  ddp::require(labels.count() == logits.shape[0],
               "softmax_cross_entropy: one label is needed for each row of logits");
  if (context_.on_gpu()) {
    cuda::softmax_cross_entropy(context_, logits, labels, dlogits, sums_, of);
  } else {
    Score const batch = cpu::softmax_cross_entropy(logits, labels, dlogits, of);
    score_.loss += batch.loss;
    score_.correct += batch.correct;
    score_.samples += logits.shape[0];
  }
}

Score SoftmaxCrossEntropy::take_score() {
  Score score = std::exchange(score_, {});
  if (!context_.on_gpu()) return score;
  ddp::copy_elements(fetched_, sums_, context_.stream());
  ddp::zero_fill(sums_, context_.stream());
  context_.stream().synchronize();
  auto const sums = fetched_.as<double>();
  ddp::require(sums[2] == 0, [&] {
    return ddp::text("softmax_cross_entropy: ", sums[2], " labels are not below the number of classes");
  });
  score.loss = sums[0];
  score.correct = static_cast<std::size_t>(sums[1]);
  score.samples = static_cast<std::size_t>(sums[3]);
  return score;
}

}  // namespace nn
