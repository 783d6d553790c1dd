#include "parallel/world/world_rebuild.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <thread>
#include <utility>

#include "comm/communicator_backend.hpp"
#include "core/record.hpp"
#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"
#include "ddp/device/tensor_ops.hpp"
#include "ddp/parallel/replicated.hpp"

namespace ddp {
namespace {

// ddp-launch sees the end of a process at once.
constexpr std::chrono::seconds kUntilALossIsKnown{1};

// Whether going on without somebody may help. Ranks that differ would differ again, and a rank that counts as
// lost itself is refused.
bool is_of_a_lost_rank(CommError const& error) {
  if (error.failure().manner == Failure::Manner::refused) return false;
  return error.code() == ErrorCode::peer_lost || error.code() == ErrorCode::timeout ||
         error.code() == ErrorCode::aborted;
}

// By follower, in the order in which they were made.
using Steps = std::vector<std::uint64_t>;

std::string steps_of(WorldState const& state) {
  std::string said;
  for (WorldFollower const* const follower : state.followers) append_field(said, follower->steps());
  return said;
}

// The members' steps, by place.
std::vector<Steps> steps_of(Membership const& next) {
  std::vector<Steps> all;
  for (std::string const& said : next.values) {
    Steps& steps = all.emplace_back();
    RecordReader reader(said);
    for (std::uint64_t each = 0; reader >> each;) steps.push_back(each);
  }
  return all;
}

std::string describe(Steps const& steps) {
  std::string words;
  for (std::uint64_t const each : steps) words += text(words.empty() ? "" : " and ", each);
  return words.empty() ? "no" : words;
}

// The place of the first rank that has done most. All ranks go through one sequence of steps, each of one
// follower, so of two ranks one has done everything that the other has, and any comparison finds it. That one
// gives the values of all followers: those of several ranks would be a state that no rank ever had.
std::size_t ahead_in(std::vector<Steps> const& all, std::span<Rank const> members) {
  auto const place = static_cast<std::size_t>(std::ranges::max_element(all) - all.begin());
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (std::ranges::equal(all[r], all[place], std::less_equal())) continue;
    throw CommError(
        ErrorCode::mismatch,
        text("World::rebuild(): the DistributedDataParallel objects of rank ", members[r], " have done ",
             describe(all[r]), " steps, those of rank ", members[place], " ", describe(all[place]),
             ": expected the same objects on every rank, made before a rank "
             "is lost, and their steps in the same order"));
  }
  return place;
}

// Gives every rank the values of `source`, all of them or, if a rank is lost meanwhile, none: until then this
// rank must have its own, since it may be the next source.
void give(std::span<TensorView const> values, Rank source, Communicator& communicator, Stream& stream) {
  bool const receives = communicator.rank() != source;
  std::vector<Copy> copies;
  std::vector<Tensor> received;
  for (TensorView const& value : values) {
    if (value.count() == 0) continue;
    TensorView const own{value.data, Shape{value.bytes()}, DType::u8, communicator.device()};
    if (receives) {
      received.push_back(Tensor::zeros(own.shape, own.dtype));
      copies.push_back({own, received.back()});
    }
    communicator.broadcast(receives ? received.back().view() : own, source, stream);
  }
  stream.synchronize();
  for (Copy const& copy : copies) copy_elements(copy.to, copy.from, stream);
  stream.synchronize();
}

void abort_all(WorldState& state, std::string_view reason) noexcept {
  state.communicator->abort(reason);
  for (WorldFollower* const follower : state.followers) follower->abort(reason);
}

// Whether one of `members` has died, of which the news may be on its way.
bool loses_one_of(ControlPlane const& control, std::span<Rank const> members) {
  Deadline const deadline = Deadline::after(kUntilALossIsKnown);
  for (;;) {
    for (Failure const& lost : control.lost()) {
      if (std::ranges::find(members, lost.ranks.front()) != members.end()) return true;
    }
    if (deadline.expired()) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

// Once: from the old membership to the next, which is in `members` when it has begun.
void meet_and_go_on(WorldState& state, Replicated const& replicated, std::vector<Rank>& members) {
  auto const began = std::chrono::steady_clock::now();
  Membership next = state.control->rebuild(steps_of(state), Deadline::after(state.options.timeout));
  auto const steps = steps_of(next);
  std::string const name = text("ddp/@", next.number);
  members = next.ranks;
  state.communicator = state.connect(name, members);
  backend_of(*state.communicator).record_as(text("world, membership ", next.number));
  state.name = name;
  state.membership = next.number;
  state.next_object = 0;
  state.take_members(members, state.communicator->rank());

  std::size_t const source = ahead_in(steps, members);
  std::vector<TensorView> values(replicated.tensors().begin(), replicated.tensors().end());
  for (WorldFollower const* const follower : state.followers) {
    auto const more = follower->values();
    values.insert(values.end(), more.begin(), more.end());
  }
  give(values, Rank{static_cast<int>(source)}, *state.communicator, *state.stream);
  for (std::size_t f = 0; f < state.followers.size(); ++f) state.followers[f]->have_done(steps[source][f]);
  for (WorldFollower* const follower : state.followers) follower->follow();
  std::chrono::duration<double, std::milli> const took = std::chrono::steady_clock::now() - began;
  log(LogLevel::info,
      text("rank ", state.info.rank, " is rank ", state.place->rank, " of ", state.place->size,
           " in membership ", next.number, ", with the values of rank ", state.members[source], " after ",
           describe(steps[source]), " steps; ready after ", took.count(), " ms"));
}

}  // namespace

std::string why_not_rebuilt(WorldState const& state) {
  if (state.parent) return "a sub-group cannot be rebuilt; let it go, and rebuild the World it was made of";
  if (state.device.kind != DeviceKind::cpu) return "ranks with a GPU cannot go on yet";
  if (state.subgroups > 0) return "a sub-group of this World cannot follow it; let it go before";
  for (WorldFollower const* const follower : state.followers) {
    if (std::string why = follower->why_not_rebuilt(); !why.empty()) return why;
  }
  return {};
}

void World::rebuild(CommError const& error, Replicated& state) {
  WorldState& own = *state_;
  if (!is_of_a_lost_rank(error)) throw error;
  if (std::string const why = why_not_rebuilt(own); !why.empty()) {
    throw Error(ErrorCode::unsupported, text("World::rebuild(): ", why));
  }
  own.control->report_failure(error);
  std::string reason = error.what();
  for (;;) {
    abort_all(own, reason);
    std::vector<Rank> members;
    try {
      return meet_and_go_on(own, state, members);
    } catch (CommError const& again) {
      if (!is_of_a_lost_rank(again)) throw;
      reason = again.what();
    } catch (Error const& problem) {  // as when a process ends whose memory others are about to open
      if (!loses_one_of(*own.control, members)) throw;
      reason = problem.what();
    }
  }
}

}  // namespace ddp
