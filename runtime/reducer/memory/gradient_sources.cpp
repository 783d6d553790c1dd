#include "reducer/memory/gradient_sources.hpp"

#include <utility>

namespace ddp {

GradientSources::GradientSources(BucketPlan const& plan, std::size_t parameters)
    : plan_(&plan), sources_(parameters) {
  for (Bucket const& bucket : plan.buckets()) copied_.emplace_back(bucket.device);
  copying_.reserve(copied_.size());
}

void GradientSources::set(std::size_t parameter, Tensor source) {
  if (source.view().data != nullptr) is_empty_ = false;
  sources_[parameter] = std::move(source);
}

void GradientSources::copying(std::size_t bucket, Stream& stream) {
  copied_[bucket].record(stream);
  copying_.push_back(bucket);
}

void GradientSources::release_copied() {
  for (; released_ < copying_.size() && copied_[copying_[released_]].reached(); ++released_) {
    std::size_t const bucket = copying_[released_];
    for (BucketSlice const& piece : plan_->buckets()[bucket].slices) {
      bool const last = plan_->buckets_of(piece.parameter).back() == bucket;
      if (last) sources_[piece.parameter] = Tensor();
    }
  }
}

void GradientSources::release() noexcept {
  if (is_empty_) return;
  for (Tensor& source : sources_) source = Tensor();
  copying_.clear();
  released_ = 0;
  is_empty_ = true;
}

}  // namespace ddp
