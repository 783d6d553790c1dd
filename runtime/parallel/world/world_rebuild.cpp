#include "parallel/world/world_rebuild.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
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

std::uint64_t steps_of(WorldState const& state) {
  return state.followers.empty() ? 0 : state.followers.front()->steps();
}

// The members' steps, by place.
std::vector<std::uint64_t> steps_of(Membership const& next) {
  std::vector<std::uint64_t> steps;
  for (std::string const& said : next.values) {
    static_cast<void>(RecordReader(said) >> steps.emplace_back(0));
  }
  return steps;
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
  Membership next = state.control->rebuild(record(steps_of(state)), Deadline::after(state.options.timeout));
  auto const steps = steps_of(next);
  auto const ahead = std::ranges::max_element(steps);
  Rank const source{static_cast<int>(ahead - steps.begin())};
  std::string const name = text("ddp/@", next.number);
  members = next.ranks;
  state.communicator = state.connect(name, members);
  backend_of(*state.communicator).record_as(text("world, membership ", next.number));
  state.name = name;
  state.membership = next.number;
  state.next_object = 0;
  state.take_members(members, state.communicator->rank());

  std::vector<TensorView> values;
  for (WorldFollower* const follower : state.followers) values = follower->values();
  values.insert(values.end(), replicated.tensors().begin(), replicated.tensors().end());
  give(values, source, *state.communicator, *state.stream);
  for (WorldFollower* const follower : state.followers) {
    follower->have_done(*ahead);
    follower->follow();
  }
  std::chrono::duration<double, std::milli> const took = std::chrono::steady_clock::now() - began;
  log(LogLevel::info,
      text("rank ", state.info.rank, " is rank ", state.place->rank, " of ", state.place->size,
           " in membership ", next.number, ", with the values of rank ", state.members[source.index()],
           " after ", *ahead, " steps; ready after ", took.count(), " ms"));
}

}  // namespace

std::string why_not_rebuilt(WorldState const& state) {
  if (state.parent) return "a sub-group cannot be rebuilt; let it go, and rebuild the World it was made of";
  if (state.device.kind != DeviceKind::cpu) return "ranks with a GPU cannot go on yet";
  if (state.subgroups > 0) return "a sub-group of this World cannot follow it; let it go before";
  if (state.followers.size() > 1) return "only one DistributedDataParallel can follow its World";
  return state.followers.empty() ? std::string() : state.followers.front()->why_not_rebuilt();
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
