// From one membership to the next.
#include <algorithm>
#include <utility>

#include "bootstrap/control_store.hpp"
#include "ddp/core/text.hpp"

namespace ddp {

Failure missed_rebuild(Rank rank) {
  return {.code = ErrorCode::peer_lost,
          .manner = Failure::Manner::silent,
          .ranks = {rank},
          .detail = text("rank ", rank, " did not come to rebuild() by the deadline of the others")};
}

Failure newcomer_waits(Rank newcomer, Rank member) {
  return {.code = ErrorCode::aborted,
          .ranks = {member},
          .detail = text("a new process waits in the place of rank ", newcomer,
                         ", which was lost: World::rebuild() takes it in")};
}

std::vector<Rank> ControlStore::living() const {
  std::vector<Rank> ranks;
  for (Rank const rank : all_ranks(size())) {
    if (find_lost(rank) == nullptr) ranks.push_back(rank);
  }
  return ranks;
}

// A rank that has left in order has done its work: it is not lost.
std::optional<Failure> ControlStore::refuse_rebuild(Rank rank) const {
  if (limits_.min_ranks == 0) {
    return refusal(rank, ErrorCode::unsupported,
                   "this job ends with its first lost rank: to go on, start it with ddp-launch --survive, or "
                   "with DDP_MIN_RANKS where another starter lets the other ranks live");
  }
  auto const died =
      std::ranges::count_if(lost_, [](Failure const& lost) { return lost.manner != Failure::Manner::left; });
  auto const left = size() - static_cast<int>(died);
  if (left >= limits_.min_ranks) {
    if (!living().empty()) return std::nullopt;  // otherwise only newcomers have come
    return refusal(rank, ErrorCode::invalid_state, "all ranks of the job have ended");
  }
  return refusal(rank, ErrorCode::invalid_state,
                 text(left, " of ", size(), left == 1 ? " ranks is left" : " ranks are left",
                      ", and --min-ranks (DDP_MIN_RANKS) is ", limits_.min_ranks));
}

// Whoever asks anything else while others rebuild has not noticed yet that the old membership has ended.
std::optional<Failure> ControlStore::refuse_old_membership() const {
  if (rebuilding_.empty()) return std::nullopt;
  if (first_death_) return first_death_;
  if (interrupter_) return newcomer_waits(*interrupter_, *interrupter_);
  Rank const first = rebuilding_.begin()->first;
  return Failure{.code = ErrorCode::aborted,
                 .ranks = {first},
                 .detail = text("rank ", first, " has given up, and calls World::rebuild()")};
}

void ControlStore::end_old_membership(Answers& answers) {
  Failure const ended = *refuse_old_membership();
  for (auto gather = gathers_.begin(); gather != gathers_.end();) gather = fail(gather, ended, answers);
  fail_gets(ended, answers);
}

ControlStore::Answers ControlStore::rebuild(Ticket ticket, std::string value) {
  auto refused = refuse(ticket);
  if (!refused) refused = refuse_rebuild(ticket.rank);
  if (!refused && rebuilding_.contains(ticket.rank)) {
    refused = refusal(ticket.rank, ErrorCode::invalid_state,
                      text("rank ", ticket.rank, " is in this call already, in another thread"));
  }
  if (!refused) refused = refuse_storage(ticket.rank, value.size());
  if (refused) return {{ticket, std::move(refused), {}}};
  stored_bytes_ += value.size();
  ++waiting_[ticket.rank.index()];
  bool const first = rebuilding_.empty();
  if (is_newcomer(ticket.rank)) interrupter_ = ticket.rank;
  rebuilding_[ticket.rank] = {ticket, std::make_shared<std::string const>(std::move(value))};
  Answers answers;
  if (first) end_old_membership(answers);
  rebuild_if_all_came(answers);
  return answers;
}

std::vector<Rank> ControlStore::awaited_by(Ticket ticket) const {
  auto const mine = rebuilding_.find(ticket.rank);
  if (mine == rebuilding_.end() || mine->second.ticket != ticket || is_newcomer(ticket.rank)) return {};
  std::vector<Rank> ranks = living();
  std::erase_if(ranks, [this](Rank rank) { return rebuilding_.contains(rank); });
  return ranks;
}

std::optional<Failure> ControlStore::interruption(Rank member) const {
  if (!interrupter_ || find_lost(member) != nullptr) return std::nullopt;
  return newcomer_waits(*interrupter_, member);
}

// Of a rank that is in lost_ already, and remains there as its last process has ended.
void ControlStore::lose_newcomer(Failure const& lost, Answers& answers) {
  Rank const rank = lost.ranks.front();
  newcomers_.erase(rank);
  fail_waits_of(rank, lost, answers);
  auto const known =
      std::ranges::find_if(lost_, [rank](Failure const& each) { return each.ranks.front() == rank; });
  if (lost.manner != Failure::Manner::left) *known = lost;
}

void ControlStore::stop_rebuilding(Rank rank, Failure const& failure, Answers& answers) {
  auto const part = rebuilding_.find(rank);
  if (part == rebuilding_.end()) return;
  answers.push_back({*part->second.ticket, failure, {}});
  --waiting_[rank.index()];
  stored_bytes_ -= part->second.value->size();
  rebuilding_.erase(part);
}

void ControlStore::rebuild_if_all_came(Answers& answers) {
  while (!rebuilding_.empty()) {
    Rank const rank = rebuilding_.begin()->first;
    auto const refused = refuse_rebuild(rank);
    if (!refused) break;
    stop_rebuilding(rank, *refused, answers);
  }
  if (rebuilding_.empty()) return;
  std::vector<Rank> const members = living();
  if (!std::ranges::all_of(members, [this](Rank rank) { return rebuilding_.contains(rank); })) return;
  std::vector<Rank> ranks;
  for (auto const& [rank, part] : rebuilding_) ranks.push_back(rank);
  std::erase_if(lost_, [this](Failure const& lost) { return rebuilding_.contains(lost.ranks.front()); });
  for (Rank const rank : ranks) newcomers_.erase(rank);
  ++membership_;
  first_death_.reset();
  interrupter_.reset();
  std::string head;
  wire::append_u32(head, static_cast<std::uint32_t>(membership_));
  std::vector<Value> values{std::make_shared<std::string const>(head + wire::encode_group(ranks))};
  for (auto const& [rank, part] : rebuilding_) values.push_back(part.value);
  for (auto const& [rank, part] : rebuilding_) {
    answers.push_back({*part.ticket, std::nullopt, values});
    --waiting_[rank.index()];
    stored_bytes_ -= part.value->size();
  }
  rebuilding_.clear();
}

}  // namespace ddp
