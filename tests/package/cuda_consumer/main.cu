// A training step with a kernel, through an installed library: on GPUs, or on CPU ranks where there are none.
#include <algorithm>
#include <cstdio>
#include <ddp/ddp.hpp>
#include <ddp/device/cuda_types.hpp>
#include <optional>
#include <vector>

static_assert(DDP_HAS_CUDA == 1);
static_assert(ddp::dtype_of<__half> == ddp::DType::f16 && ddp::dtype_of<__nv_bfloat16> == ddp::DType::bf16);

__global__ void write_gradient(float* gradient, std::size_t count, float value) {
  std::size_t const i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) gradient[i] = value;
}

int main() {
  ddp::World world = ddp::World::init();
  constexpr std::size_t kCount = 1000;
  ddp::Tensor const weight = ddp::zeros({kCount}, ddp::DType::f32, world.device());
  ddp::TensorView gradient;
  ddp::Parameter const parameter{.name = "weight",
                                 .value = weight,
                                 .bind_gradient = [&](ddp::TensorView const& view) { gradient = view; }};
  ddp::DistributedDataParallel ddp(world, {parameter});
  auto const step = [&] {
    auto* const elements = static_cast<float*>(gradient.data);
    auto const mine = static_cast<float>(world.rank().value() + 1);
    if (world.device().kind == ddp::DeviceKind::cuda) {
      write_gradient<<<4, 256, 0, ddp::cuda_stream(world.stream()).handle()>>>(elements, kCount, mine);
    } else {
      std::fill_n(elements, kCount, mine);
    }
    ddp.gradient_ready(0);
    ddp.synchronize();
  };
  std::optional<ddp::NoSyncGuard> guard;  // nvcc must not warn
  guard.emplace(ddp.no_sync());
  step();
  guard.reset();
  step();
  std::vector<float> averages(kCount);
  ddp::copy_elements(ddp::view_of(std::span(averages)), gradient, world.stream());
  world.stream().synchronize();
  bool right = true;
  for (float const average : averages) right = right && average == static_cast<float>(world.size() + 1) / 2;
  right = world.all_reduce_scalar(right ? 1 : 0, ddp::ReduceOp::min()) == 1;
  std::printf("rank %d of %d: %s\n", world.rank().value(), world.size(), right ? "right" : "wrong");
  return right ? 0 : 1;
}
