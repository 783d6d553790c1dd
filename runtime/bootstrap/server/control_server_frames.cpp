// What ranks say, and who hears of it.
#include <algorithm>
#include <string_view>
#include <utility>

#include "bootstrap/server/control_server.hpp"
#include "core/system/process_stat.hpp"
#include "ddp/core/text.hpp"

namespace ddp {
namespace {

// Told when none has left for this long, or the first one so long ago.
constexpr std::chrono::milliseconds kAfterALeaving{20};
constexpr std::chrono::milliseconds kAfterTheFirstLeaving{500};

// It takes as long for every secret of this length.
bool is_same_secret(std::string_view given, std::string_view secret) {
  if (given.size() != secret.size()) return false;
  int difference = 0;
  for (std::size_t i = 0; i < given.size(); ++i) difference |= given[i] ^ secret[i];
  return difference == 0;
}

}  // namespace

void ControlServer::handle(RankConnection& connection, wire::Frame frame) try {
  using wire::Type;
  if (!connection.knows_secret()) return greet(connection, frame);
  if (!connection.rank()) {
    return frame.type == Type::ended ? hear_end(connection, frame) : join(connection, frame);
  }
  Rank const rank = *connection.rank();
  if (frame.type == Type::withdraw) lose_awaited_by({rank, frame.request});
  if (auto const answers = store_.handle(rank, frame)) {
    bool const fails =
        std::ranges::any_of(*answers, [](auto const& answer) { return answer.failure.has_value(); });
    if (fails && tell_at_) tell_of_lost();
    if (frame.type == Type::rebuild && store_.is_newcomer(rank)) tell_of_newcomer();
    return deliver(*answers);
  }
  switch (frame.type) {
    case Type::error:
      happened(Event::Kind::error, connection).failure =
          wire::decode_failure(std::string_view(frame.value).substr(0, wire::kLongestFailure));
      break;
    case Type::notice:
      pass_on(rank, frame);
      break;
    case Type::leave:
      happened(Event::Kind::left, connection);
      if (rank == Rank{0} && options_.of_rank_0) network_.reset();  // all have joined
      declare_lost(has_left(rank));
      connection.send(frame.request, {});
      break;
    default:
      connection.break_off(text("unexpected frame of type ", static_cast<int>(frame.type)));
  }
} catch (Error const& error) {  // from a decoder: the frame's value is malformed
  connection.break_off(error.what());
}

ControlServer::Event& ControlServer::happened(Event::Kind kind, RankConnection const& connection) {
  wire::Join const& who = *connection.who();
  return events_.emplace_back(Event{kind, who.rank, connection.pid(), who.process, who.host});
}

// Nothing is said to a stranger, not even that it is one.
void ControlServer::greet(RankConnection& connection, wire::Frame const& frame) {
  if (frame.type != wire::Type::hello || !is_same_secret(frame.value, options_.secret)) {
    connection.break_off("it does not know the job's secret");
    return;
  }
  connection.has_said_secret();
  connection.send(frame.request, {});
}

void ControlServer::pass_on(Rank from, wire::Frame const& frame) {
  wire::Reader reader(frame.value);
  auto const to = wire::decode_group(reader, options_.size);
  std::string const bytes = wire::encode_rank(from).append(reader.rest());
  for (Rank const rank : to) {
    auto const found = of_rank_.find(rank);
    if (found != of_rank_.end()) found->second->send({wire::Type::notice, 0, frame.key, bytes});
  }
}

void ControlServer::join(RankConnection& connection, wire::Frame const& frame) {
  if (frame.type != wire::Type::join) {
    connection.break_off(
        text("its first frame is of type ", static_cast<int>(frame.type), ", expected join"));
    return;
  }
  wire::Join const wanted = wire::decode_join(frame.value);
  if (std::string const reason = why_not(wanted, connection.pid()); !reason.empty()) {
    bool const may_come_again = connection.pid() == 0 && store_.find_lost(wanted.rank) != nullptr;
    Failure const refused =
        refusal(wanted.rank, may_come_again ? ErrorCode::io : ErrorCode::invalid_state, reason);
    connection.send({wire::Type::failed, frame.request, {}, wire::encode_failure(refused)});
    connection.break_off(reason);
    return;
  }
  if (tell_at_) tell_of_lost();  // so that this rank hears once of each
  connection.joined_as(wanted);
  of_rank_[wanted.rank] = &connection;
  happened(Event::Kind::joined, connection);
  connection.send(frame.request, {here_});
  for (Failure const& lost : store_.lost()) {
    if (lost.ranks.front() == wanted.rank) continue;  // the process before this one
    connection.send({wire::Type::lost, 0, {}, wire::encode_failure(lost)});
  }
}

// Why it is no rank of this job; empty if it is one.
std::string ControlServer::why_of_another_job(wire::Join const& join) const {
  if (join.size != options_.size) {
    return text("the job has ", options_.size, " ranks, but this process expects ", join.size,
                " (WORLD_SIZE)");
  }
  if (join.generation != options_.generation) {
    return text("the job is in its generation ", options_.generation, ", this process is of generation ",
                join.generation, " (DDP_GENERATION)");
  }
  if (join.rank.value() >= options_.size) {
    return text("the job's ranks are 0 to ", options_.size - 1, ", this process is rank ", join.rank,
                " (RANK)");
  }
  return {};
}

// Why it may not join; empty if it may.
std::string ControlServer::why_not(wire::Join const& join, pid_t pid) const {
  if (std::string why = why_of_another_job(join); !why.empty()) return why;
  Failure const* const lost = store_.find_lost(join.rank);
  if (lost != nullptr && !store_.is_newcomer(join.rank)) {
    return text(to_string(*lost),
                pid == 0 ? "; rank 0 is still in that World: the next begins when rank 0 has let it go"
                         : "; a rank cannot come back into the same job");
  }
  if (auto const other = of_rank_.find(join.rank); other != of_rank_.end()) {
    pid_t const joined = other->second->pid();
    if (joined == 0 || pid == 0) {
      return text("a process on ", other->second->who()->host, " has joined as rank ", join.rank,
                  " already: is another job using this address?");
    }
    return joined == pid ? text("this process has joined as rank ", join.rank,
                                " already: a process makes one World; copy it, or make World::subgroup()")
                         : text("process ", joined, " has joined as rank ", join.rank,
                                " already: a process that a rank starts must not join too");
  }
  return {};
}

void ControlServer::hear_end(RankConnection& connection, wire::Frame const& frame) {
  wire::Join const who = wire::decode_join(frame.value);
  if (std::string why = why_of_another_job(who); !why.empty()) return connection.break_off(std::move(why));
  events_.push_back(Event{.kind = Event::Kind::ended,
                          .rank = who.rank,
                          .process = who.process,
                          .host = who.host,
                          .words = frame.key});
  connection.becomes_guard_of(who.rank, frame.request);
}

void ControlServer::let_come_back(Rank rank) {
  if (auto const before = of_rank_.find(rank); before != of_rank_.end()) {
    before->second->break_off("its process has ended");
    sweep();
  }
  store_.come_back(rank);
  set_timer();
}

void ControlServer::let_guards_go(std::optional<Rank> rank) {
  for (auto& [id, connection] : connections_) connection.let_guard_go(rank);
  set_timer();
}

void ControlServer::lose_awaited_by(ControlStore::Ticket ticket) {
  for (Rank const late : store_.awaited_by(ticket)) {
    auto const joined = of_rank_.find(late);
    if (joined != of_rank_.end()) {
      happened(Event::Kind::late, *joined->second);
    } else {
      events_.push_back(Event{.kind = Event::Kind::late, .rank = late});
    }
    declare_lost(missed_rebuild(late));
  }
}

void ControlServer::deliver(ControlStore::Answers const& answers) {
  bool const begins = membership_ != store_.membership();
  if (begins) {
    membership_ = store_.membership();
    auto const members = store_.living();
    events_.push_back(
        Event{.kind = Event::Kind::rebuilt, .rank = members.front(), .membership = {membership_, members}});
  }
  for (ControlStore::Answer const& answer : answers) {
    auto const of_rank = of_rank_.find(answer.to.rank);
    if (of_rank == of_rank_.end()) continue;
    RankConnection& connection = *of_rank->second;
    if (answer.failure) {
      Failure failure = *answer.failure;
      if (failure.code == ErrorCode::timeout) {
        for (auto const& [rank, joined] : of_rank_) note_stopped(failure, rank, joined->pid());
      }
      connection.send({wire::Type::failed, answer.to.number, {}, wire::encode_failure(failure)});
    } else {
      connection.send(answer.to.number, answer.values, begins ? wire::Type::begun : wire::Type::done);
    }
  }
}

// Ranks that end in order mostly do so together: told a moment later, their leaving needs to be told to few.
// Other failures are told at once, and before those that they cause: when a failure is caught, the rank is in
// lost().
void ControlServer::declare_lost(Failure const& lost) {
  bool const known = store_.find_lost(lost.ranks.front()) != nullptr;
  ControlStore::Answers const answers = store_.lose(lost);
  if (known) return deliver(answers);                           // of a newcomer at most
  if (store_.find_lost(lost.ranks.front()) == nullptr) return;  // no rank of this job
  untold_.push_back(lost);
  auto const now = Clock::now();
  if (!tell_at_) tell_at_latest_ = now + kAfterTheFirstLeaving;
  tell_at_ = std::min(now + kAfterALeaving, tell_at_latest_);
  if (lost.manner != Failure::Manner::left || !answers.empty()) tell_of_lost();
  deliver(answers);
  set_timer();
}

void ControlServer::tell_of_newcomer() {
  for (auto const& [rank, joined] : of_rank_) {
    auto const why = store_.interruption(rank);
    if (why) joined->send({wire::Type::interrupted, 0, {}, wire::encode_failure(*why)});
  }
}

// Those that have left need not know.
void ControlServer::tell_of_lost() {
  for (auto const& [rank, joined] : of_rank_) {
    Failure const* own = store_.find_lost(rank);
    if (own != nullptr && own->manner == Failure::Manner::left) continue;
    for (Failure const& lost : untold_) joined->send({wire::Type::lost, 0, {}, wire::encode_failure(lost)});
  }
  untold_.clear();
  tell_at_.reset();
}

}  // namespace ddp
