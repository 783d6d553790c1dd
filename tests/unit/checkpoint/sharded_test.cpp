// Tensors of which each rank has parts (R25): whole in the file, for any number of ranks and for programs
// that do not divide them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <memory>

#include "ddp/core/half.hpp"
#include "ddp/core/text.hpp"
#include "support/models/checkpoint_runs.hpp"

namespace ddp::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using Part = ShardedTensor::Part;

/// An optimizer's tensors, of which this rank has runs of 3 elements or all.
class State {
 public:
  /// Values depend on `seed` where this rank has the elements, and are 0 elsewhere.
  State(int rank, int ranks, int seed) : rank_(rank), ranks_(ranks) {
    fill(first_, seed);
    fill(half_, seed + 1);
    fill(second_, seed + 2);
    step_ = seed;
  }
  State(State const&) = delete;
  State& operator=(State const&) = delete;

  [[nodiscard]] CheckpointTensors sharded() {
    CheckpointTensors all = others();
    // As a slice may lie: the last run first.
    all.sharded_optimizer = {{"state.w.exp_avg", Shape{5, 5}, DType::f32, parts(first_)},
                             {"state.h.exp_avg", Shape{7}, DType::bf16, parts(half_)},
                             {"state.w.exp_avg_sq", Shape{5, 5}, DType::f32, parts(second_)},
                             {"state.e.exp_avg", Shape{0, 4}, DType::f32, {}}};
    return all;
  }
  /// In another order.
  [[nodiscard]] CheckpointTensors plain() {
    CheckpointTensors all = others();
    all.optimizer.push_back({"state.w.exp_avg_sq", {second_.data(), Shape{5, 5}, DType::f32, {}}});
    all.optimizer.push_back({"state.e.exp_avg", {nullptr, Shape{0, 4}, DType::f32, {}}});
    all.optimizer.push_back({"state.w.exp_avg", {first_.data(), Shape{5, 5}, DType::f32, {}}});
    all.optimizer.push_back({"state.h.exp_avg", {half_.data(), Shape{7}, DType::bf16, {}}});
    return all;
  }

  /// Bit for bit.
  [[nodiscard]] bool holds(int seed) const {
    State const other(rank_, ranks_, seed);
    return first_ == other.first_ && second_ == other.second_ && step_ == other.step_ &&
           std::ranges::equal(half_, other.half_, {}, &bfloat16::bits, &bfloat16::bits);
  }

 private:
  static constexpr std::size_t kRun = 3;

  [[nodiscard]] CheckpointTensors others() {
    return {{{"w", view_of(std::span(weight_))}}, {{"state.step", {&step_, Shape{}, DType::i64, {}}}}};
  }
  [[nodiscard]] bool is_mine(std::size_t element) const {
    return (element / kRun) % static_cast<std::size_t>(ranks_) == static_cast<std::size_t>(rank_);
  }
  template <class T>
  void fill(std::vector<T>& values, int seed) const {
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<T>(is_mine(i) ? static_cast<float>(i) / 4 + static_cast<float>(seed) : 0.0F);
    }
  }
  template <class T>
  [[nodiscard]] std::vector<Part> parts(std::vector<T>& values) {
    std::vector<Part> mine;
    for (std::size_t i = 0; i < values.size(); i += kRun) {
      auto const run = std::span(values).subspan(i, std::min(kRun, values.size() - i));
      if (is_mine(i)) mine.insert(mine.begin(), {i, view_of(run)});
    }
    return mine;
  }

  int rank_;
  int ranks_;
  std::vector<float> weight_ = std::vector<float>(2);
  std::vector<float> first_ = std::vector<float>(25);
  std::vector<float> second_ = std::vector<float>(25);
  std::vector<bfloat16> half_ = std::vector<bfloat16>(7);
  std::int64_t step_ = 0;
};

enum class Program { plain, sharded };

