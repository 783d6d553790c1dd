// Labelled grey images: read from files, or made up.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <vector>

#include "data/idx.hpp"

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

}  // namespace data
