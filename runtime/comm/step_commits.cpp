#include "comm/step_commits.hpp"

#include <chrono>
#include <thread>

#include "ddp/core/error.hpp"
#include "ddp/device/memory.hpp"

namespace ddp {
namespace {

constexpr std::chrono::microseconds kSpin{50};
constexpr std::chrono::microseconds kNap{20};
constexpr std::chrono::milliseconds kBetweenChecks{1};

std::uint64_t read(std::uint64_t& word) noexcept {
  return std::atomic_ref(word).load(std::memory_order_acquire);
}

}  // namespace

StepCommits::StepCommits() : poisoned_(pinned_zeros(Shape{1}, DType::i32)) {}

void StepCommits::poison() noexcept {
  std::atomic_ref(*static_cast<std::uint32_t*>(poisoned_.view().data)).store(1, std::memory_order_seq_cst);
}

std::uint32_t const* StepCommits::poisoned() const noexcept {
  return static_cast<std::uint32_t const*>(poisoned_.view().data);
}

StepCommits::Steps::Steps() : memory_(pinned_zeros(Shape{sizeof(Words)}, DType::u8)) {}
std::uint64_t StepCommits::Steps::committed() const noexcept { return read(words()->committed); }
bool StepCommits::Steps::all_ended() const noexcept { return read(words()->ended) == enqueued_; }
bool StepCommits::Steps::all_committed() const noexcept { return all_ended() && committed() == enqueued_; }

std::shared_ptr<StepCommits::Steps> StepCommits::make_steps() {
  auto made = std::make_shared<Steps>();
  std::lock_guard const lock(mutex_);
  std::erase_if(steps_, [](auto const& each) { return each.expired(); });
  steps_.push_back(made);
  return made;
}

void StepCommits::wait(std::function<void()> const& check) const {
  using Clock = std::chrono::steady_clock;
  auto const begin = Clock::now();
  auto next_check = begin + kBetweenChecks;
  std::lock_guard const lock(mutex_);
  for (auto const& each : steps_) {
    auto const steps = each.lock();
    if (!steps) continue;
    while (!steps->all_ended()) {
      auto const now = Clock::now();
      if (now >= next_check) {
        check();
        next_check = now + kBetweenChecks;
      }
      if (now - begin > kSpin) std::this_thread::sleep_for(kNap);
    }
    if (steps->all_committed()) continue;
    check();
    throw CommError(ErrorCode::aborted,
                    "an operation of this membership was ended early, so the last step has changed nothing; "
                    "World::rebuild() goes on from the step before");
  }
}

}  // namespace ddp
