// A training step of two ranks, and an error: through an installed library.
#include <cmath>
#include <cstdio>
#include <ddp/ddp.hpp>
#include <typeinfo>
#include <vector>

namespace {

/// Calls every layer: also what a linker would only miss.
bool errors_cross_the_library() {
  try {
    ddp::Tensor const integers = ddp::Tensor::zeros({2}, ddp::DType::i32);
    static_cast<void>(integers.as<float>());
  } catch (ddp::Error const& error) {
    return error.code() == ddp::ErrorCode::invalid_argument && typeid(error) == typeid(ddp::Error);
  }
  return false;
}

}  // namespace

// As the CMake package says.
#ifdef PACKAGE_HAS_CUDA
static_assert(DDP_HAS_CUDA == PACKAGE_HAS_CUDA && DDP_HAS_MPI == PACKAGE_HAS_MPI);
static_assert(DDP_VERSION_MAJOR == PACKAGE_MAJOR && DDP_VERSION_MINOR == PACKAGE_MINOR);
#endif

/// As the library that was linked says.
bool config_is_true() {
  bool checkpoints = true;
  try {
    ddp::Checkpoint(ddp::World::in_process(1)[0], "checkpoints", {.model = {}});
  } catch (ddp::Error const& error) {
    checkpoints = error.code() != ddp::ErrorCode::unsupported;
  }
  return ddp::is_built_with_cuda() == (DDP_HAS_CUDA == 1) && checkpoints == (DDP_HAS_OPENSSL == 1);
}

int main() {
  if (!config_is_true()) return 2;
  std::printf("version %s\n", DDP_VERSION);
  ddp::World world = ddp::World::init();
  std::vector<float> values(3, static_cast<float>(world.rank().value()));
  ddp::TensorView gradient;
  ddp::Parameter parameter{.name = "weight",
                           .value = ddp::view_of(std::span(values)),
                           .bind_gradient = [&](ddp::TensorView const& view) { gradient = view; }};
  ddp::DistributedDataParallel ddp(world, {parameter});
  bool right = values[0] == 0.0F;  // rank 0's
  for (int step = 0; step < 3; ++step) {
    ddp.zero_gradients();
    for (float& element : gradient.as<float>()) element = static_cast<float>(world.rank().value() + 1);
    ddp.gradient_ready(0);
    ddp.synchronize();
    for (float const element : gradient.as<float>()) right = right && element == 1.5F;  // (1 + 2) / 2
  }
  right = right && world.size() == 2 && errors_cross_the_library();
  ddp::DistributedSampler sampler(10, world, {.shuffle = true, .seed = 1});
  for (auto const& batch : sampler.batches(5)) right = right && batch.size() == 5;
  world.barrier();
  if (!right) return 1;
  std::printf("rank %d of %d: right\n", world.rank().value(), world.size());
  return 0;
}