class ShardedCheckpoint : public CheckpointRuns {
 protected:
  static std::unique_ptr<State> state(Program program, World const& world, int seed) {
    return program == Program::plain ? std::make_unique<State>(0, 1, seed)
                                     : std::make_unique<State>(world.rank().value(), world.size(), seed);
  }
  static CheckpointTensors tensors(Program program, State& state) {
    return program == Program::plain ? state.plain() : state.sharded();
  }
  void save(Program program, int ranks, std::vector<int> const& seeds) const {
    on_ranks(ranks, [&](World const& world) {
      for (int const seed : seeds) {
        auto const mine = state(program, world, seed);
        Checkpoint checkpoint(world, folder(), tensors(program, *mine));
        checkpoint.save({.step = static_cast<std::uint64_t>(seed)});
        checkpoint.wait();
      }
    });
  }
  /// Whether it is the newest, on every rank.
  void expect(Program program, int ranks, int seed) const {
    on_ranks(ranks, [&](World const& world) {
      auto const mine = state(program, world, 99);
      Checkpoint checkpoint(world, folder(), tensors(program, *mine));
      auto const restored = checkpoint.restore();
      ASSERT_TRUE(restored.has_value());
      EXPECT_EQ(restored->position.step, static_cast<std::uint64_t>(seed));
      EXPECT_TRUE(mine->holds(seed));
    });
  }
  /// What two ranks are told, the same on both, if each has these parts of a tensor of 20 elements.
  [[nodiscard]] std::string refusal(
      std::vector<std::vector<std::pair<std::size_t, std::size_t>>> const& by_rank,
      DType dtype = DType::f32) const {
    std::vector<std::string> messages(by_rank.size());
    on_ranks(static_cast<int>(by_rank.size()), [&](World const& world) {
      std::vector<float> values(100);
      std::vector<Part> parts;
      for (auto const& [offset, count] : by_rank[world.rank().index()]) {
        parts.push_back({offset, view_of(std::span(values).first(count))});
      }
      CheckpointTensors all;
      all.sharded_optimizer = {{"first", Shape{0}, dtype, {}}, {"mean", Shape{4, 5}, dtype, parts}};
      auto const error = error_of([&] { Checkpoint const checkpoint(world, folder(), all); });
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      messages[world.rank().index()] = error.what();
    });
    for (auto const& message : messages) EXPECT_EQ(message, messages[0]);
    EXPECT_FALSE(fs::exists(folder())) << "before anything is written";
    return messages[0];
  }
};

TEST_F(ShardedCheckpoint, R25WhateverWroteItAnyNumberOfRanksGoesOnToTheBit) {
  for (Program const before : {Program::sharded, Program::plain}) {
    for (int const writers : {1, 2, 3, 4}) {
      fs::remove_all(folder());
      save(before, writers, {writers});
      for (int const readers : {1, 2, 3, 4}) expect(Program::sharded, readers, writers);
      for (int const readers : {1, 3}) expect(Program::plain, readers, writers);
    }
  }
}

TEST_F(ShardedCheckpoint, R25TheFileIsTheOneThatAPlainProgramWrites) {
  auto const written = [&](Program program, int ranks) {
    fs::remove_all(folder());
    save(program, ranks, {5});
    EXPECT_THAT(names_in(folder() / "latest"),
                ElementsAre("manifest.json", "model.safetensors", "optimizer.safetensors"));
    return read_file(folder() / "latest" / "optimizer.safetensors");
  };
  std::string const plain = written(Program::plain, 1);
  EXPECT_THAT(plain, HasSubstr("state.w.exp_avg_sq"));
  for (int const ranks : {1, 2, 3, 4}) EXPECT_EQ(written(Program::sharded, ranks), plain) << ranks;
}

TEST_F(ShardedCheckpoint, R25TheStateOfTheMomentOfSaveIsWrittenWhateverComesAfter) {
  on_ranks(2, [&](World const& world) {
    CheckpointModel model(1, world.rank().value());
    model.divide(world.rank().value(), world.size());
    Checkpoint checkpoint(world, folder(), model.tensors());
    for (int seed = 1; seed < 4; ++seed) {
      model.fill(seed, 0);
      checkpoint.save({.step = static_cast<std::uint64_t>(seed)});
    }
    model.fill(50, 0);
    checkpoint.wait();
    ASSERT_TRUE(checkpoint.restore().has_value());
    EXPECT_TRUE(model.holds(3));
  });
}

TEST_F(ShardedCheckpoint, F17R25ADamagedFileIsRefusedAndTheOneBeforeIsUsed) {
  for (bool const cut : {false, true}) {
    fs::remove_all(folder());
    save(Program::sharded, 3, {1, 2});
    fs::path const damaged = folder() / "000002-step-2" / "optimizer.safetensors";
    if (cut) {
      fs::resize_file(damaged, fs::file_size(damaged) - 1);
    } else {
      std::string content = read_file(damaged);
      content.back() = static_cast<char>(content.back() ^ 1);
      std::ofstream(damaged, std::ios::binary) << content;
    }
    expect(Program::sharded, 3, 1);
    EXPECT_EQ(fs::read_symlink(folder() / "latest"), "000001-step-1");
  }
}

