#include "ddp/parallel/stop_signal.hpp"

#include <algorithm>
#include <atomic>
#include <utility>

#include "core/record.hpp"
#include "ddp/core/text.hpp"
#include "parallel/world/world_state.hpp"

namespace ddp {
namespace {

constexpr std::chrono::duration<double> kTargetInterval{0.1};
constexpr std::chrono::duration<double> kShortest{1e-6};
constexpr double kMostStepsBetween = 1e5;

// A signal handler can only reach globals.
std::atomic<int> received_signal{0};
std::atomic<bool> in_use{false};
static_assert(std::atomic<int>::is_always_lock_free);

void note(int signal) { received_signal = signal; }

}  // namespace

StopSignal::StopSignal(World world, std::vector<int> const& signals) : world_(std::move(world)) {
  if (in_use.exchange(true)) {
    throw Error(ErrorCode::invalid_state, "StopSignal: this process has one already");
  }
  received_signal = 0;
  for (int const signal : signals) {
    struct sigaction action {};
    action.sa_handler = note;
    action.sa_flags = SA_RESTART | (signal == SIGINT ? static_cast<int>(SA_RESETHAND) : 0);
    Installed installed{signal, {}};
    if (sigaction(signal, &action, &installed.before) == 0) installed_.push_back(installed);
  }
  last_check_ = std::chrono::steady_clock::now();
}

StopSignal::~StopSignal() {
  for (Installed const& each : installed_) sigaction(each.signal, &each.before, nullptr);
  in_use = false;
}

std::optional<int> StopSignal::after_step() {
  if (membership_ != world_.membership()) {  // ranks may have been a step apart: all look at once
    membership_ = world_.membership();
    agreed_.reset();
    interval_ = 1;
    next_check_ = 0;
  }
  if (agreed_ || ++step_ < next_check_) return agreed_;
  // Every rank says what it got, and how many steps it would make in the time between two checks.
  std::chrono::duration<double> const taken = std::chrono::steady_clock::now() - last_check_;
  double const fitting = static_cast<double>(interval_) * (kTargetInterval / std::max(taken, kShortest));
  auto const words = world_.control().all_gather(
      text(WorldAccess::state(world_).name, "/stop"),
      record(received_signal.load(), static_cast<std::uint64_t>(std::clamp(fitting, 1.0, kMostStepsBetween))),
      world_.members(), Deadline::after(world_.options().timeout));
  for (std::size_t rank = 0; rank < words.size(); ++rank) {
    int signal = 0;
    std::uint64_t steps = 1;
    static_cast<void>(RecordReader(words[rank]) >> signal >> steps);
    if (rank == 0) interval_ = std::min(steps, 2 * interval_);  // a first step says little
    if (signal != 0) agreed_ = std::max(agreed_.value_or(0), signal);
  }
  next_check_ = step_ + interval_;
  last_check_ = std::chrono::steady_clock::now();
  return agreed_;
}

}  // namespace ddp
