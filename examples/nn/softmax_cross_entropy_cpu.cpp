#include <algorithm>
#include <cmath>
#include <cstdint>

#include "nn/floating.hpp"
#include "nn/softmax_cross_entropy.hpp"

namespace nn::cpu {

Score softmax_cross_entropy(ddp::TensorView const& logits, ddp::TensorView const& labels,
                            ddp::TensorView const& dlogits, std::size_t of) {
  std::size_t const samples = logits.shape[0];
  std::size_t const classes = logits.shape[1];
  auto const truth = labels.as<std::uint8_t>();
  Score score;
  score.samples = samples;
  dispatch_floating(logits.dtype, [&](auto type) {
    using T = decltype(type);
    T const* row = logits.as<T>().data();
    T* slope = dlogits.data == nullptr ? nullptr : dlogits.as<T>().data();
    for (std::size_t n = 0; n < samples; ++n, row += classes) {
      ddp::require(truth[n] < classes, "softmax_cross_entropy: a label is not below the number of classes");
      T const* const largest = std::max_element(row, row + classes);
      T const top = *largest;
      if (static_cast<std::size_t>(largest - row) == truth[n]) ++score.correct;
      T const target = row[truth[n]];
      T sum = 0;
      for (std::size_t j = 0; j < classes; ++j) sum += std::exp(row[j] - top);
      score.loss += static_cast<double>(std::log(sum) - (target - top));
      if (slope == nullptr) continue;
      T const scale = T{1} / static_cast<T>(of == 0 ? samples : of);
      for (std::size_t j = 0; j < classes; ++j) slope[j] = std::exp(row[j] - top) / sum * scale;
      slope[truth[n]] -= scale;
      slope += classes;
    }
  });
  return score;
}

}  // namespace nn::cpu
