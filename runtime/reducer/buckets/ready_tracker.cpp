#include "reducer/buckets/ready_tracker.hpp"

#include <algorithm>

namespace ddp {

ReadyTracker::ReadyTracker(BucketPlan const& plan, std::span<std::uint32_t const> expected)
    : expected_(expected.begin(), expected.end()),
      marks_(expected.size()),
      used_(expected.size()),
      skipped_(expected.size()),
      pending_at_start_(plan.buckets().size()) {
  arrival_.reserve(expected.size());
  for (std::size_t p = 0; p < expected.size(); ++p) {
    first_bucket_.push_back(bucket_indices_.size());
    auto const holders = plan.buckets_of(p);
    bucket_indices_.insert(bucket_indices_.end(), holders.begin(), holders.end());
    if (holders.empty() && !pending_at_start_.empty())
      bucket_indices_.push_back(pending_at_start_.size() - 1);
    for (std::size_t i = first_bucket_[p]; i < bucket_indices_.size(); ++i) {
      ++pending_at_start_[bucket_indices_[i]];
    }
  }
  first_bucket_.push_back(bucket_indices_.size());
  pending_ = pending_at_start_;
}

ReadyTracker::Mark ReadyTracker::mark(std::size_t parameter) {
  std::uint32_t const expected = expected_[parameter];
  if (skipped(parameter) || (expected != 0 && marks_[parameter] == expected)) return Mark::duplicate;
  used_[parameter] = 1;
  ++marks_[parameter];
  if (expected == 0) {
    if (marks_[parameter] == 1) arrival_.push_back(parameter);
  } else if (marks_[parameter] == expected) {
    complete(parameter);
  }
  return Mark::accepted;
}

ReadyTracker::Mark ReadyTracker::skip(std::size_t parameter) {
  if (skipped(parameter) || marks_[parameter] != 0) return Mark::duplicate;
  skipped_[parameter] = 1;
  complete(parameter);
  return Mark::accepted;
}

void ReadyTracker::complete(std::size_t parameter) {
  arrival_.push_back(parameter);
  for (std::size_t i = first_bucket_[parameter]; i < first_bucket_[parameter + 1]; ++i) {
    --pending_[bucket_indices_[i]];
  }
  while (launchable_ < pending_.size() && pending_[launchable_] == 0) ++launchable_;
}

void ReadyTracker::reset() {
  std::fill(marks_.begin(), marks_.end(), 0U);
  std::fill(used_.begin(), used_.end(), std::uint8_t{0});
  std::fill(skipped_.begin(), skipped_.end(), std::uint8_t{0});
  std::copy(pending_at_start_.begin(), pending_at_start_.end(), pending_.begin());
  arrival_.clear();
  launchable_ = 0;
}

}  // namespace ddp
