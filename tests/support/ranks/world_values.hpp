// What follows a World as a model does.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ddp/parallel/world.hpp"
#include "parallel/world/world_state.hpp"

namespace ddp::testing {

/// One value, on a rank that has done so many steps.
struct Follower : WorldFollower {
  Follower(World const& of, std::uint64_t done) : world(of), steps_done(done) {
    WorldAccess::state(world).followers.push_back(this);
  }
  ~Follower() override { std::erase(WorldAccess::state(world).followers, this); }
  [[nodiscard]] std::string why_not_rebuilt(bool /*goes_back*/) const override { return {}; }
  [[nodiscard]] bool is_whole() const override { return whole; }
  [[nodiscard]] std::string form() const override { return shape; }
  [[nodiscard]] std::uint64_t steps() const override { return steps_done; }
  [[nodiscard]] bool awaits_update() const override { return awaits; }
  [[nodiscard]] std::vector<TensorView> values() const override {
    if (on_values) on_values();
    return {view_of(std::span<double>(const_cast<double*>(&value), 1))};
  }
  void have_done(std::uint64_t steps) override { steps_done = steps; }
  void abort(std::string_view /*reason*/) noexcept override { ++aborts; }
  void drain(std::string_view /*reason*/) noexcept override {
    if (on_drain) on_drain();
  }
  [[nodiscard]] bool is_ahead_of_gpu() const override { return is_ahead; }
  void follow() override {
    ++follows;
    if (on_follow) on_follow();
    static_cast<void>(world.all_reduce_scalar(1));
  }

  World world;
  double value = 0;
  std::string shape = "f64[1]\n";
  bool whole = true;
  bool awaits = false;
  std::uint64_t steps_done;
  bool is_ahead = false;
  std::function<void()> on_drain;
  std::function<void()> on_values;
  std::function<void()> on_follow;
  int aborts = 0;
  int follows = 0;
};

}  // namespace ddp::testing
