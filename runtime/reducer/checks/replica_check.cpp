#include "reducer/checks/replica_check.hpp"

#include <algorithm>
#include <map>

#include "ddp/core/text.hpp"
#include "ddp/device/device_guard.hpp"
#include "ddp/device/tensor_ops.hpp"
#include "reducer/checks/parameter_check.hpp"
#include "reducer/memory/step_words.hpp"

namespace ddp {
namespace {

template <class Word>
std::uint64_t hash_words(void const* data, std::size_t count) {
  auto const* const words = static_cast<Word const*>(data);
  std::uint64_t hash = 0;
  for (std::size_t i = 0; i < count; ++i) hash += hash_of(words[i], i);
  return hash;
}

std::uint64_t hash_on_host(TensorView const& view) {
  switch (size_of(view.dtype)) {
    case 8:
      return hash_words<std::uint64_t>(view.data, view.count());
    case 4:
      return hash_words<std::uint32_t>(view.data, view.count());
    default:
      return hash_words<std::uint16_t>(view.data, view.count());
  }
}

}  // namespace

ValueHashes::ValueHashes(ReducerLane const& lane, std::span<Parameter const> parameters) : lane_(lane) {
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    if (parameters[p].value.device == lane.device) indices_.push_back(p);
  }
  std::size_t const all = indices_.size() * static_cast<std::size_t>(lane.communicator->size());
  mine_ = step_words(Shape{indices_.size()}, DType::i64, lane.device);
  all_ = step_words(Shape{all}, DType::i64, lane.device);
  fetched_.resize(all);
  if (lane.device.kind != DeviceKind::cuda) return;
  DeviceGuard const guard(lane.device);
  cuda::load_hash_kernels();
}

void ValueHashes::exchange(std::span<Parameter const> parameters, Stream& compute_stream) {
  Stream& comm = *lane_.comm_stream;
  auto* const hashes = static_cast<std::uint64_t*>(mine_.view().data);
  if (lane_.device.kind == DeviceKind::cuda) {
    runs_.clear();
    for (std::size_t i = 0; i < indices_.size(); ++i) runs_.push_back({parameters[indices_[i]].value, i});
    comm.wait(compute_stream);
    zero_fill(mine_, comm);
    cuda::hash_elements(runs_, hashes, comm);
  } else {
    for (std::size_t i = 0; i < indices_.size(); ++i) hashes[i] = hash_on_host(parameters[indices_[i]].value);
  }
  lane_.communicator->all_gather(mine_, all_, comm);
  copy_elements(view_of(std::span(fetched_)), all_, comm);
  comm.expect_wait();
  comm.synchronize();
}

std::vector<ValueHashes::Difference> ValueHashes::differences() const {
  std::vector<Difference> found;
  auto const ranks = static_cast<std::size_t>(lane_.communicator->size());
  for (std::size_t i = 0; i < indices_.size(); ++i) {
    auto const hash = [&](std::size_t rank) { return fetched_[rank * indices_.size() + i]; };
    std::map<std::int64_t, std::size_t> votes;
    for (std::size_t r = 0; r < ranks; ++r) ++votes[hash(r)];
    if (votes.size() < 2) continue;
    auto const most = std::ranges::max_element(votes, {}, [](auto const& vote) { return vote.second; });
    Difference difference{indices_[i], {}, 2 * most->second > ranks};
    std::int64_t const right = difference.is_minority ? most->first : hash(0);
    for (std::size_t r = 0; r < ranks; ++r) {
      if (hash(r) != right) difference.ranks.push_back(r);
    }
    found.push_back(std::move(difference));
  }
  return found;
}

ReplicaCheck::ReplicaCheck(ReducerState const& of, std::uint64_t every) : StepPart(of), every_(every) {
  for (ReducerLane const& lane : of.lanes) hashes_.emplace_back(lane, of.parameters);
}

std::string ReplicaCheck::describe() const { return text("verify_every ", every_); }

// Every rank has the same hashes, so every rank throws the same error.
void ReplicaCheck::verdict() {
  constexpr std::size_t kMostNamed = 5;
  if ((of_.step.number + 1) % every_ != 0) return;
  std::string complaints;
  std::size_t count = 0;
  for (std::size_t l = 0; l < of_.lanes.size(); ++l) {
    hashes_[l].exchange(of_.parameters, *of_.lanes[l].compute_stream);
    for (auto const& difference : hashes_[l].differences()) {
      if (++count > kMostNamed) continue;
      std::vector<Rank> ranks;
      for (std::size_t const r : difference.ranks) ranks.push_back(of_.ranks[r]);
      complaints +=
          text(complaints.empty() ? "" : "; ", parameter_name(of_.parameters, difference.parameter), " on ",
               name_ranks(ranks), difference.is_minority ? "" : text(" is not that of rank ", of_.ranks[0]));
    }
  }
  if (count == 0) return;
  of_.ranks.let_others_read();
  throw Error(
      ErrorCode::invalid_state,
      text("after synchronised step ", of_.step.number, " ranks do not have the same weights: ", complaints,
           count > kMostNamed ? text("; and ", count - kMostNamed, " more") : "",
           ". Something other than averaged gradients changed them, or memory is broken: go back to a "
           "checkpoint, and look at those ranks' hosts if it happens again"));
}

}  // namespace ddp
