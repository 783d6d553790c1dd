#include "data_parallel/replicas/backward_progress.hpp"

#include <algorithm>
#include <utility>

#include "ddp/reducer/options.hpp"

namespace ddp {

Bytes bucket_bytes(FlatLayout const& layout) {
  constexpr std::size_t kMostBuckets = 128;
  Bytes all{};
  for (FlatLayout::Message const& message : layout.messages) all += Bytes{message.bytes()};
  return std::max(DistributedDataParallelOptions{}.bucket_bytes, all / kMostBuckets);
}

BackwardPlan::BackwardPlan(FlatLayout const& layout, Bytes bytes) {
  MessageBucket shared{{}, true};
  std::vector<std::optional<std::size_t>> of_message(layout.messages.size());
  Bytes open{bytes};  // in the last bucket
  for (std::size_t m = layout.messages.size(); m-- > 0;) {
    FlatLayout::Message const& message = layout.messages[m];
    if (message.count == 0) continue;
    if (message.packed) {
      shared.messages.push_back(m);
      continue;
    }
    if (open >= bytes) {
      buckets.emplace_back();
      open = Bytes{};
    }
    buckets.back().messages.push_back(m);
    of_message[m] = buckets.size() - 1;
    open += Bytes{message.bytes()};
  }
  if (!shared.messages.empty()) buckets.push_back(std::move(shared));

  parameters_in.assign(buckets.size(), 0);
  for (FlatLayout::Place const& place : layout.places) {
    bucket_of.push_back(of_message[place.message]);
    if (bucket_of.back()) ++parameters_in[*bucket_of.back()];
  }
}

BackwardProgress::BackwardProgress(std::shared_ptr<BackwardPlan const> plan, Device device)
    : plan_(std::move(plan)), missing_(plan_->parameters_in), ready_(plan_->bucket_of.size()) {
  for (std::size_t b = 0; b < plan_->buckets.size(); ++b) complete_.emplace_back(device);
}

void BackwardProgress::begin() {
  missing_ = plan_->parameters_in;
  ready_.assign(ready_.size(), false);
}

void BackwardProgress::ready(std::size_t parameter, Stream& stream) {
  if (!plan_->bucket_of[parameter]) return;
  std::size_t const bucket = *plan_->bucket_of[parameter];
  if (!ready_[parameter]) {
    ready_[parameter] = true;
    --missing_[bucket];
  }
  if (missing_[bucket] == 0) complete_[bucket].record(stream);
}

void BackwardProgress::end(Stream& stream) {
  for (std::size_t b = 0; b < missing_.size(); ++b) {
    if (missing_[b] != 0 || plan_->buckets[b].packed) complete_[b].record(stream);
  }
}

}  // namespace ddp
