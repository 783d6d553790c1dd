#include "reducer/ranks.hpp"

#include <algorithm>

#include "core/record.hpp"
#include "ddp/core/error.hpp"
#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"

namespace ddp {

// How long a rank lets the others read a verdict, at most, before it throws.
constexpr std::chrono::milliseconds kLongestReading = std::chrono::seconds(30);

std::vector<std::string> ReducerRanks::exchange(std::string_view what, std::string_view value) const {
  return control_->all_gather(text(name_, "/", what), value, ranks_, Deadline::after(timeout_));
}

void ReducerRanks::require_same(std::string_view what, std::string_view value,
                                std::string_view advice) const {
  auto const all = exchange(what, value);
  std::size_t const r = first_to_differ(all);
  if (r == 0) return;
  throw CommError(ErrorCode::mismatch, text("rank ", ranks_[r], " would reduce gradients with ", all[r],
                                            "; rank ", ranks_[0], " with ", all[0], "; ", advice));
}

void ReducerRanks::let_others_read() const noexcept {
  try {
    Deadline const deadline = Deadline::after(std::min(timeout_, kLongestReading));
    static_cast<void>(control_->all_gather(text(name_, "/verdict"), {}, ranks_, deadline));
  } catch (std::exception const& error) {  // a rank that does not come has failed in another way
    log(LogLevel::debug, error.what());
  }
}

std::string name_ranks(std::span<Rank const> ranks) {
  return text("rank", ranks.size() == 1 ? " " : "s ", join(ranks, ", "));
}

}  // namespace ddp
