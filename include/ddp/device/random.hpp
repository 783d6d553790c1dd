// Random numbers that can be drawn again: the same on CPUs and GPUs, for any rank and device.
#pragma once

#include <array>
#include <cstdint>

#include "ddp/core/export.hpp"
#include "ddp/core/tensor.hpp"
#include "ddp/device/stream.hpp"

namespace DDP_EXPORT ddp {

/// A stream of random bits: Philox 4x32-10, a function of seed, stream number and position, so there is no
/// other state. Different streams of one seed are independent. One thread at a time.
class RandomGenerator {
 public:
  /// At the start of stream `stream` of `seed`.
  explicit RandomGenerator(std::uint64_t seed, std::uint64_t stream = 0) noexcept;

  [[nodiscard]] std::uint64_t seed() const noexcept;    ///< As given.
  [[nodiscard]] std::uint64_t stream() const noexcept;  ///< As given.
  [[nodiscard]] std::uint64_t offset() const noexcept;  ///< Blocks of 128 bits drawn so far.

  /// The whole state, i64[3], for CheckpointTensors::rank. A view of this object's memory: writing to it, as
  /// restoring a checkpoint does, sets the generator.
  [[nodiscard]] TensorView state() noexcept;

  /// Takes the next `blocks` blocks and returns the offset of the first. For a program's own kernels.
  std::uint64_t take(std::uint64_t blocks) noexcept;

 private:
  std::array<std::int64_t, 3> state_;  // seed, stream, offset
};

/// tensor[i] = a number in [low, high), for f16 and bf16 rounded, on `stream`, whose device the memory lies
/// on. The same bits on a CPU and a GPU. Floating-point tensors only: Error(invalid_argument).
void fill_uniform(TensorView const& tensor, RandomGenerator& generator, Stream& stream, double low = 0,
                  double high = 1);

/// tensor[i] = a normally distributed number (Box and Muller's formula, in f64, then rounded). The same on a
/// CPU and a GPU, except for the rounding of logarithm, sine and cosine.
void fill_normal(TensorView const& tensor, RandomGenerator& generator, Stream& stream, double mean = 0,
                 double deviation = 1);

/// Whether ranks draw different numbers.
enum class SeedScope {
  each_rank,   ///< each rank and device has a stream of its own: dropout, augmentation
  every_rank,  ///< all ranks and devices draw the same: initial values
};

/// Seeds the default generator of the current device (current_device()) of this process; it starts again.
void manual_seed(std::uint64_t seed, SeedScope scope = SeedScope::each_rank);
/// The same for a device. Throws Error(not_found) for one that is not there.
void manual_seed(Device device, std::uint64_t seed, SeedScope scope = SeedScope::each_rank);
/// The same for every logical device, including those that are used later. CUDA is not started.
void manual_seed_all(std::uint64_t seed, SeedScope scope = SeedScope::each_rank);

/// The generator of `device` in this process. Until it is seeded its seed is 0. The reference holds until the
/// process ends. Ranks that are threads (World::in_process) share it: give each a RandomGenerator of
/// random_stream() instead.
[[nodiscard]] RandomGenerator& default_generator(Device device);

/// The stream number of SeedScope::each_rank for a rank and a device.
[[nodiscard]] std::uint64_t random_stream(Rank rank, Device device) noexcept;

/// Which rank this process is, for SeedScope::each_rank: 0 until World::init() sets it. Generators that were
/// seeded continue in that rank's stream.
void set_random_rank(Rank rank);

}  // namespace ddp
