#include "data/gather.hpp"
#include "ddp/device/device_guard.hpp"
#include "nn/cuda_support.hpp"

namespace data::cuda {
namespace {

// A block for each image of the batch.
__global__ void gather_images(std::uint8_t const* pixels, std::uint8_t const* labels, float const* normalized,
                              std::int64_t const* indices, std::size_t image_size, float* inputs,
                              std::uint8_t* batch_labels) {
  __shared__ std::int64_t index;  // read once: it lies in the host's memory
  if (threadIdx.x == 0) index = indices[blockIdx.x];
  __syncthreads();
  std::uint8_t const* const image = pixels + static_cast<std::size_t>(index) * image_size;
  float* const input = inputs + blockIdx.x * image_size;
  for (std::size_t j = threadIdx.x; j < image_size; j += blockDim.x) input[j] = normalized[image[j]];
  if (threadIdx.x == 0) batch_labels[blockIdx.x] = labels[index];
}

}  // namespace

void gather(nn::Context const& context, DeviceSet const& set, ddp::TensorView const& indices,
            ddp::TensorView const& inputs, ddp::TensorView const& labels) {
  using nn::cuda::elements;
  ddp::DeviceGuard const guard(context.device());
  gather_images<<<static_cast<unsigned>(indices.count()), nn::cuda::kThreads, 0,
                  nn::cuda::stream_of(context)>>>(
      elements<std::uint8_t>(set.pixels, context), elements<std::uint8_t>(set.labels, context),
      elements<float>(set.normalized, context), indices.as<std::int64_t>().data(), inputs.shape[1],
      elements<float>(inputs, context), elements<std::uint8_t>(labels, context));
  nn::cuda::check_launch("gather");
}

}  // namespace data::cuda