TEST_F(ShardedCheckpoint, R25OtherShapesAndDtypesAreRefusedNamingTheTensor) {
  save(Program::plain, 1, {1});
  auto const refusal = [&](auto change) {
    std::string message;
    on_ranks(2, [&](World const& world) {
      auto const mine = state(Program::sharded, world, 99);
      CheckpointTensors all = mine->sharded();
      change(all.sharded_optimizer);
      Checkpoint checkpoint(world, folder(), all);
      auto const error = error_of([&] { static_cast<void>(checkpoint.restore()); });
      EXPECT_EQ(error.code(), ErrorCode::mismatch);
      EXPECT_TRUE(mine->holds(99));
      if (world.rank() == 1) message = error.what();
    });
    return message;
  };
  EXPECT_THAT(refusal([](auto& sharded) {
                sharded[0].shape = Shape{25, 1};
              }),
              HasSubstr("optimizer tensor \"state.w.exp_avg\" is expected to be f32[25,1], found f32[5,5]"));
  EXPECT_THAT(refusal([](auto& sharded) { sharded.pop_back(); }),
              HasSubstr("optimizer tensor \"state.e.exp_avg\" is in it, f32[0,4], and not expected"));
}

TEST_F(ShardedCheckpoint, R25PartsThatAreNotAllElementsOnceAreOneErrorNamingTensorAndRanks) {
  EXPECT_THAT(
      refusal({{{0, 10}}, {{8, 12}}}),
      HasSubstr("sharded tensor \"mean\", f32[4,5]: elements 8 to 9 are in parts of rank 0 and rank 1"));
  EXPECT_THAT(refusal({{{0, 20}}, {{3, 2}}}), HasSubstr("elements 3 to 4 are in parts of rank 0 and rank 1"));
  EXPECT_THAT(refusal({{}, {{0, 15}, {10, 10}}}),
              HasSubstr("elements 10 to 14 are in parts of rank 1 and rank 1"));
  EXPECT_THAT(refusal({{{0, 4}}, {{6, 14}}}),
              HasSubstr("elements 4 to 5 are in no part (rank 0's part before them, rank 1's behind)"));
  EXPECT_THAT(refusal({{}, {{6, 14}}}), HasSubstr("elements 0 to 5 are in no part (rank 1's behind)"));
  EXPECT_THAT(refusal({{{0, 4}}, {{4, 15}}}),
              HasSubstr("elements 19 to 19 are in no part (rank 1's part before them)"));
  EXPECT_THAT(refusal({{}, {}}), HasSubstr("elements 0 to 19 are in no part;"));
  EXPECT_THAT(refusal({{{0, 10}}, {{10, 11}}}),
              HasSubstr("a part of rank 1 has 11 elements from 10 on, and there are 20"));
  EXPECT_THAT(refusal({{{0, 20}}, {{~std::size_t{0}, 2}}}),
              HasSubstr("a part of rank 1 has 2 elements from"));
  EXPECT_THAT(refusal({{{0, 20}}, {}}, DType::f64),
              HasSubstr("rank 0: checkpoint: a part of tensor \"mean\" is f32[20] on cpu:0, expected f64"));
}

TEST_F(ShardedCheckpoint, R25RanksWithOtherTensorsAndNamesThatStandTwiceAreRefused) {
  auto const refusal = [&](auto change) {
    std::string message;
    on_ranks(2, [&](World const& world) {
      auto const mine = state(Program::sharded, world, 1);
      CheckpointTensors all = mine->sharded();
      change(world.rank().value(), all);
      auto const error = message_of([&] { Checkpoint const checkpoint(world, folder(), all); });
      if (world.rank() == 0) message = error;
    });
    return message;
  };
  EXPECT_THAT(refusal([](int rank, auto& all) {
                if (rank == 1) all.sharded_optimizer[1].shape = Shape{1, 7};
              }),
              AllOf(HasSubstr("rank 1"), HasSubstr("\"sharded_optimizer/state.h.exp_avg\" is bf16[1,7]")));
  EXPECT_THAT(refusal([](int rank, auto& all) {
                if (rank == 1) all.sharded_optimizer.pop_back();
              }),
              HasSubstr("sharded_optimizer/state.e.exp_avg"));
  EXPECT_THAT(refusal([](int, auto& all) { all.sharded_optimizer[0].name = "state.step"; }),
              HasSubstr("\"state.step\" in a safetensors file: the name is there twice"));
}

