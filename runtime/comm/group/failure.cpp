#include "comm/group/failure.hpp"

#include <algorithm>
#include <cstring>
#include <thread>

#include "ddp/core/text.hpp"

namespace ddp {

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

std::string describe_timeout(Rank me, Waiting const& waiting, std::string_view activity,
                             std::span<Rank const> missing) {
  return text("rank ", me, " waited ", seconds(waiting.timeout), " s in ", activity, " for rank",
              missing.size() == 1 ? " " : "s ", join(missing, ", "),
              "; look at what those ranks are doing, or raise ", waiting.timeout_setting);
}

std::string describe_loss(LostRank const& lost, Rank me, std::string_view activity) {
  return text("rank ", lost.rank, " is gone (", lost.reason, ") while rank ", me, " was in ", activity);
}

}  // namespace ddp
