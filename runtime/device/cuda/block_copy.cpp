#include <cuda_runtime_api.h>

#include "ddp/core/text.hpp"
#include "ddp/device/cuda_stream.hpp"
#include "ddp/device/device_guard.hpp"
#include "ddp/device/logical_device.hpp"
#include "device/cuda/backend.hpp"
#include "device/cuda/check.hpp"
#include "device/memory/block_copy.hpp"

namespace ddp::cuda {
namespace {

// CUDA's number of the GPU.
int visible(Device device) { return *logical_device(device).visible; }

// Whether addresses are enough for a copy between two GPUs: GPUs that reach each other open their pools to
// each other. Otherwise CUDA must be told whose memory it is.
bool reach_each_other(int to, int from) {
  int reaches = 0;
  check(cudaDeviceCanAccessPeer(&reaches, to, from), text("asking whether GPU ", to, " reaches GPU ", from));
  return reaches != 0;
}

// A pitched copy between GPUs, since cudaMemcpy2DAsync works within one device only.
void copy_between(BlockCopy const& copy, cudaStream_t stream) {
  cudaMemcpy3DPeerParms parameters{};
  // The API takes non-const pointers for sources too.
  parameters.srcPtr = cudaPitchedPtr{const_cast<void*>(copy.from), copy.from_pitch, copy.width, copy.rows};
  parameters.dstPtr = cudaPitchedPtr{copy.to, copy.to_pitch, copy.width, copy.rows};
  parameters.srcDevice = visible(copy.from_device);
  parameters.dstDevice = visible(copy.to_device);
  parameters.extent = cudaExtent{copy.width, copy.rows, 1};
  check(cudaMemcpy3DPeerAsync(&parameters, stream), "copying between GPUs");
}

}  // namespace

void copy_block(BlockCopy const& copy, Stream& stream) {
  DeviceGuard const guard(stream.device());
  auto* const handle = cuda_stream(stream).handle();
  auto const on_gpu = [](Device device) { return device.kind == DeviceKind::cuda; };
  bool const between = on_gpu(copy.to_device) && on_gpu(copy.from_device) &&
                       visible(copy.to_device) != visible(copy.from_device);
  bool const dense = copy.rows == 1 || (copy.to_pitch == copy.width && copy.from_pitch == copy.width);
  std::size_t const bytes = copy.width * copy.rows;
  bool const apart = between && !reach_each_other(visible(copy.to_device), visible(copy.from_device));
  if (dense && apart) {
    check(cudaMemcpyPeerAsync(copy.to, visible(copy.to_device), copy.from, visible(copy.from_device), bytes,
                              handle),
          "copying between GPUs");
  } else if (dense) {
    check(cudaMemcpyAsync(copy.to, copy.from, bytes, cudaMemcpyDefault, handle), "copying memory");
  } else if (between) {
    copy_between(copy, handle);
  } else {
    check(cudaMemcpy2DAsync(copy.to, copy.to_pitch, copy.from, copy.from_pitch, copy.width, copy.rows,
                            cudaMemcpyDefault, handle),
          "copying memory");
  }
}

}  // namespace ddp::cuda
