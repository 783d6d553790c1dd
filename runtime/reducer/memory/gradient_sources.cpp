#include "reducer/memory/gradient_sources.hpp"

#include <utility>

namespace ddp {

GradientSources::GradientSources(BucketPlan const& plan, std::size_t parameters)
    : plan_(&plan), sources_(parameters) {
  for (Bucket const& bucket : plan.buckets()) read_.emplace_back(bucket.device);
  reading_.reserve(read_.size());
}

void GradientSources::set(std::size_t parameter, Tensor source) {
  if (source.view().data != nullptr) is_empty_ = false;
  sources_[parameter] = std::move(source);
}

void GradientSources::reading(std::size_t bucket, Stream& stream) {
  read_[bucket].record(stream);
  reading_.push_back(bucket);
}

void GradientSources::release_read() {
  for (; released_ < reading_.size() && read_[reading_[released_]].reached(); ++released_) {
    std::size_t const bucket = reading_[released_];
    for (BucketSlice const& piece : plan_->buckets()[bucket].slices) {
      bool const last = plan_->buckets_of(piece.parameter).back() == bucket;
      if (last) sources_[piece.parameter] = Tensor();
    }
  }
}

void GradientSources::release() noexcept {
  if (is_empty_) return;
  for (Tensor& source : sources_) source = Tensor();
  reading_.clear();
  released_ = 0;
  is_empty_ = true;
}

}  // namespace ddp
