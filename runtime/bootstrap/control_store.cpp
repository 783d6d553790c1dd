#include "bootstrap/control_store.hpp"

#include <algorithm>
#include <utility>

#include "core/system/host_identity.hpp"
#include "ddp/core/text.hpp"

namespace ddp {
namespace {

ControlStore::Answers one_failure(ControlStore::Ticket ticket, Failure failure) {
  return {{ticket, std::move(failure), {}}};
}

ControlStore::Answers refused(ControlStore::Ticket ticket, ErrorCode code, std::string why) {
  return one_failure(ticket, refusal(ticket.rank, code, std::move(why)));
}

}  // namespace

Failure refusal(Rank rank, ErrorCode code, std::string why) {
  return {.code = code, .manner = Failure::Manner::refused, .ranks = {rank}, .detail = std::move(why)};
}

Failure has_left(Rank rank) {
  return {.code = ErrorCode::peer_lost, .manner = Failure::Manner::left, .ranks = {rank}};
}

Failure process_has_ended(Rank rank, int process, std::string const& host) {
  bool const is_elsewhere = !host.empty() && host != host_name(host_identity());
  return {.code = ErrorCode::peer_lost,
          .manner = Failure::Manner::exited,
          .ranks = {rank},
          .host = host,
          .detail = text("its process", process == 0 ? "" : text(", ", process, ","),
                         is_elsewhere ? text(" on ", host) : "", " has ended")};
}

Failure has_left_already(Rank rank) {
  return refusal(rank, ErrorCode::invalid_state,
                 "this rank has left the group: leave() must be the last call");
}

std::string why_no_group(std::span<Rank const> group, Rank caller, int size) {
  auto const because = [&](auto const&... what) {
    return text("the group [", join(group, ", "), "] ", what...);
  };
  std::vector<bool> seen(static_cast<std::size_t>(size));
  for (Rank const rank : group) {
    if (rank.value() < 0 || rank.value() >= size) {
      return because("holds rank ", rank, ", but the job's ranks are 0 to ", size - 1);
    }
    if (seen[rank.index()]) return because("holds rank ", rank, " twice");
    seen[rank.index()] = true;
  }
  return seen[caller.index()] ? std::string() : because("does not hold the rank that calls, ", caller);
}

bool ControlStore::Gather::holds(Rank rank) const noexcept {
  return std::ranges::find(group, rank) != group.end();
}

std::vector<Rank> ControlStore::Gather::missing() const {
  std::vector<Rank> ranks;
  for (std::size_t i = 0; i < group.size(); ++i) {
    if (!parts[i].ticket) ranks.push_back(group[i]);
  }
  return ranks;
}

ControlStore::ControlStore(int size, Limits limits) : limits_(limits) {
  require(size >= 1, text("a job has at least 1 rank, not ", size));
  waiting_.resize(static_cast<std::size_t>(size));
}

Failure const* ControlStore::find_lost(Rank rank) const noexcept {
  auto const found =
      std::ranges::find_if(lost_, [rank](Failure const& lost) { return lost.ranks.front() == rank; });
  return found == lost_.end() ? nullptr : &*found;
}

// Why this rank may not ask anything now; nullopt if it may.
std::optional<Failure> ControlStore::refuse(Ticket ticket) const {
  Failure const* const lost = find_lost(ticket.rank);
  if (lost != nullptr && !is_newcomer(ticket.rank)) {
    if (lost->manner == Failure::Manner::left) return has_left_already(ticket.rank);
    return refusal(ticket.rank, ErrorCode::peer_lost, "this rank was declared lost: " + to_string(*lost));
  }
  if (waiting_[ticket.rank.index()] >= limits_.waiting_per_rank) {
    return refusal(ticket.rank, ErrorCode::invalid_state,
                   text("rank ", ticket.rank, " has ", limits_.waiting_per_rank,
                        " calls waiting already, the most that one rank may have"));
  }
  return std::nullopt;
}

std::optional<Failure> ControlStore::refuse_storage(Rank rank, std::size_t bytes) const {
  if (bytes <= limits_.stored_bytes - stored_bytes_) return std::nullopt;
  return refusal(rank, ErrorCode::out_of_memory,
                 text("the control plane holds ", to_string(Bytes{stored_bytes_}), " already; with another ",
                      to_string(Bytes{bytes}), " it would pass its limit of ",
                      to_string(Bytes{limits_.stored_bytes}), " a job. It is for small messages"));
}

ControlStore::Answers ControlStore::put(Ticket ticket, std::string_view key, std::string value) {
  if (auto refusal = refuse(ticket)) return one_failure(ticket, std::move(*refusal));
  if (values_.find(key) != values_.end()) {
    return refused(ticket, ErrorCode::invalid_state,
                   "the key has a value already: a key is put once in a job");
  }
  if (values_.size() >= limits_.keys) {
    return refused(ticket, ErrorCode::out_of_memory,
                   text("the job has put ", limits_.keys, " keys, the most that it may put"));
  }
  if (auto refusal = refuse_storage(ticket.rank, key.size() + value.size()))
    return one_failure(ticket, std::move(*refusal));

  stored_bytes_ += key.size() + value.size();
  auto const stored = std::make_shared<std::string const>(std::move(value));
  values_.emplace(key, stored);
  Answers answers{{ticket, std::nullopt, {}}};
  auto const [first, last] = gets_.equal_range(key);
  for (auto get = first; get != last; ++get) {
    --waiting_[get->second.rank.index()];
    answers.push_back({get->second, std::nullopt, {stored}});
  }
  gets_.erase(first, last);
  return answers;
}

ControlStore::Answers ControlStore::get(Ticket ticket, std::string_view key) {
  if (auto refusal = refuse(ticket)) return one_failure(ticket, std::move(*refusal));
  if (auto revoked = refuse_old_membership()) return one_failure(ticket, std::move(*revoked));
  if (auto const found = values_.find(key); found != values_.end()) {
    return {{ticket, std::nullopt, {found->second}}};
  }
  // Perhaps the dead rank was to put this key.
  if (first_death_) return one_failure(ticket, *first_death_);
  gets_.emplace(key, ticket);
  ++waiting_[ticket.rank.index()];
  return {};
}

// Why this group cannot be gathered now; nullopt if it can.
std::optional<Failure> ControlStore::refuse_group(Rank rank, std::span<Rank const> group) const {
  if (is_newcomer(rank)) {
    if (group.size() == 1) return std::nullopt;
    return refusal(rank, ErrorCode::invalid_state,
                   text("rank ", rank,
                        " is a newcomer, and does not take part before Replicated is made: until then "
                        "World::members() names this rank alone"));
  }
  for (Failure const& lost : lost_) {
    if (std::ranges::find(group, lost.ranks.front()) != group.end()) return lost;
  }
  return refuse_old_membership();
}

ControlStore::Answers ControlStore::all_gather(Ticket ticket, std::string_view name,
                                               std::span<Rank const> group, std::string value,
                                               bool for_first) {
  if (auto refusal = refuse(ticket)) return one_failure(ticket, std::move(*refusal));
  if (std::string reason = why_no_group(group, ticket.rank, size()); !reason.empty()) {
    return refused(ticket, ErrorCode::invalid_argument, std::move(reason));
  }
  if (auto refusal = refuse_group(ticket.rank, group)) return one_failure(ticket, std::move(*refusal));

  auto const [first, last] = gathers_.equal_range(name);
  auto const gather = std::find_if(first, last, [&](auto const& entry) {
    return std::ranges::any_of(group, [&](Rank rank) { return entry.second.holds(rank); });
  });
  if (gather != last && !std::ranges::equal(gather->second.group, group)) {
    Failure const failure{
        .code = ErrorCode::mismatch,
        .manner = Failure::Manner::differs,
        .ranks = {ticket.rank},
        .detail = text("rank ", ticket.rank, " called it with the group [", join(group, ", "),
                       "], others with [", join(gather->second.group, ", "), "]")};
    Answers answers = one_failure(ticket, failure);
    fail(gather, failure, answers);
    return answers;
  }
  if (gather != last) {
    auto const place = std::ranges::find(gather->second.group, ticket.rank) - gather->second.group.begin();
    if (gather->second.parts[static_cast<std::size_t>(place)].ticket) {
      return refused(ticket, ErrorCode::invalid_state,
                     text("rank ", ticket.rank, " is in this call already, in another thread"));
    }
  }
  std::size_t const name_bytes = gather == last ? name.size() + group.size() * sizeof(Rank) : 0;
  if (auto refusal = refuse_storage(ticket.rank, name_bytes + value.size()))
    return one_failure(ticket, std::move(*refusal));

  auto entry = gather;
  if (gather == last) {
    stored_bytes_ += name_bytes;
    Gather fresh;
    fresh.group.assign(group.begin(), group.end());
    fresh.parts.resize(group.size());
    entry = gathers_.emplace(name, std::move(fresh));
  }
  add_part(entry->second, ticket, std::move(value), for_first);
  Answers answers;
  if (entry->second.present == entry->second.group.size()) complete(entry, answers);
  return answers;
}

ControlStore::Answers ControlStore::withdraw(Ticket ticket) {
  for (auto get = gets_.begin(); get != gets_.end(); ++get) {
    if (get->second != ticket) continue;
    gets_.erase(get);
    --waiting_[ticket.rank.index()];
    return one_failure(
        ticket,
        {.code = ErrorCode::timeout, .manner = Failure::Manner::silent, .detail = "no rank has put it"});
  }
  if (auto const part = rebuilding_.find(ticket.rank);
      part != rebuilding_.end() && part->second.ticket == ticket) {
    Answers answers;
    stop_rebuilding(ticket.rank,
                    {.code = ErrorCode::timeout,
                     .manner = Failure::Manner::refused,
                     .ranks = {ticket.rank},
                     .detail = "the ranks of the job did not come to World::rebuild()"},
                    answers);
    return answers;
  }
  for (auto gather = gathers_.begin(); gather != gathers_.end(); ++gather) {
    Gather& state = gather->second;
    auto const part = std::ranges::find(state.parts, std::optional(ticket), &Gather::Part::ticket);
    if (part == state.parts.end()) continue;
    std::vector<Rank> const missing = state.missing();
    Answers answers = one_failure(
        ticket, {.code = ErrorCode::timeout,
                 .manner = Failure::Manner::silent,
                 .ranks = missing,
                 .detail = text(missing.size(), " of ", state.group.size(),
                                missing.size() == 1 ? " ranks is missing: " : " ranks are missing: ",
                                join(missing, ", "))});
    remove_part(state, *part);
    if (state.present == 0) erase(gather);
    return answers;
  }
  return {};
}

ControlStore::Answers ControlStore::waits(Ticket ticket, std::span<Rank const> ranks) const {
  Answer answer{ticket, std::nullopt, {}};
  for (Rank const rank : ranks) {
    std::string found;
    for (auto const& [key, waiter] : gets_) {
      if (waiter.rank == rank) found = key;
    }
    if (rebuilding_.contains(rank)) found = "ddp/rebuild";
    for (auto const& [name, gather] : gathers_) {
      auto const is_it = [rank](Gather::Part const& part) {
        return part.ticket && part.ticket->rank == rank;
      };
      if (std::ranges::any_of(gather.parts, is_it)) found = name;
    }
    answer.values.push_back(std::make_shared<std::string const>(std::move(found)));
  }
  return {std::move(answer)};
}

std::optional<ControlStore::Answers> ControlStore::handle(Rank rank, wire::Frame& frame) {
  Ticket const ticket{rank, frame.request};
  switch (frame.type) {
    case wire::Type::put:
      return put(ticket, frame.key, std::move(frame.value));
    case wire::Type::get:
      return get(ticket, frame.key);
    case wire::Type::gather:
    case wire::Type::collect: {
      wire::Reader reader(frame.value);
      std::vector<Rank> const group = wire::decode_group(reader, size());
      return all_gather(ticket, frame.key, group, std::string(reader.rest()),
                        frame.type == wire::Type::collect);
    }
    case wire::Type::rebuild:
      return rebuild(ticket, std::move(frame.value));
    case wire::Type::withdraw:
      return withdraw(ticket);
    case wire::Type::waits: {
      wire::Reader reader(frame.value);
      return waits(ticket, wire::decode_group(reader, size()));
    }
    default:
      return std::nullopt;
  }
}

void ControlStore::forget(Rank rank) {
  Answers to_nobody;
  fail_waits_of(rank, {}, to_nobody);
}

ControlStore::Answers ControlStore::lose(Failure const& lost) {
  Rank const rank = lost.ranks.front();
  if (rank.value() < 0 || rank.value() >= size()) return {};
  Answers answers;
  if (is_newcomer(rank)) lose_newcomer(lost, answers);
  if (find_lost(rank) != nullptr) return answers;
  lost_.push_back(lost);
  for (auto gather = gathers_.begin(); gather != gathers_.end();) {
    gather = gather->second.holds(rank) ? fail(gather, lost, answers) : std::next(gather);
  }
  if (lost.manner != Failure::Manner::left) {
    if (!first_death_) first_death_ = lost;
    fail_gets(lost, answers);
    stop_rebuilding(rank, lost, answers);
  } else {
    fail_waits_of(rank, has_left_already(rank), answers);
  }
  rebuild_if_all_came(answers);
  return answers;
}

void ControlStore::add_part(Gather& gather, Ticket ticket, std::string value, bool for_first) {
  auto const place = std::ranges::find(gather.group, ticket.rank) - gather.group.begin();
  stored_bytes_ += value.size();
  gather.parts[static_cast<std::size_t>(place)] = {
      ticket, std::make_shared<std::string const>(std::move(value)), !for_first || place == 0};
  ++gather.present;
  ++waiting_[ticket.rank.index()];
}

void ControlStore::remove_part(Gather& gather, Gather::Part& part) {
  --waiting_[part.ticket->rank.index()];
  stored_bytes_ -= part.value->size();
  part = {};
  --gather.present;
}

ControlStore::Gathers::iterator ControlStore::erase(Gathers::iterator gather) {
  for (Gather::Part& part : gather->second.parts) {
    if (part.ticket) remove_part(gather->second, part);
  }
  stored_bytes_ -= gather->first.size() + gather->second.group.size() * sizeof(Rank);
  return gathers_.erase(gather);
}

ControlStore::Gathers::iterator ControlStore::fail(Gathers::iterator gather, Failure const& failure,
                                                   Answers& answers) {
  for (Gather::Part const& part : gather->second.parts) {
    if (part.ticket) answers.push_back({*part.ticket, failure, {}});
  }
  return erase(gather);
}

ControlStore::Gathers::iterator ControlStore::complete(Gathers::iterator gather, Answers& answers) {
  std::vector<Value> values;
  for (Gather::Part const& part : gather->second.parts) values.push_back(part.value);
  for (Gather::Part const& part : gather->second.parts)
    answers.push_back({*part.ticket, std::nullopt, part.wants_values ? values : std::vector<Value>()});
  return erase(gather);
}

// Ends every wait of one rank.
void ControlStore::fail_waits_of(Rank rank, Failure const& failure, Answers& answers) {
  for (auto get = gets_.begin(); get != gets_.end();) {
    if (get->second.rank != rank) {
      ++get;
      continue;
    }
    --waiting_[rank.index()];
    answers.push_back({get->second, failure, {}});
    get = gets_.erase(get);
  }
  for (auto gather = gathers_.begin(); gather != gathers_.end();) {
    for (Gather::Part& part : gather->second.parts) {
      if (!part.ticket || part.ticket->rank != rank) continue;
      answers.push_back({*part.ticket, failure, {}});
      remove_part(gather->second, part);
    }
    gather = gather->second.present == 0 ? erase(gather) : std::next(gather);
  }
  stop_rebuilding(rank, failure, answers);
}

void ControlStore::fail_gets(Failure const& failure, Answers& answers) {
  for (auto const& [key, ticket] : gets_) {
    --waiting_[ticket.rank.index()];
    answers.push_back({ticket, failure, {}});
  }
  gets_.clear();
}

}  // namespace ddp
