#include "comm/group/failure.hpp"

#include <algorithm>
#include <cstring>
#include <thread>

#include "ddp/core/text.hpp"

namespace ddp {
namespace {

constexpr char const* kIfDataEnded =
    "; if its data ended before that of others: set Options::uneven and call join() behind the loop "
    "on every "
    "rank, or go on with set_weight(0)";

}  // namespace

bool GroupFailure::set(ErrorCode code, Rank rank, std::string_view reason) noexcept {
  std::uint32_t expected = kNone;
  if (!state_.compare_exchange_strong(expected, kWriting)) {
    // Writing takes a microsecond, unless the writer was killed in the middle.
    for (int i = 0; i < 100 && !is_set(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (is_set()) return false;
  }
  code_ = code;
  rank_ = rank.value();
  std::size_t const length = std::min(reason.size(), sizeof(reason_) - 1);
  std::memcpy(reason_, reason.data(), length);
  reason_[length] = '\0';
  state_.store(kSet, std::memory_order_seq_cst);
  return true;
}

void GroupFailure::throw_if_set(Rank me) const {
  if (!is_set()) return;
  if (me == rank_ || code_ == ErrorCode::mismatch) throw CommError(code_, reason_);
  ErrorCode const code = code_ == ErrorCode::peer_lost ? ErrorCode::peer_lost : ErrorCode::aborted;
  throw CommError(code, text("the group was ended by rank ", rank_, ": ", reason_));
}

std::string describe_timeout(Rank me, MemberGroup const& group, std::string_view activity,
                             std::span<Rank const> missing) {
  std::string words = text("rank ", me, " waited ", seconds(group.waiting.timeout), " s in ", activity,
                           " for rank", missing.size() == 1 ? " " : "s ", join(missing, ", "),
                           "; look at what those ranks are doing, or raise ", group.waiting.timeout_setting);
  auto const waits = group.control ? group.control->waits_of(missing) : std::vector<std::string>();
  bool elsewhere = false;
  for (std::size_t i = 0; i < waits.size(); ++i) {
    if (waits[i].empty()) continue;
    elsewhere = true;
    words += text(
        "; rank ", missing[i], " waits in ",
        waits[i].ends_with("/barrier") ? "World::barrier()" : text('"', waits[i], "\" of the control plane"));
  }
  return elsewhere ? words + kIfDataEnded : words;
}

std::string describe_loss(LostRank const& lost, Rank me, std::string_view activity) {
  bool const left = lost.manner == LostRank::Manner::left;
  return text("rank ", lost.rank, " is gone (", lost.reason, ") while rank ", me, " was in ", activity,
              left ? kIfDataEnded : "");
}

}  // namespace ddp
