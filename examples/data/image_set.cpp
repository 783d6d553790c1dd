#include "data/image_set.hpp"

#include <algorithm>
#include <string>
#include <system_error>

#include "ddp/core/text.hpp"
#include "nn/random.hpp"

namespace data {
namespace {

// `name`.gz, or `name` where only that exists.
std::filesystem::path find_file(std::filesystem::path const& folder, std::string const& name) {
  std::error_code ignored;
  auto const compressed = folder / (name + ".gz");
  auto const plain = folder / name;
  if (!std::filesystem::exists(compressed, ignored) && std::filesystem::exists(plain, ignored)) return plain;
  return compressed;
}

ImageSet read_images(std::filesystem::path const& folder, std::string const& prefix) {
  auto const image_file = find_file(folder, prefix + "-images-idx3-ubyte");
  auto const label_file = find_file(folder, prefix + "-labels-idx1-ubyte");
  Idx images = read_idx(image_file, 3);
  Idx labels = read_idx(label_file, 1);
  if (images.extents[0] != labels.extents[0]) {
    throw InputError(
        InputError::Kind::damaged,
        ddp::text(label_file.string(), ": expected ", images.extents[0], " labels, one for each image of ",
                  image_file.filename().string(), ", found ", labels.extents[0]));
  }
  if (images.values.empty()) {
    throw InputError(InputError::Kind::damaged,
                     ddp::text(image_file.string(), ": expected images, found none (extents ",
                               ddp::join(images.extents, " x "), ")"));
  }
  auto const wrong = std::find_if(labels.values.begin(), labels.values.end(),
                                  [](std::uint8_t label) { return label >= kClasses; });
  if (wrong != labels.values.end()) {
    throw InputError(InputError::Kind::damaged,
                     ddp::text(label_file.string(), ": expected labels 0 to ", kClasses - 1, ", found ",
                               int{*wrong}, " at position ", wrong - labels.values.begin()));
  }
  return {images.extents[1], images.extents[2], std::move(images.values), std::move(labels.values)};
}

// Roughly normal with standard deviation 1, from 3 uniform numbers: no function of libm, whose last bits
// differ.
double noise(nn::Random const& random, std::uint64_t index) {
  return 2 *
         (random.uniform(3 * index) + random.uniform(3 * index + 1) + random.uniform(3 * index + 2) - 1.5);
}

ImageSet make_images(std::size_t count, std::uint64_t stream) {
  constexpr std::uint64_t kSeed = 2017;
  constexpr std::size_t kSide = 28;
  nn::Random const prototypes(kSeed, 0);
  nn::Random const labels(kSeed, 2 * stream + 1);
  nn::Random const pixels(kSeed, 2 * stream + 2);
  ImageSet set{kSide, kSide, {}, {}};
  set.pixels.reserve(count * set.image_size());
  set.labels.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    std::uint64_t const kind = labels.bits(3 * i) % kClasses;
    bool const mislabelled = labels.uniform(3 * i + 1) < 0.1;
    std::uint64_t const shift = mislabelled ? 1 + labels.bits(3 * i + 2) % (kClasses - 1) : 0;
    set.labels.push_back(static_cast<std::uint8_t>((kind + shift) % kClasses));
    for (std::size_t j = 0; j < set.image_size(); ++j) {
      double const prototype = prototypes.uniform(kind * set.image_size() + j) - 0.5;
      double const value = 127 + 40 * prototype + 60 * noise(pixels, i * set.image_size() + j);
      set.pixels.push_back(static_cast<std::uint8_t>(std::clamp(value, 0.0, 255.0)));
    }
  }
  return set;
}

}  // namespace

void ImageSet::truncate(std::size_t count) {
  if (count >= size()) return;
  labels.resize(count);
  pixels.resize(count * image_size());
}

DataSet read_data_set(std::filesystem::path const& folder) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(folder, ignored)) {
    throw InputError(InputError::Kind::missing,
                     ddp::text("expected a folder with the data at ", folder.string(), ", found none"));
  }
  DataSet set{read_images(folder, "train"), read_images(folder, "t10k")};
  if (set.train.rows != set.test.rows || set.train.columns != set.test.columns) {
    throw InputError(
        InputError::Kind::damaged,
        ddp::text(folder.string(), ": expected test images of ", set.train.rows, " x ", set.train.columns,
                  " pixels as in the training set, found ", set.test.rows, " x ", set.test.columns));
  }
  return set;
}

DataSet make_synthetic_data_set(std::size_t train_images, std::size_t test_images) {
  return {make_images(train_images, 0), make_images(test_images, 1)};
}

}  // namespace data
