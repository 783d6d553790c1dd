#include "data/loader.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "data/gather.hpp"
#include "ddp/core/text.hpp"
#include "ddp/device/event.hpp"

namespace data {

Normalization::Normalization(ImageSet const& images) {
  std::array<std::size_t, 256> histogram{};
  for (std::uint8_t const pixel : images.pixels) ++histogram[pixel];
  double sum = 0;
  double squares = 0;
  for (std::size_t value = 0; value < histogram.size(); ++value) {
    auto const pixels = static_cast<double>(histogram[value]);
    auto const v = static_cast<double>(value);
    sum += pixels * v;
    squares += pixels * v * v;
  }
  auto const count = static_cast<double>(std::max<std::size_t>(images.pixels.size(), 1));
  double const mean = sum / count;
  double const deviation = std::sqrt(std::max(squares / count - mean * mean, 1.0));
  for (std::size_t value = 0; value < values_.size(); ++value) {
    values_[value] = static_cast<float>((static_cast<double>(value) - mean) / deviation);
  }
}

// The set in the GPU's memory, and the indices of the last kSlots batches, which the GPU reads from the
// host's.
class Loader::OnGpu {
 public:
  OnGpu(ImageSet const& images, Normalization const& normalization, nn::Context const& context)
      : context_(context),
        pixels_(context.zeros({images.size(), images.image_size()}, ddp::DType::u8)),
        labels_(context.zeros({images.size()}, ddp::DType::u8)),
        normalized_(context.zeros({normalization.values().size()}, ddp::DType::f32)) {
    auto const upload = [&](auto const& values, ddp::Tensor const& to) {
      using T = typename std::decay_t<decltype(values)>::value_type;
      context.upload({const_cast<T*>(values.data()), to.view().shape, ddp::dtype_of<T>, {}}, to);
    };
    upload(images.pixels, pixels_);
    upload(images.labels, labels_);
    upload(normalization.values(), normalized_);
    for (std::size_t slot = 0; slot < kSlots; ++slot) read_.emplace_back(context.device());
  }

  void reserve(std::size_t samples) {
    indices_ = context_.pinned_zeros({kSlots, samples}, ddp::DType::i64);
    loads_ = 0;
  }

  void gather(std::span<std::size_t const> indices, ddp::TensorView const& inputs,
              ddp::TensorView const& labels) {
    if (indices.empty()) return;
    std::size_t const slot = loads_ % kSlots;
    if (loads_ >= kSlots && !read_[slot].reached()) context_.stream().synchronize();
    ++loads_;
    ddp::TensorView const mine = ddp::slice(indices_, slot * indices_.view().shape[1], indices.size());
    std::copy(indices.begin(), indices.end(), mine.as<std::int64_t>().begin());
    cuda::gather(context_, {pixels_, labels_, normalized_}, mine, inputs, labels);
    read_[slot].record(context_.stream());
  }

 private:
  nn::Context context_;
  ddp::Tensor pixels_;
  ddp::Tensor labels_;
  ddp::Tensor normalized_;
  ddp::Tensor indices_;  // [kSlots, capacity], pinned
  std::vector<ddp::Event> read_;
  std::size_t loads_ = 0;
};

Loader::Loader(ImageSet const& images, nn::Context const& context)
    : Loader(images, Normalization(images), context) {}

Loader::Loader(ImageSet const& images, Normalization const& normalization, nn::Context const& context)
    : images_(images), context_(context), normalization_(normalization) {
  if (context_.on_gpu()) gpu_ = std::make_unique<OnGpu>(images, normalization, context);
}

Loader::~Loader() = default;

void Loader::reserve(std::size_t samples) {
  if (samples <= capacity_) return;
  capacity_ = samples;
  inputs_ = context_.zeros({capacity_, images_.image_size()}, ddp::DType::f32);
  labels_ = context_.zeros({capacity_}, ddp::DType::u8);
  if (gpu_) gpu_->reserve(capacity_);
}

void Loader::fill(std::span<std::size_t const> indices) {
  std::size_t const size = images_.image_size();
  float* const inputs = inputs_.as<float>().data();
  auto const labels = labels_.as<std::uint8_t>();
  for (std::size_t i = 0; i < indices.size(); ++i) {
    std::uint8_t const* const pixels = images_.pixels.data() + indices[i] * size;
    std::transform(pixels, pixels + size, inputs + i * size,
                   [this](std::uint8_t pixel) { return normalization_.values()[pixel]; });
    labels[i] = images_.labels[indices[i]];
  }
}

nn::Samples Loader::load(std::span<std::size_t const> indices) {
  reserve(indices.size());
  nn::Samples samples{inputs_, labels_};
  samples.inputs.shape = {indices.size(), images_.image_size()};
  samples.labels.shape = {indices.size()};
  samples.inputs.device = samples.labels.device = context_.device();
  samples.labels.dtype = ddp::DType::u8;
  if (gpu_) {
    gpu_->gather(indices, samples.inputs, samples.labels);
  } else if (!indices.empty()) {
    fill(indices);
  }
  return samples;
}

nn::Samples Loader::load(std::size_t first, std::size_t count) {
  range_.resize(count);
  std::iota(range_.begin(), range_.end(), first);
  return load(range_);
}

}  // namespace data
