#include "reducer/buckets/bucket_updates.hpp"

#include <utility>

#include "reducer/call_program.hpp"

namespace ddp {

void BucketUpdates::use(std::string_view from, BucketReady update) {
  if (update && streams_.empty()) {
    for (ReducerLane const& lane : of_.lanes) streams_.push_back(make_comm_stream(lane.device));
  }
  if (!update) streams_.clear();
  from_ = from;
  update_ = std::move(update);
}

void BucketUpdates::run(std::size_t bucket) {
  if (!update_) return;
  std::size_t const lane = of_.buckets.lane(bucket);
  streams_[lane]->wait(*of_.lanes[lane].comm_stream);
  call(bucket);
}

void BucketUpdates::call(std::size_t bucket) {
  std::size_t const lane = of_.buckets.lane(bucket);
  if (of_.lanes[lane].device.kind == DeviceKind::cpu) {
    host_stream(*streams_[lane]).enqueue([begun = &begun_, steps = of_.step.number + 1] { *begun = steps; });
  } else if (!of_.step.is_recorded()) {
    mark_begun();
  }
  call_program(text("what ", from_, " was given"), bucket, of_.step, [&] {
    update_({bucket, of_.buckets.count(), of_.buckets[bucket].slices, of_.marks.used(), *streams_[lane]});
  });
}

void BucketUpdates::run_all() {
  if (!update_) return;
  for (std::size_t l = 0; l < streams_.size(); ++l) streams_[l]->wait(*of_.lanes[l].comm_stream);
  for (std::size_t b = 0; b < of_.buckets.count(); ++b) call(b);
}

void BucketUpdates::wait() {
  for (std::size_t l = 0; l < streams_.size(); ++l) of_.lanes[l].compute_stream->wait(*streams_[l]);
}

}  // namespace ddp
