#include "ddp/device/random.hpp"

#include <map>
#include <mutex>

#include "ddp/core/text.hpp"
#include "ddp/device/logical_device.hpp"
#include "ddp/device/queries.hpp"
#include "device/cuda/backend.hpp"
#include "device/random/host_random.hpp"

namespace ddp {
namespace {

struct Seed {
  std::uint64_t value = 0;
  SeedScope scope = SeedScope::each_rank;
};

// The one owner of the process's default generators.
class DefaultGenerators {
 public:
  void seed(Device device, Seed seed) {
    std::lock_guard const lock(mutex_);
    entry_of(device) = start(seed, device);
  }

  void seed_all(Seed seed) {
    std::lock_guard const lock(mutex_);
    otherwise_ = seed;
    for (auto& [device, entry] : entries_) entry = start(seed, device);
  }

  [[nodiscard]] RandomGenerator& of(Device device) {
    std::lock_guard const lock(mutex_);
    return entry_of(device).generator;
  }

  void set_rank(Rank rank) {
    std::lock_guard const lock(mutex_);
    rank_ = rank;
    for (auto& [device, entry] : entries_) {
      std::uint64_t const offset = entry.generator.offset();
      entry = start({entry.generator.seed(), entry.seed.scope}, device);
      static_cast<void>(entry.generator.take(offset));
    }
  }

 private:
  struct Entry {
    Seed seed;
    RandomGenerator generator{0};
  };

  [[nodiscard]] Entry start(Seed seed, Device device) const noexcept {
    std::uint64_t const stream = seed.scope == SeedScope::every_rank ? 0 : random_stream(rank_, device);
    return {seed, RandomGenerator(seed.value, stream)};
  }

  [[nodiscard]] Entry& entry_of(Device device) {
    return entries_.try_emplace(device, start(otherwise_, device)).first->second;
  }

  std::mutex mutex_;
  Rank rank_{0};
  Seed otherwise_;
  std::map<Device, Entry> entries_;  // its nodes never move: callers hold references to generators
};

DefaultGenerators& generators() {
  static DefaultGenerators all;
  return all;
}

void check_fill(char const* what, TensorView const& tensor, Stream const& stream) {
  require(is_floating(tensor.dtype), [&] {
    return text(what, ": expected a tensor of f64, f32, f16 or bf16, found ", describe(tensor));
  });
  require(tensor.device == stream.device(), [&] {
    return text(what, ": cannot fill ", describe(tensor), " on a stream of ", stream.device());
  });
}

RandomSource source(TensorView const& tensor, RandomGenerator& generator) {
  std::uint64_t const each = size_of(tensor.dtype) == 8 ? kPerBlock<double> : kPerBlock<float>;
  std::uint64_t const blocks = (tensor.count() + each - 1) / each;
  return {generator.seed(), generator.stream(), generator.take(blocks)};
}

void fill(TensorView const& tensor, RandomFill const& how, Stream& stream) {
  if (tensor.count() == 0) return;
  if (tensor.device.kind == DeviceKind::cuda) {
    cuda::fill_random(tensor, how, stream);
  } else {
    host_stream(stream).enqueue([data = tensor.data, count = tensor.count(), dtype = tensor.dtype, how] {
      fill_random(data, count, dtype, how);
    });
  }
}

}  // namespace

RandomGenerator::RandomGenerator(std::uint64_t seed, std::uint64_t stream) noexcept
    : state_{static_cast<std::int64_t>(seed), static_cast<std::int64_t>(stream), 0} {}

std::uint64_t RandomGenerator::seed() const noexcept { return static_cast<std::uint64_t>(state_[0]); }
std::uint64_t RandomGenerator::stream() const noexcept { return static_cast<std::uint64_t>(state_[1]); }
std::uint64_t RandomGenerator::offset() const noexcept { return static_cast<std::uint64_t>(state_[2]); }

TensorView RandomGenerator::state() noexcept { return view_of(std::span<std::int64_t>(state_)); }

std::uint64_t RandomGenerator::take(std::uint64_t blocks) noexcept {
  std::uint64_t const first = offset();
  state_[2] = static_cast<std::int64_t>(first + blocks);
  return first;
}

void fill_uniform(TensorView const& tensor, RandomGenerator& generator, Stream& stream, double low,
                  double high) {
  check_fill("fill_uniform", tensor, stream);
  require(low < high, [&] {
    return text("fill_uniform: expected numbers of [low, high), found [", low, ", ", high, ")");
  });
  fill(tensor, {RandomFill::Kind::uniform, source(tensor, generator), low, high}, stream);
}

void fill_normal(TensorView const& tensor, RandomGenerator& generator, Stream& stream, double mean,
                 double deviation) {
  check_fill("fill_normal", tensor, stream);
  require(deviation >= 0,
          [&] { return text("fill_normal: expected a standard deviation of 0 or more, found ", deviation); });
  fill(tensor, {RandomFill::Kind::normal, source(tensor, generator), mean, deviation}, stream);
}

void manual_seed(std::uint64_t seed, SeedScope scope) { manual_seed(current_device(), seed, scope); }

void manual_seed(Device device, std::uint64_t seed, SeedScope scope) {
  static_cast<void>(logical_device(device));
  generators().seed(device, {seed, scope});
}

void manual_seed_all(std::uint64_t seed, SeedScope scope) { generators().seed_all({seed, scope}); }

RandomGenerator& default_generator(Device device) {
  static_cast<void>(logical_device(device));
  return generators().of(device);
}

std::uint64_t random_stream(Rank rank, Device device) noexcept {
  // Never 0, which is the stream of SeedScope::every_rank.
  auto const ranks = static_cast<std::uint64_t>(rank.index()) + 1;
  return ranks << 32 | static_cast<std::uint64_t>(device.kind) << 24 | device.index.index();
}

void set_random_rank(Rank rank) { generators().set_rank(rank); }

}  // namespace ddp
