// The oracle: N ranks on N shards give the same update as one process on the whole batch (invariant 5).
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "ddp/core/text.hpp"
#include "ddp/ddp.hpp"
#include "support/models/device_mlp.hpp"
#include "support/models/tiny_mlp.hpp"

namespace ddp::testing {

/// One way to train.
struct OracleCase {
  GradientStorage storage = GradientStorage::arena;
  Bytes bucket_bytes = 25_MiB;
  int micro_steps = 1;          ///< with more, all but the last run under no_sync (R6)
  std::size_t batch = 12;       ///< global; shards differ in size where it does not divide
  bool reversed_marks = false;  ///< gradients are marked in registration order: the buckets are rebuilt (R2)
  bool sum = false;             ///< Reduction::sum, each rank scaling by the global batch
  bool sharded = false;         ///< each rank updates a part of every bucket (R25)

  [[nodiscard]] std::string name() const {
    return text(to_string(storage), "_bucket", bucket_bytes.value, "_micro", micro_steps, "_batch", batch,
                reversed_marks ? "_reversed" : "", sum ? "_sum" : "", sharded ? "_sharded" : "");
  }
};

[[nodiscard]] inline std::vector<OracleCase> oracle_cases() {
  std::vector<OracleCase> cases;
  for (auto const storage : {GradientStorage::arena, GradientStorage::in_place, GradientStorage::copy}) {
    for (Bytes const bucket : {64_B, 500_B, 25_MiB}) {
      for (int const micro_steps : {1, 3}) {
        cases.push_back({storage, bucket, micro_steps, 12, micro_steps == 1, false});
      }
    }
    cases.push_back({storage, Bytes{200}, 1, 13, true, false});
    cases.push_back({storage, Bytes{200}, 1, 2, false, false});  // empty shards from 3 ranks on
    cases.push_back({storage, Bytes{200}, 2, 13, false, true});
  }
  for (Bytes const bucket : {64_B, 500_B, 25_MiB}) {
    for (std::size_t const batch : {12, 13, 2}) {
      cases.push_back({.bucket_bytes = bucket,
                       .micro_steps = batch == 12 ? 3 : 1,
                       .batch = batch,
                       .reversed_marks = batch == 13,
                       .sharded = true});
    }
  }
  return cases;
}

inline constexpr int kOracleSteps = 6;
inline constexpr std::size_t kOracleSamples = 40;

/// The whole batch in one process, without the runtime. `Stored`: what initial values are rounded to.
template <class T, class Stored = T>
[[nodiscard]] std::vector<T> oracle_parameters(std::size_t batch) {
  TinyMlp<T> model;
  for (std::size_t p = 0; p < model.parameter_count(); ++p) {
    for (T& value : model.value(p)) value = static_cast<T>(Stored(value));
  }
  DistributedSampler sampler(kOracleSamples, Rank{0}, 1, {.seed = 5});
  std::vector<Batch> const steps = sampler.global_batches(batch);
  for (int step = 0; step < kOracleSteps; ++step) {
    Batch const& samples = steps[static_cast<std::size_t>(step) % steps.size()];
    model.backward(samples, T(1) / static_cast<T>(samples.size()));
    model.step(T(0.1));
  }
  return model.flat();
}

/// Ranks start from different values: rank 0's must win.
[[nodiscard]] inline double seed_of(World const& world) {
  return world.rank() == 0 ? 0.0 : 3.0 + world.rank().value();
}

/// This rank's part of the same training.
template <class T, class Model>
[[nodiscard]] std::vector<T> train_distributed(World const& world, OracleCase const& way, Model& model) {
  DistributedDataParallelOptions options;
  options.storage = way.storage;
  options.bucket_bytes = options.first_bucket_bytes = way.bucket_bytes;
  options.reduction = way.sum ? DistributedDataParallelOptions::Reduction::sum
                              : DistributedDataParallelOptions::Reduction::average;
  if (way.sharded) options.sharding = Sharding::optimizer;
  DistributedDataParallel ddp(world, model.parameters(), options);
  model.take_values();
  DistributedSampler sampler(kOracleSamples, world, {.seed = 5});
  std::vector<Batch> const steps = sampler.global_batches(way.batch);
  for (int step = 0; step < kOracleSteps; ++step) {
    Batch const& shard = steps[static_cast<std::size_t>(step) % steps.size()];
    std::size_t const global = std::min(way.batch, kOracleSamples - shard.step * way.batch);
    bool const even = global % static_cast<std::size_t>(world.size()) == 0;
    if (!way.sum && !even) ddp.set_weight(static_cast<double>(shard.size()));
    T const scale = way.sum ? T(1) / static_cast<T>(global)
                            : (shard.size() == 0 ? T(0) : T(1) / static_cast<T>(shard.size()));
    auto const micro = static_cast<std::size_t>(way.micro_steps);
    for (std::size_t m = 0; m < micro; ++m) {
      std::size_t const begin = shard.size() * m / micro;
      std::size_t const end = shard.size() * (m + 1) / micro;
      std::span<std::size_t const> const samples = shard.indices.subspan(begin, end - begin);
      if (m + 1 < micro) {
        NoSyncGuard const guard = ddp.no_sync();
        model.backward(samples, scale, [&](std::size_t p) { ddp.gradient_ready(p); });
        ddp.synchronize();
      } else if (way.reversed_marks) {
        model.backward(samples, scale);
        for (std::size_t p = 0; p < model.parameter_count(); ++p) ddp.gradient_ready(p);
        ddp.synchronize();
      } else {
        model.backward(samples, scale, [&](std::size_t p) { ddp.gradient_ready(p); });
        ddp.synchronize();
      }
    }
    if constexpr (requires { model.step(Slice{}, T(0.1), world.stream()); }) {
      if (way.sharded) {
        model.clear_gradients();
        ddp.update_slices([&](Slice const& slice, Stream& stream) { model.step(slice, T(0.1), stream); });
        model.take_values();
        continue;
      }
    }
    model.step(T(0.1));
  }
  return model.flat();
}

/// `floor`: below it a difference counts absolutely.
template <class T>
void expect_close(std::vector<T> const& found, std::vector<T> const& expected, double tolerance, double floor,
                  std::string const& what) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    double const scale = std::max(std::abs(static_cast<double>(expected[i])), floor);
    ASSERT_NEAR(static_cast<double>(found[i]), static_cast<double>(expected[i]), tolerance * scale)
        << what << ", parameter element " << i;
  }
}

