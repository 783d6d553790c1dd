#include "parallel/world/world_rebuild.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <thread>
#include <utility>

#include "comm/communicator_backend.hpp"
#include "comm/step_commits.hpp"
#include "core/hash.hpp"
#include "core/record.hpp"
#include "core/system/build_id.hpp"
#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"
#include "ddp/device/memory.hpp"
#include "ddp/device/tensor_ops.hpp"
#include "ddp/parallel/replicated.hpp"
#include "device/cuda/backend.hpp"
#include "parallel/world/lost_rank.hpp"

namespace ddp {
namespace {

// ddp-launch sees the end of a process at once.
constexpr std::chrono::seconds kUntilALossIsKnown{1};

constexpr std::string_view kOnlyUnderSurvive =
    "ranks with a GPU go on only where ddp-launch --survive has started them, or with DDP_MIN_RANKS";

bool ends_with_first_loss(WorldState const& state) {
  return state.device.kind == DeviceKind::cuda && !state.communicator_options.commits;
}

// By follower, in the order in which they were made.
using Steps = std::vector<std::uint64_t>;

std::string steps_of(WorldState const& state) {
  std::string said;
  for (WorldFollower const* const follower : state.followers) append_field(said, follower->steps());
  return said;
}

// What the ranks of one program have alike, a line each.
std::string form_of(WorldState const& state, Replicated const& replicated) {
  std::string form = text("library ", library_version(), '\n');
  for (WorldFollower const* const follower : state.followers) form += follower->form();
  return form + replicated.form();
}

// Whether this rank could give the values to others.
bool is_whole(WorldState const& state) {
  return !state.newcomer && !state.going_back &&
         std::ranges::all_of(state.followers, [](WorldFollower const* each) { return each->is_whole(); });
}

// What each member says when it comes.
struct Coming {
  int newcomer = 0;
  int whole = 0;
  int awaits_update = 0;
  std::uint64_t form = 0;  // its hash
  Steps steps;
};
std::vector<Coming> read_comings(Membership const& next) {
  std::vector<Coming> all;
  for (std::string const& said : next.values) {
    Coming& one = all.emplace_back();
    RecordReader reader(said);
    reader >> one.newcomer >> one.whole >> one.awaits_update >> one.form;
    for (std::uint64_t each = 0; reader >> each;) one.steps.push_back(each);
  }
  return all;
}

std::string describe(Steps const& steps) {
  std::string words;
  for (std::uint64_t const each : steps) words += text(words.empty() ? "" : " and ", each);
  return words.empty() ? "no" : words;
}

// The place of the first rank that has done most, of those that have values. All ranks go through one
// sequence of steps, each of one follower, so of two ranks one has done everything that the other has, and
// any comparison finds it; of those with as many steps, one that surely has the last one's update. That one
// gives the values of all followers: those of several ranks would be a state that no rank ever had.
std::size_t find_source(std::vector<Coming> const& all, std::span<Rank const> members) {
  std::optional<std::size_t> source;
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (all[r].whole == 0) continue;
    auto const done = [&](std::size_t rank) { return std::pair(all[rank].steps, -all[rank].awaits_update); };
    if (!source || done(r) > done(*source)) source = r;
  }
  if (!source) {
    throw Error(ErrorCode::invalid_state,
                "World::rebuild(): no rank that is left has the values of a whole number of steps; give "
                "Replicated a function that goes back to a checkpoint");
  }
  Steps const& most = all[*source].steps;
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (all[r].whole == 0 || std::ranges::equal(all[r].steps, most, std::less_equal())) continue;
    throw CommError(
        ErrorCode::mismatch,
        text("World::rebuild(): the DistributedDataParallel objects of rank ", members[r], " have done ",
             describe(all[r].steps), " steps, those of rank ", members[*source], " ", describe(most),
             ": expected the same objects on every rank, made before a rank "
             "is lost, and their steps in the same order"));
  }
  return *source;
}

std::string_view line_at(std::string_view form, std::size_t begin) {
  return form.substr(begin, form.find('\n', begin) - begin);
}

// The first line in which a newcomer differs from the rank with the values. Collective.
[[noreturn]] void refuse_other_form(WorldState const& state, std::string const& form, std::size_t newcomer,
                                    std::size_t source) {
  auto const forms = state.control->all_gather(text(state.name, "/form"), form, state.members,
                                               Deadline::after(state.options.timeout));
  FormDifference const found = first_difference(forms[source], forms[newcomer]);
  auto const show = [](std::string line) {
    std::ranges::replace(line, '\t', ' ');
    return line.empty() ? "nothing" : line;
  };
  Rank const who = state.members[newcomer];
  throw CommError(
      {.code = ErrorCode::mismatch,
       .manner = Failure::Manner::differs,
       .ranks = {who},
       .detail = text("World::rebuild(): the new process of rank ", who, " has ", show(found.other),
                      " where rank ", state.members[source], " has ", show(found.one),
                      "; expected the same program, which makes Replicated last")});
}

