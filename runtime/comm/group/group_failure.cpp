#include "comm/group/group_failure.hpp"

#include <thread>

#include "bootstrap/wire.hpp"
#include "ddp/core/text.hpp"

namespace ddp {

constexpr char const* kIfDataEnded =
    "; if its data ended before that of others: set DistributedDataParallel::Options::uneven and call join() "
    "behind the loop on every rank, or go on with set_weight(0)";

bool GroupFailure::set(Failure const& failure) noexcept {
  std::uint32_t expected = kNone;
  if (!state_.compare_exchange_strong(expected, kWriting)) {
    // Writing takes a microsecond, unless the writer was killed in the middle.
    for (int i = 0; i < 100 && !is_set(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (is_set()) return false;
  }
  std::string const bytes = wire::encode_failure(failure, kMostBytes);
  std::ranges::copy(bytes, bytes_.begin());
  length_ = static_cast<std::uint32_t>(bytes.size());
  state_.store(kSet, std::memory_order_seq_cst);
  return true;
}

void GroupFailure::throw_if_set(Rank me) const {
  if (!is_set()) return;
  Failure failure = wire::decode_failure({bytes_.data(), std::min<std::size_t>(length_, kMostBytes)});
  if (failure.ended_by == me || failure.code == ErrorCode::mismatch) failure.ended_by.reset();
  if (failure.ended_by && failure.code != ErrorCode::peer_lost) failure.code = ErrorCode::aborted;
  throw CommError(failure);
}

Failure wait_in_vain(Rank me, MemberGroup const& group, std::string activity,
                     std::span<std::size_t const> places) {
  std::vector<Rank> missing;
  for (std::size_t const place : places) missing.push_back(group.world_ranks[place]);
  std::string words = text("; look at what those ranks are doing, or raise ", group.waiting.timeout_setting);
  auto const waits = group.control ? group.control->waits_of(missing) : std::vector<std::string>();
  bool elsewhere = false;
  for (std::size_t i = 0; i < waits.size(); ++i) {
    if (waits[i].empty()) continue;
    elsewhere = true;
    words += text(
        "; rank ", missing[i], " waits in ",
        waits[i].ends_with("/barrier") ? "World::barrier()" : text('"', waits[i], "\" of the control plane"));
  }
  if (elsewhere) words += kIfDataEnded;
  return {.code = ErrorCode::timeout,
          .manner = Failure::Manner::silent,
          .ranks = std::move(missing),
          .operation = std::move(activity),
          .by = me,
          .waited = group.waiting.timeout,
          .detail = std::move(words)};
}

Failure loss_of(Failure lost, Rank me, std::string activity) {
  if (lost.manner == Failure::Manner::left) lost.detail = kIfDataEnded;
  lost.operation = std::move(activity);
  lost.by = me;
  return lost;
}

}  // namespace ddp
