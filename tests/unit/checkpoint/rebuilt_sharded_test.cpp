// A sharded optimizer whose World was rebuilt: of a lost rank's part there is a copy on the disk only (R26).
#include <gmock/gmock.h>

#include <array>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "ddp/ddp.hpp"
#include "support/models/checkpoint_runs.hpp"
#include "support/models/toy_model.hpp"
#include "support/ranks/surviving_ranks.hpp"

namespace ddp::testing {
namespace {

using ::testing::HasSubstr;

constexpr std::array<std::size_t, 3> kCounts{300, 7, 40};

/// SGD with momentum, of slices.
struct ShardedTraining {
  ShardedTraining(World& in, std::filesystem::path folder)
      : world(in),
        path(std::move(folder)),
        model({kCounts.begin(), kCounts.end()}),
        ddp(in, parameters(),
            {.bucket_bytes = 800_B, .first_bucket_bytes = 200_B, .sharding = Sharding::optimizer}) {
    begin();
  }
  std::vector<Parameter> parameters() {
    std::vector<Parameter> list = model.parameters();
    for (std::size_t p = 0; p < list.size(); ++p) {
      list[p].bind_value = [this, p](TensorView const& place) { values[p] = place.as<float>().data(); };
    }
    return list;
  }
  /// With what belongs to the slices that there are now.
  void begin() {
    checkpoint.reset();
    momenta.clear();
    for (Slice const& slice : ddp.slices()) momenta.emplace_back(slice.values.count());
    std::vector<TensorView> views;
    for (auto& each : momenta) views.push_back(view_of(std::span(each)));
    checkpoint.emplace(world, path,
                       CheckpointTensors{.model = named_values(ddp.parameters()),
                                         .sharded_optimizer = sharded_states(ddp, "momentum", views)});
  }
  void go_back() {
    begin();
    auto const restored = checkpoint->restore();
    if (!restored) throw Error(ErrorCode::not_found, "there is no checkpoint");
    position = restored->position.step;
  }
  static void update(float& value, float& momentum, float gradient) {
    momentum = 0.5F * momentum + gradient;
    value -= momentum;
  }
  void step() {
    ddp.zero_gradients();
    model.fill_gradients(world.rank().value());
    for (std::size_t p = kCounts.size(); p-- > 0;) ddp.gradient_ready(p);
    ddp.synchronize();
    if (!in_backward) ddp.update_slices(on_slice());
    ++position;
    if (position % 4 == 0) checkpoint->save({.step = position});
  }
  SliceReady on_slice() {
    return [this](Slice const& slice, Stream& stream) {
      host_stream(stream).enqueue([this, &slice] {
        auto const to = slice.values.as<float>();
        auto const from = slice.gradient.as<float>();
        auto& momentum = momenta[slice.index];
        for (std::size_t i = 0; i < to.size(); ++i) update(to[i], momentum[i], from[i]);
      });
    };
  }

  World& world;
  std::filesystem::path path;
  ToyModel model;
  std::array<float const*, kCounts.size()> values{};
  DistributedDataParallel ddp;
  std::vector<std::vector<float>> momenta;  // by slice
  std::optional<Checkpoint> checkpoint;
  std::uint64_t position = 0;
  bool in_backward = false;
};

/// As one rank would compute it: so many ranks in each step.
void expect_trained(ShardedTraining const& training, std::vector<int> const& ranks) {
  for (std::size_t p = 0; p < kCounts.size(); ++p) {
    for (std::size_t i = 0; i < kCounts[p]; ++i) {
      float value = ToyModel::initial(0, i);
      float momentum = 0;
      for (int const each : ranks)
        ShardedTraining::update(value, momentum, ToyModel::average_gradient(p, i, each));
      ASSERT_EQ(training.values[p][i], value) << "parameter " << p << ", element " << i;
    }
  }
}

class RebuiltShardedOptimizer : public CheckpointRuns {};

TEST_F(RebuiltShardedOptimizer, R26TheOthersGoOnFromTheLastCheckpointWithAllOfTheOptimizer) {
  for (bool const in_backward : {false, true}) {
    for (int const victim : {0, 1}) {
      std::filesystem::remove_all(folder());
      SurvivingRanks ranks(3);
      ranks.run([&](World& world) {
        int const old = world.rank().value();
        ShardedTraining training(world, folder());
        training.in_backward = in_backward;
        if (in_backward) training.ddp.on_slice_ready(training.on_slice());
        Replicated alike(world, {&training.position}, [&] { training.go_back(); });
        std::set<std::uint64_t> went_back_to;
        while (training.position < 10) {
          try {
            if (world.size() == 3 && training.position == 6) {
              training.checkpoint->wait();
              if (old == victim) ranks.die(world);
            }
            training.step();
          } catch (CommError const& error) {
            world.rebuild(error, alike);
            went_back_to.insert(training.position);
          }
        }
        EXPECT_EQ(went_back_to, std::set<std::uint64_t>{4});
        EXPECT_EQ(world.size(), 2);
        expect_trained(training, {3, 3, 3, 3, 2, 2, 2, 2, 2, 2});
        world.barrier();
      });
    }
  }
}

TEST_F(RebuiltShardedOptimizer, R26ANewcomerGoesBackWithTheOthers) {
  SurvivingRanks ranks(3);
  auto const go_on = [&](World& world, ShardedTraining& training, Replicated& alike) {
    while (world.size() < 3 || training.position < 10) {
      try {
        if (world.size() == 2) {  // it trains no further than to a checkpoint
          while (!world.control().interruption()) std::this_thread::yield();
          throw CommError(ErrorCode::aborted, "a newcomer waits");
        }
        training.step();
      } catch (CommError const& error) {
        world.rebuild(error, alike);
      }
    }
    expect_trained(training, std::vector<int>(10, 3));
    world.barrier();
  };
  std::thread other([&] {
    ranks.newcomer(1, [&](World& world) {
      ShardedTraining training(world, folder());
      Replicated alike(world, {&training.position}, [&] { training.go_back(); });
      EXPECT_EQ(training.position, 4U);
      go_on(world, training, alike);
    });
  });
  ranks.run([&](World& world) {
    ShardedTraining training(world, folder());
    Replicated alike(world, {&training.position}, [&] { training.go_back(); });
    while (training.position < 6) training.step();
    training.checkpoint->wait();
    if (world.rank() == 1) ranks.die(world);
    go_on(world, training, alike);
  });
  other.join();
}

TEST_F(RebuiltShardedOptimizer, R26WithoutACheckpointTheJobEnds) {
  SurvivingRanks ranks(2);
  ranks.run([&](World& world) {
    ShardedTraining training(world, folder());
    Replicated alike(world, {&training.position}, [&] { training.go_back(); });
    training.step();
    if (world.rank() == 1) ranks.die(world);
    EXPECT_THAT(error_of([&] { world.rebuild(loss_of(world), alike); }).what(),
                HasSubstr("there is no checkpoint"));
  });
}

TEST_F(RebuiltShardedOptimizer, R26WithoutAWayBackItIsRefusedByName) {
  SurvivingRanks ranks(2);
  ranks.run([&](World& world) {
    ShardedTraining training(world, folder());
    Replicated alike(world, {&training.position});
    CommError const loss(ErrorCode::peer_lost, "lost");
    Error const error = error_of([&] { world.rebuild(loss, alike); });
    EXPECT_EQ(error.code(), ErrorCode::unsupported);
    EXPECT_THAT(error.what(), HasSubstr("the lost rank's part of the optimizer is lost: give Replicated"));
    world.barrier();
  });
}

}  // namespace
}  // namespace ddp::testing
