// The loss of classification, and its gradient.
#pragma once

#include <cstddef>

#include "ddp/core/tensor.hpp"

namespace nn {

/// What a batch says of a network, as sums, so that they add up over batches and ranks.
struct Score {
  double loss = 0;          ///< Σ over samples of -log p(label)
  std::size_t correct = 0;  ///< samples whose label has the largest logit (the first one of equals)
  std::size_t samples = 0;
};

namespace cpu {

/// logits[n,classes], labels u8[n], each below `classes`. Writes the gradient of the MEAN loss over the n
/// samples into dlogits[n,classes], which may be the logits themselves; with empty `dlogits` only scores.
/// Large logits do not overflow. n = 0 scores 0.
Score softmax_cross_entropy(ddp::TensorView const& logits, ddp::TensorView const& labels,
                            ddp::TensorView const& dlogits);

}  // namespace cpu
}  // namespace nn
