// Labelled grey images: read from files, or made up.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "data/idx.hpp"
#include "ddp/core/tensor.hpp"
#include "nn/mlp.hpp"

namespace data {

constexpr std::size_t kClasses = 10;

struct ImageSet {
  std::size_t rows = 0;
  std::size_t columns = 0;
  std::vector<std::uint8_t> pixels;  ///< [size, rows, columns]
  std::vector<std::uint8_t> labels;  ///< [size], each below kClasses

  [[nodiscard]] std::size_t size() const noexcept { return labels.size(); }
  [[nodiscard]] std::size_t image_size() const noexcept { return rows * columns; }
  /// Keeps the first `count` images, if there are more.
  void truncate(std::size_t count);
};

struct DataSet {
  ImageSet train;
  ImageSet test;
};

/// Where Debian's package dataset-fashion-mnist installs its files.
inline constexpr char const* kFashionMnistFolder = "/usr/share/datasets/fashion-mnist";

/// Reads {train,t10k}-{images-idx3,labels-idx1}-ubyte, with or without .gz, from `folder`. Throws InputError
/// for missing or damaged files, counts that disagree, labels that are no class, train and test images of
/// different sizes.
[[nodiscard]] DataSet read_data_set(std::filesystem::path const& folder);

/// Images that can be learnt to about 0.9, since a tenth of their labels are wrong. The same on every
/// machine.
[[nodiscard]] DataSet make_synthetic_data_set(std::size_t train_images, std::size_t test_images);

/// Turns images into a network's input: f32, normalised to mean 0 and standard deviation 1 of the training
/// pixels. Its batches live until its next call.
class Loader {
 public:
  explicit Loader(ImageSet const& train);
  /// The images `indices` of `images`: inputs f32[n, image_size], labels u8[n].
  [[nodiscard]] nn::Samples load(ImageSet const& images, std::span<std::size_t const> indices);
  /// The images first to first + count.
  [[nodiscard]] nn::Samples load(ImageSet const& images, std::size_t first, std::size_t count);

 private:
  [[nodiscard]] nn::Samples prepare(std::size_t count, std::size_t image_size);
  void copy(ImageSet const& images, std::size_t index, std::size_t position);

  std::array<float, 256> normalized_{};  // of each pixel value
  std::vector<float> inputs_;
  std::vector<std::uint8_t> labels_;
};

}  // namespace data
