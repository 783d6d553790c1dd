#include "reducer/sharding/sharded_reduction.hpp"

namespace ddp {

void ShardedReduction::reduce(std::size_t first, std::size_t end, ReduceOp op,
                              std::function<void()> const& tail) {
  std::size_t const index = of_.buckets.lane(first);
  ReducerLane const& lane = of_.lanes[index];
  if (values_.has_updated(index)) lane.comm_stream->wait(*updates_.streams()[index]);
  lane.communicator->group([&] {
    for (std::size_t b = first; b < end; ++b) {
      TensorView const& message = of_.memory.messages(b)[0];
      auto const [begin, count] = of_.buckets.own_part(b);
      lane.communicator->reduce_scatter(message, slice(message, begin, count), op, *lane.comm_stream);
    }
    values_.gather(index);
    if (tail) tail();
  });
}

}  // namespace ddp
