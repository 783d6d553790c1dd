#include "parallel/ddp/statistics_report.hpp"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "ddp/core/error.hpp"
#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"

namespace ddp {

StatisticsReport::StatisticsReport(std::vector<Rank> members, std::string file, int membership,
                                   std::uint64_t steps_before)
    : members_(std::move(members)),
      file_(std::move(file)),
      membership_(membership),
      steps_before_(steps_before),
      late_ms_(members_.size()) {
  if (file_.empty()) return;
  std::error_code failure;
  std::filesystem::create_directories(std::filesystem::path(file_).parent_path(), failure);
  char const* const advice =
      ": choose a folder that this rank can write (DDP_STATISTICS, WorldOptions::statistics), or none";
  if (failure) throw_errno(text("making a folder for ", file_, advice), failure.value());
  try {
    out_.open(file_);
  } catch (Error const& error) {
    throw Error(error.code(), text(error.what(), advice));
  }
}

void StatisticsReport::add(std::vector<StepStatistics> steps) {
  std::lock_guard const lock(mutex_);
  for (StepStatistics& step : steps) {
    step.step += steps_before_;
    if (!file_.empty()) write(step);
    if (step.step_ms && step.late_ms.size() > 1) {
      steps_ += 1;
      step_ms_ += *step.step_ms;
      for (std::size_t r = 0; r < late_ms_.size(); ++r) late_ms_[r] += step.late_ms[r];
    }
    newest_ = std::move(step);
  }
}

void StatisticsReport::write(StepStatistics const& step) {
  nlohmann::ordered_json line{{"step", step.step}, {"membership", membership_}};
  line["step_ms"] = step.step_ms ? nlohmann::ordered_json(*step.step_ms) : nullptr;
  line["forward_ms"] = step.forward_ms ? nlohmann::ordered_json(*step.forward_ms) : nullptr;
  line["backward_ms"] = step.backward_ms;
  line["communication_ms"] = step.communication_ms;
  line["exposed_ms"] = step.exposed_ms;
  line["bytes"] = step.bytes.value;
  line["buckets"] = step.buckets;
  line["messages"] = step.messages;
  line["rebuilds"] = step.rebuilds;
  if (!step.late_ms.empty()) line["late_ms"] = step.late_ms;
  if (step.order != order_) {  // long, and nearly always as before
    line["order"] = step.order;
    line["ranks"] = nlohmann::ordered_json::array();
    for (Rank const rank : members_) line["ranks"].push_back(rank.value());
    order_ = step.order;
  }
  lines_ += line.dump() + '\n';
}

void StatisticsReport::flush() {
  std::lock_guard const lock(mutex_);
  if (file_.empty() || (out_ << std::exchange(lines_, {})).flush()) return;
  log(LogLevel::warning,
      text("statistics are not written any more: ", file_, ": ", std::generic_category().message(errno)));
  file_.clear();
}

std::optional<StepStatistics> StatisticsReport::newest() const {
  std::lock_guard const lock(mutex_);
  return newest_;
}

std::optional<Progress::Pace> StatisticsReport::take_pace() {
  std::lock_guard const lock(mutex_);
  if (steps_ == 0) return std::nullopt;
  auto const slowest = std::ranges::max_element(late_ms_);
  Progress::Pace const pace{step_ms_ / steps_, members_[static_cast<std::size_t>(slowest - late_ms_.begin())],
                            *slowest / steps_};
  steps_ = step_ms_ = 0;
  std::ranges::fill(late_ms_, 0.0);
  return pace;
}

std::string statistics_file(std::string const& folder, Rank rank, std::string name) {
  if (folder.empty()) return {};
  std::ranges::replace(name, '/', '-');
  return text(folder, "/rank", rank, ".", name, ".jsonl");
}

}  // namespace ddp