// Gives every rank the values of `source`, all of them or, if a rank is lost meanwhile, none: until then this
// rank must have its own, since it may be the next source. So the host keeps a copy of them; on a GPU only
// where the rank may be behind, since otherwise the model is the same on both ranks.
void give(std::span<TensorView const> values, bool may_be_behind, Rank source, Communicator& communicator,
          Stream& stream) {
  Device const device = communicator.device();
  bool const receives = communicator.rank() != source;
  std::vector<Tensor> kept;
  std::vector<Copy> back;
  try {
    for (TensorView const& value : values) {
      if (value.count() == 0) continue;
      bool const is_there = value.device.kind == device.kind;
      TensorView const own{value.data, Shape{value.bytes()}, DType::u8, is_there ? device : value.device};
      if (receives && (may_be_behind || own.device.kind == DeviceKind::cpu)) {
        kept.push_back(to(own, Device{}, stream));
        back.push_back({own, kept.back()});
      }
      Tensor const passing = is_there ? Tensor() : to(own, device, stream);
      communicator.broadcast(is_there ? own : passing.view(), source, stream);
      if (!is_there) copy_elements(own, passing, stream);
      if (!is_there) stream.synchronize();
    }
    stream.synchronize();
  } catch (...) {
    for (Copy const& copy : back) copy_elements(copy.to, copy.from, stream);
    cuda::forget_failures(stream);
    throw;
  }
}

// All at once: work of one may wait for another's, and what is freed of one for both.
void abort_all(WorldState& state, std::string_view reason) noexcept {
  state.communicator->abort(reason);
  state.abort_spares(reason);
  for (WorldFollower* const follower : state.followers) follower->abort(reason);
  for (WorldFollower* const follower : state.followers) follower->drain(reason);
  cuda::forget_failures(*state.stream);
  state.spares.clear();
  state.had_lanes = false;
  if (std::ranges::any_of(state.followers, &WorldFollower::is_ahead_of_gpu)) {
    state.each_host_values(&HostValues::take_back);
  }
}

