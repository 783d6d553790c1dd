// Batches of images, put together on a GPU.
#pragma once

#include "ddp/core/tensor.hpp"
#include "nn/context.hpp"

namespace data::cuda {

/// A data set in the memory of a GPU.
struct DeviceSet {
  ddp::TensorView pixels;      ///< u8[size, image_size]
  ddp::TensorView labels;      ///< u8[size]
  ddp::TensorView normalized;  ///< f32[256], of each pixel value
};

/// inputs[i] = the normalized pixels, labels[i] = the label, of the image indices[i]. The indices i64[n] are
/// in pinned host memory, and must stay as they are until the GPU has read them.
void gather(nn::Context const& context, DeviceSet const& set, ddp::TensorView const& indices,
            ddp::TensorView const& inputs, ddp::TensorView const& labels);

}  // namespace data::cuda
