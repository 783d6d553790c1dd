#include "reducer/checks/weight_check.hpp"

#include <algorithm>
#include <map>

#include "ddp/device/device_guard.hpp"
#include "ddp/device/tensor_ops.hpp"
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

WeightCheck::WeightCheck(ReducerLane const& lane, std::span<Parameter const> parameters) : lane_(lane) {
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

void WeightCheck::exchange(std::span<Parameter const> parameters, Stream& compute_stream) {
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

std::vector<WeightCheck::Difference> WeightCheck::differences() const {
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

}  // namespace ddp