/// Trains with parameters of type `Stored` on the world's device and compares.
template <class T, class Stored = T>
void check_type_against_oracle(World const& world, OracleCase const& way, double tolerance, double floor) {
  std::string const what = text(way.name(), " ", dtype_of<Stored>);
  auto const expected = oracle_parameters<T, Stored>(way.batch);
  if (std::is_same_v<T, Stored> && world.device().kind == DeviceKind::cpu && !way.sharded) {
    TinyMlp<T> model(seed_of(world));
    expect_close(train_distributed<T>(world, way, model), expected, tolerance, floor, what);
  } else {
    DeviceMlp<T, Stored> model(seed_of(world), world);
    expect_close(train_distributed<T>(world, way, model), expected, tolerance, floor, what);
  }
}

/// D15: the first layer's parameters on `other`, the rest on the world's device, in one step.
inline void check_two_devices_against_oracle(World const& world, Device other, OracleCase const& way) {
  std::string const what = text(way.name(), " on ", world.device(), " and ", other);
  DeviceMlp<double> exact(seed_of(world), world, other);
  expect_close(train_distributed<double>(world, way, exact), oracle_parameters<double>(way.batch), 1e-12,
               1e-2, what);
  DeviceMlp<float> single(seed_of(world), world, other);
  expect_close(train_distributed<float>(world, way, single), oracle_parameters<float>(way.batch), 1e-5, 1e-2,
               what);
}

/// All types, with the tolerances that are promised. bf16 has 8 bits: each of the steps moves a parameter by
/// 0.1 × a gradient of about 1 that was rounded twice, so 6 steps err by some 1e-3.
inline void check_against_oracle(World const& world, OracleCase const& way) {
  check_type_against_oracle<double>(world, way, 1e-12, 1e-2);
  check_type_against_oracle<float>(world, way, 1e-5, 1e-2);
  if (!way.sharded)
    check_type_against_oracle<float, bfloat16>(world, way, 2e-3, 1.0);  // there, without masters
}

}  // namespace ddp::testing
