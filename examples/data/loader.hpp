// From images to a network's input.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "data/image_set.hpp"
#include "nn/context.hpp"
#include "nn/mlp.hpp"

namespace data {

/// What each pixel value becomes, so that all pixels of a set have mean 0 and standard deviation 1.
class Normalization {
 public:
  explicit Normalization(ImageSet const& images);
  [[nodiscard]] std::array<float, 256> const& values() const noexcept { return values_; }

 private:
  std::array<float, 256> values_{};
};

/// Hands out batches of a set as inputs f32[n, image_size] and labels u8[n], on the context's device. A batch
/// lives until the next call. On a GPU the whole set is there from the start; the host names images, and does
/// not wait unless it is kSlots batches ahead.
class Loader {
 public:
  static constexpr std::size_t kSlots = 64;

  /// The images must outlive it. Without a normalization they get their own.
  explicit Loader(ImageSet const& images, nn::Context const& context = {});
  Loader(ImageSet const& images, Normalization const& normalization, nn::Context const& context = {});
  ~Loader();
  Loader(Loader const&) = delete;
  Loader& operator=(Loader const&) = delete;

  [[nodiscard]] nn::Samples load(std::span<std::size_t const> indices);
  /// The images first to first + count.
  [[nodiscard]] nn::Samples load(std::size_t first, std::size_t count);

 private:
  class OnGpu;
  void reserve(std::size_t samples);
  void fill(std::span<std::size_t const> indices);

  ImageSet const& images_;
  nn::Context context_;
  Normalization normalization_;
  ddp::Tensor inputs_;  // [capacity, image_size]
  ddp::Tensor labels_;  // [capacity]
  std::size_t capacity_ = 0;
  std::vector<std::size_t> range_;
  std::unique_ptr<OnGpu> gpu_;  // null on the CPU
};

}  // namespace data
