// The loss of classification, and its gradient.
#pragma once

#include <cstddef>

#include "ddp/core/tensor.hpp"
#include "nn/context.hpp"

namespace nn {

/// What batches say of a network, as sums, so that they add up over batches and ranks.
struct Score {
  double loss = 0;          ///< Σ over samples of -log p(label)
  std::size_t correct = 0;  ///< samples whose label has the largest logit (the first one of equals)
  std::size_t samples = 0;
};

/// Scores batches, and keeps the sum where they are computed until somebody asks.
class SoftmaxCrossEntropy {
 public:
  explicit SoftmaxCrossEntropy(Context const& context);

  /// logits[n,classes], labels u8[n], each below `classes`. Writes the gradient of the MEAN loss over the n
  /// samples into dlogits[n,classes], which may be the logits themselves; with empty `dlogits` it only
  /// scores. Large logits do not overflow. n = 0 scores 0. A label that is no class throws
  /// Error(invalid_argument): on the CPU here, on a GPU from take_score(). `of`: where these samples are a
  /// part of a batch, so many samples it has, over which the mean is; 0: n.
  void forward(ddp::TensorView const& logits, ddp::TensorView const& labels, ddp::TensorView const& dlogits,
               std::size_t of = 0);

  /// The sum over all forward() since the last call. On a GPU the host waits for it.
  [[nodiscard]] Score take_score();

 private:
  Context context_;
  Score score_;          // on the CPU
  ddp::Tensor sums_;     // on a GPU: see cuda::softmax_cross_entropy
  ddp::Tensor fetched_;  // a copy for the host
};

namespace cpu {
/// The score of this batch alone.
Score softmax_cross_entropy(ddp::TensorView const& logits, ddp::TensorView const& labels,
                            ddp::TensorView const& dlogits, std::size_t of = 0);
}  // namespace cpu
namespace cuda {
/// Adds to sums f64[4]: the loss, the correct samples, those whose label is no class, and all. In an order
/// that varies, so that the last bits of the loss do. The gradient is always the same.
void softmax_cross_entropy(Context const& context, ddp::TensorView const& logits,
                           ddp::TensorView const& labels, ddp::TensorView const& dlogits,
                           ddp::TensorView const& sums, std::size_t of);
}  // namespace cuda

}  // namespace nn