// Whether one of `members` has died, of which the news may be on its way, or a newcomer waits: then those who
// noticed it earlier have let go what this rank was about to open.
bool must_meet_again(ControlPlane const& control, std::span<Rank const> members) {
  Deadline const deadline = Deadline::after(kUntilALossIsKnown);
  for (;;) {
    if (control.interruption()) return true;
    for (Failure const& lost : control.lost()) {
      if (std::ranges::find(members, lost.ranks.front()) != members.end()) return true;
    }
    if (deadline.expired()) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

// Once: from the old membership to `next`, whose ranks have said `all`.
void go_on(WorldState& state, Replicated const& replicated, Membership const& next,
           std::vector<Coming> const& all, std::string const& form) {
  auto const began = std::chrono::steady_clock::now();
  std::string const name = text("ddp/@", next.number);
  bool const back =
      replicated.go_back() && std::ranges::none_of(all, [](Coming const& one) { return one.whole != 0; });
  // What no checkpoint has is alike all the same: some rank has always taken part before.
  std::size_t const ahead =
      back ? static_cast<std::size_t>(std::ranges::find(all, 0, &Coming::newcomer) - all.begin())
           : find_source(all, next.ranks);
  auto& commits = state.communicator_options.commits;
  if (commits) commits = std::make_shared<StepCommits>();
  state.communicator = state.connect(name, next.ranks);
  backend_of(*state.communicator).record_as(text("world, membership ", next.number));
  state.name = name;
  state.membership = next.number;
  state.next_object = 0;
  state.take_members(next.ranks, state.communicator->rank());
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (all[r].form != all[ahead].form) refuse_other_form(state, form, r, ahead);
  }

  std::vector<TensorView> values(replicated.tensors().begin(), replicated.tensors().end());
  for (WorldFollower* const follower : state.followers) {
    auto const more = follower->values();
    values.insert(values.end(), more.begin(), more.end());
  }
  state.going_back = state.going_back || back;
  Steps const& done = all[ahead].steps;
  Coming const& own = all[state.place->rank.index()];
  bool const may_be_behind =
      !state.newcomer && (own.steps != done || own.awaits_update != 0 || all[ahead].awaits_update != 0);
  give(values, may_be_behind, Rank{static_cast<int>(ahead)}, *state.communicator, *state.stream);
  for (std::size_t f = 0; f < state.followers.size(); ++f) state.followers[f]->have_done(done[f]);
  for (WorldFollower* const follower : state.followers) follower->follow();
  state.newcomer = false;
  if (back) replicated.go_back()();
  state.going_back = false;
  auto const end = std::chrono::steady_clock::now();
  if (state.trace) {
    auto const track = state.trace->add_track(text("membership ", next.number));
    state.trace->add(
        {track, text("rebuild(): ranks ", join(next.ranks, ", ")), "rebuild", began, end, {}, {}});
  }
  std::chrono::duration<double, std::milli> const took = end - began;
  log(LogLevel::info, text("rank ", state.info.rank, " is rank ", state.place->rank, " of ",
                           state.place->size, " in membership ", next.number, ", with the values of ",
                           back ? "a checkpoint" : text("rank ", state.members[ahead]), " after ",
                           describe(done), " steps; ready ", took.count(), " ms after all had come"));
}

// The same loss, so that a report names it as the consequence that it is, and why nobody goes on.
CommError final_loss(CommError const& error, std::string_view why) {
  return {error.failure(), text(error.what(), "; ", why)};
}

// `loss`: for which it is, null for a newcomer.
Membership next_membership(WorldState const& own, std::string const& said, CommError const* loss) {
  try {
    return own.control->rebuild(said, Deadline::after(own.options.timeout));
  } catch (Error const& refused) {
    if (loss == nullptr || refused.code() != ErrorCode::unsupported) throw;
    throw final_loss(*loss, refused.what());
  }
}

void rebuild_until_it_holds(WorldState& own, Replicated const& state, std::string reason,
                            CommError const* loss) {
  bool const comes_new = own.newcomer;
  for (;;) {
    abort_all(own, reason);
    std::string const form = form_of(own, state);
    // What this throws is final: without the control plane nobody can go on.
    Membership const next =
        next_membership(own,
                        record(own.newcomer ? 1 : 0, is_whole(own) ? 1 : 0,
                               std::ranges::any_of(own.followers, &WorldFollower::awaits_update) ? 1 : 0,
                               StableHash().add(form).value()) +
                            steps_of(own),
                        loss);
    auto const all = read_comings(next);
    try {
      return go_on(own, state, next, all, form);
    } catch (CommError const& again) {
      // A newcomer that differs ends, and the others go on without it.
      bool const has_newcomers =
          std::ranges::any_of(all, [](Coming const& one) { return one.newcomer != 0; });
      bool const is_of_newcomer = again.code() == ErrorCode::mismatch && has_newcomers && !comes_new;
      if (!is_of_newcomer && !is_of_a_lost_rank(again.failure())) throw;
      reason = again.what();
    } catch (Error const& problem) {  // as when a process ends whose memory others are about to open
      if (!must_meet_again(*own.control, next.ranks)) throw;
      reason = problem.what();
    }
  }
}

void refuse_what_cannot_follow(WorldState const& state, Replicated const& replicated) {
  if (std::string const why = why_not_rebuilt(state, replicated); !why.empty()) {
    throw Error(ErrorCode::unsupported, text("World::rebuild(): ", why));
  }
}

}  // namespace

FormDifference first_difference(std::string_view one, std::string_view other) {
  auto const [there, here] = std::ranges::mismatch(one, other);
  auto const at = static_cast<std::size_t>(there - one.begin());
  std::size_t const begin = at == 0 ? 0 : one.rfind('\n', at - 1) + 1;
  return {static_cast<std::size_t>(std::ranges::count(one.substr(0, begin), '\n')),
          std::string(line_at(one, begin)), std::string(line_at(other, begin))};
}

std::string why_not_rebuilt(WorldState const& state, Replicated const& replicated) {
  if (state.parent) return "a sub-group cannot be rebuilt; let it go, and rebuild the World it was made of";
  if (ends_with_first_loss(state)) return std::string(kOnlyUnderSurvive);
  if (state.subgroups > 0) return "a sub-group of this World cannot follow it; let it go before";
  for (WorldFollower const* const follower : state.followers) {
    if (std::string why = follower->why_not_rebuilt(bool(replicated.go_back())); !why.empty()) return why;
  }
  return {};
}

void take_part(WorldState& state, Replicated const& replicated) {
  refuse_what_cannot_follow(state, replicated);
  rebuild_until_it_holds(state, replicated, "this rank takes part from now on", nullptr);
}

void World::rebuild(CommError const& error, Replicated& state) {
  if (!is_of_a_lost_rank(error.failure())) throw error;
  if (state_->rebuilt_for && &state_->rebuilt_for->failure() == &error.failure()) {  // copies share it
    log(LogLevel::warning, text("World::rebuild(): membership ", membership(),
                                " has begun for this error already: ", error.what()));
    return;
  }
  if (!state_->parent && ends_with_first_loss(*state_)) throw final_loss(error, kOnlyUnderSurvive);
  refuse_what_cannot_follow(*state_, state);
  state_->control->report_failure(error);
  rebuild_until_it_holds(*state_, state, error.what(), &error);
  state_->rebuilt_for = error;
}

}  // namespace ddp
