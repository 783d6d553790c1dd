// Ranks that run out of data at different steps (R11).
#pragma once

#include <string>
#include <utility>

#include "reducer/parts/rank_flags.hpp"
#include "reducer/parts/step_part.hpp"

namespace ddp {

/// In front of each step ranks tell each other who has data.
class Uneven final : public StepPart {
 public:
  /// On `lane`. `name`: the option's value. `refuses`: a step that only some ranks have data for throws on
  /// every rank.
  Uneven(ReducerState const& of, std::string name, bool refuses)
      : StepPart(of), name_(std::move(name)), refuses_(refuses), has_data_(of.lanes[0], 1, true) {}

  /// After head(): whether any rank has data. The host waits.
  [[nodiscard]] bool any_has_data();

  [[nodiscard]] std::string describe() const override { return "uneven " + name_; }
  [[nodiscard]] std::string why_not_recorded() const override {
    return "Options::uneven is set: a rank without data would replay a step with data";
  }
  [[nodiscard]] bool may_refuse() const override { return refuses_; }
  void head() override;
  void verdict() override;

 private:
  std::string name_;
  bool refuses_;
  RankFlags has_data_;
};

}  // namespace ddp