/// Two parameters, in memory that the wrapper chooses.
struct ShardedNet {
  std::vector<float> weight = std::vector<float>(600);
  std::vector<float> bias = std::vector<float>(5);
  std::vector<std::size_t> strides{};

  [[nodiscard]] std::vector<Parameter> parameters() {
    auto const ignore = [](Tensor const&) {};
    return {{.name = "weight",
             .value = {weight.data(), Shape{20, 30}, DType::f32, {}},
             .bind_gradient = ignore,
             .strides = strides,
             .bind_value = ignore},
            {.name = "bias",
             .value = view_of(std::span(bias)),
             .bind_gradient = ignore,
             .bind_value = ignore,
             .group = 1}};
  }
};

TEST_F(ShardedCheckpoint, R25StatesBySliceAreSavedByParameter) {
  // Each element's own number, wherever it lies.
  auto const number_of = [](std::size_t parameter, std::size_t element) {
    return static_cast<double>(1000 * parameter + element);
  };
  std::atomic<int> ranks_with_weights = 0;
  on_ranks(3, [&](World const& world) {
    ShardedNet net;
    DistributedDataParallel const ddp(world, net.parameters(), {.sharding = Sharding::optimizer});
    std::vector<std::vector<double>> moments;
    std::vector<TensorView> views;
    for (Slice const& slice : ddp.slices()) {
      auto& mine = moments.emplace_back(slice.values.count(), -1);
      for (BucketSlice const& piece : slice.pieces) {
        for (std::size_t i = 0; i < piece.count; ++i) {
          mine[piece.bucket_offset + i] = number_of(piece.parameter, piece.parameter_offset + i);
        }
      }
    }
    for (auto& each : moments) views.push_back(view_of(std::span(each)));
    CheckpointTensors all;
    all.sharded_optimizer = sharded_states(ddp, "exp_avg", views, DType::f64);
    ASSERT_THAT(all.sharded_optimizer, SizeIs(2));
    if (!all.sharded_optimizer[0].parts.empty()) ++ranks_with_weights;
    EXPECT_EQ(sharded_states(ddp, "exp_avg", views)[1].dtype, DType::f32) << "the parameter's";
    Checkpoint checkpoint(world, folder(), all);
    checkpoint.save({.step = 1});
    checkpoint.wait();
    ASSERT_FALSE(views.empty());
    auto const message = [&] {
      return message_of([&] { static_cast<void>(sharded_states(ddp, "exp_avg", views)); });
    };
    views[0].shape = Shape{1000};
    EXPECT_THAT(message(), HasSubstr("elements, found f64[1000]"));
    views.clear();
    EXPECT_THAT(message(), HasSubstr("slices, found 0"));
  });
  EXPECT_EQ(ranks_with_weights, 3);
  on_ranks(1, [&](World const& world) {
    std::vector<double> weight(600);
    std::vector<double> bias(5);
    CheckpointTensors all;
    all.optimizer = {{"state.weight.exp_avg", {weight.data(), Shape{20, 30}, DType::f64, {}}},
                     {"state.bias.exp_avg", view_of(std::span(bias))}};
    Checkpoint checkpoint(world, folder(), all);
    ASSERT_TRUE(checkpoint.restore().has_value());
    for (std::size_t i = 0; i < weight.size(); ++i) EXPECT_EQ(weight[i], number_of(0, i));
    for (std::size_t i = 0; i < bias.size(); ++i) EXPECT_EQ(bias[i], number_of(1, i));
  });
}

TEST_F(ShardedCheckpoint, R25StatesOfAParameterThatIsNotRowMajorAreRefused) {
  on_ranks(1, [&](World const& world) {
    ShardedNet net{.strides = {1, 20}};
    DistributedDataParallel const ddp(world, net.parameters(), {.sharding = Sharding::optimizer});
    std::vector<TensorView> views;
    for (Slice const& slice : ddp.slices()) views.push_back(slice.values);
    EXPECT_THAT(message_of([&] { static_cast<void>(sharded_states(ddp, "exp_avg", views)); }),
                HasSubstr("sharded_states: parameter \"weight\" has strides [1,20]"));
  });
}

}  // namespace
}  // namespace ddp::testing
