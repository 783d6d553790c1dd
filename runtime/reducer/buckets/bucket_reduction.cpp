#include "reducer/buckets/bucket_reduction.hpp"

#include "ddp/core/text.hpp"
#include "reducer/call_program.hpp"

namespace ddp {

// Buckets that hold nothing but the rest of the last parameter of `first` become complete together with it,
// on every rank. One launch of NCCL for all is faster than several.
std::size_t AllReduce::end_of_run(std::size_t first) const {
  std::size_t end = first + 1;
  for (; end < of_.buckets.count() && !of_.memory.converts(end); ++end) {
    BucketSlice const& piece = of_.buckets[end].slices.front();
    bool const goes_on = of_.buckets[end].slices.size() == 1 && piece.parameter_offset > 0 &&
                         piece.parameter == of_.buckets[first].slices.back().parameter;
    // The last bucket waits for parameters without elements too.
    if (!goes_on || (end + 1 == of_.buckets.count() && of_.buckets.has_empty_parameters())) break;
  }
  return end;
}

void AllReduce::reduce(std::size_t first, std::size_t end, ReduceOp op, std::function<void()> const& tail) {
  ReducerLane const& lane = of_.lanes[of_.buckets.lane(first)];
  auto const send = [&](std::size_t bucket) {
    for (TensorView const& message : of_.memory.messages(bucket)) {
      if (auto const direct = of_.memory.sent_from_source(bucket)) {
        lane.communicator->all_reduce(direct->from, direct->to, op, *lane.comm_stream);
      } else {
        lane.communicator->all_reduce(message, op, *lane.comm_stream);
      }
    }
  };
  if (end == first + 1 && of_.memory.messages(first).size() == 1 && !tail) return send(first);
  lane.communicator->group([&] {
    for (std::size_t b = first; b < end; ++b) send(b);
    if (tail) tail();
  });
}

void HookReduction::reduce(std::size_t first, std::size_t /*end*/, ReduceOp op,
                           std::function<void()> const& tail) {
  ReducerLane const& lane = of_.lanes[of_.buckets.lane(first)];
  call_program(text("the comm hook \"", hook_.name, '"'), first, of_.step, [&] {
    hook_.reduce({first, of_.buckets.count(), of_.memory.messages(first), of_.buckets[first].slices,
                  of_.parameters, op, *lane.communicator, *lane.comm_stream});
  });
  if (tail) tail();
}

}  // namespace ddp
