#include "ddp/parallel/distributed_data_parallel.hpp"

#include <algorithm>

#include "ddp/core/text.hpp"
#include "ddp/device/tensor_ops.hpp"
#include "parallel/replica_check.hpp"

namespace ddp {
namespace {

// Initial values travel in messages of this size, packed and unpacked through one buffer.
constexpr std::size_t kBroadcastBytes = std::size_t{1} << 20;

std::vector<Rank> all_ranks(int size) {
  std::vector<Rank> ranks;
  for (int r = 0; r < size; ++r) ranks.emplace_back(r);
  return ranks;
}

// Everything as one run of bytes, a message at a time: small tensors share messages, large ones take several.
void broadcast_from_rank_0(std::span<TensorView const> tensors, ReducerLane const& lane) {
  Tensor const buffer = Tensor::zeros(Shape{kBroadcastBytes}, DType::u8);
  bool const sends = lane.communicator->rank() == 0;
  struct Piece {
    TensorView tensor;
    std::size_t at;
  };
  std::vector<Piece> pieces;
  std::size_t filled = 0;
  auto const flush = [&] {
    if (filled == 0) return;
    lane.communicator->broadcast(slice(buffer, 0, filled), Rank{0}, *lane.comm_stream);
    for (Piece const& piece : pieces) {
      if (!sends)
        copy_elements(piece.tensor, slice(buffer, piece.at, piece.tensor.count()), *lane.comm_stream);
    }
    lane.comm_stream->synchronize();
    pieces.clear();
    filled = 0;
  };
  for (TensorView const& tensor : tensors) {
    TensorView const bytes{tensor.data, Shape{tensor.bytes()}, DType::u8, tensor.device};
    for (std::size_t done = 0; done < bytes.count();) {
      std::size_t const length = std::min(bytes.count() - done, kBroadcastBytes - filled);
      TensorView const piece = slice(bytes, done, length);
      if (sends) copy_elements(slice(buffer, filled, length), piece, *lane.comm_stream);
      pieces.push_back({piece, filled});
      filled += length;
      done += length;
      if (filled == kBroadcastBytes) flush();
    }
  }
  flush();
}

}  // namespace

// The order of members is the order of construction, and the other way round of destruction: the reducer goes
// before what it runs on.
struct DistributedDataParallel::Engine {
  World world;
  std::unique_ptr<Communicator> communicator;
  std::unique_ptr<Stream> comm_stream;
  std::unique_ptr<Reducer> reducer;
};

DistributedDataParallel::DistributedDataParallel(World world, std::vector<Parameter> parameters,
                                                 Options options)
    : DistributedDataParallel(std::move(world), std::move(parameters), {}, options) {}

DistributedDataParallel::DistributedDataParallel(World world, std::vector<Parameter> parameters,
                                                 std::vector<Buffer> buffers, Options options)
    : engine_(std::make_unique<Engine>(Engine{std::move(world), nullptr, nullptr, nullptr})) {
  World const& here = engine_->world;
  std::string const name = text(here.name(), "/", here.next_object_id());
  check_replicas(here.control(), name, here.members(), parameters, buffers,
                 Deadline::after(here.options().timeout));
  engine_->communicator = here.communicator().split(all_ranks(here.size()));
  engine_->comm_stream = std::make_unique<HostStream>();
  ReducerLane const lane{here.device(), engine_->communicator.get(), &here.stream(),
                         engine_->comm_stream.get()};

  std::vector<TensorView> values;
  for (Parameter const& parameter : parameters) values.push_back(parameter.value);
  for (Buffer const& buffer : buffers) values.push_back(buffer.value);
  broadcast_from_rank_0(values, lane);
  engine_->reducer = std::make_unique<Reducer>(
      name, here.shared_control(), std::vector<Rank>(here.members().begin(), here.members().end()),
      std::vector<ReducerLane>{lane}, std::move(parameters), options, here.options().timeout);
  reducer_ = engine_->reducer.get();
}

DistributedDataParallel::~DistributedDataParallel() = default;
DistributedDataParallel::DistributedDataParallel(DistributedDataParallel&&) noexcept = default;
DistributedDataParallel& DistributedDataParallel::operator=(DistributedDataParallel&&) noexcept = default;

}  // namespace ddp
