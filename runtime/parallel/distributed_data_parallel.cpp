#include "ddp/parallel/distributed_data_parallel.hpp"

#include <algorithm>
#include <utility>

#include "ddp/core/text.hpp"
#include "ddp/device/tensor_ops.hpp"
#include "parallel/replica_check.hpp"
#include "reducer/parameter_check.hpp"

namespace ddp {
namespace {

// Initial values travel in messages of this size, packed and unpacked through one buffer.
constexpr std::size_t kBroadcastBytes = std::size_t{1} << 20;

// Everything as one run of bytes, a message at a time: small tensors share messages, large ones take several.
void broadcast_from_rank_0(std::span<TensorView const> tensors, ReducerLane const& lane) {
  Tensor const memory = Tensor::zeros(Shape{kBroadcastBytes}, DType::u8);
  TensorView buffer = memory;
  buffer.device = lane.device;
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

template <class Tensors>
void collect_values(Tensors const& tensors, Device device, std::vector<TensorView>& values) {
  for (auto const& tensor : tensors) {
    if (tensor.value.device == device) values.push_back(tensor.value);
  }
}

// What gradients of one device are reduced with. The world's own device computes on the world's stream.
class Lane {
 public:
  Lane(World const& world, Device device) : comm_stream_(std::make_unique<HostStream>(device.index)) {
    Stream* compute = &world.stream();
    if (device == world.device()) {
      communicator_ = world.communicator().split(all_ranks(world.size()));
    } else {
      communicator_ = make_communicator(world.shared_control(), device,
                                        {world.options().timeout, world.options().init_timeout, ""});
      compute_stream_ = HostStream::inline_stream(device.index);
      compute = compute_stream_.get();
    }
    lane_ = {device, communicator_.get(), compute, comm_stream_.get()};
  }
  [[nodiscard]] ReducerLane const& lane() const noexcept { return lane_; }

 private:
  std::unique_ptr<Communicator> communicator_;
  std::unique_ptr<Stream> compute_stream_;
  std::unique_ptr<Stream> comm_stream_;
  ReducerLane lane_;
};

}  // namespace

// The reducer goes before what it runs on, and that before the world: members are destroyed last to first.
struct DistributedDataParallel::Engine {
  World world;
  std::vector<std::unique_ptr<Lane>> lanes;
  std::unique_ptr<Reducer> reducer;
};

DistributedDataParallel::DistributedDataParallel(World world, std::vector<Parameter> parameters,
                                                 Options options)
    : DistributedDataParallel(std::move(world), std::move(parameters), {}, options) {}

DistributedDataParallel::DistributedDataParallel(World world, std::vector<Parameter> parameters,
                                                 std::vector<Buffer> buffers, Options options)
    : engine_(std::make_unique<Engine>(Engine{std::move(world), {}, nullptr})) {
  World const& here = engine_->world;
  std::string const name = text(here.name(), "/", here.next_object_id());
  std::vector<Rank> const members(here.members().begin(), here.members().end());
  auto const check_here = [&] { check_parameters(parameters, options); };
  std::vector<Device> const devices =
      check_replicas(here.control(), name, members, here.device(), parameters, buffers, check_here,
                     Deadline::after(here.options().timeout));
  require(devices.size() <= 1 || members.size() == static_cast<std::size_t>(here.control().size()),
          "a model on several devices needs the whole world, not a sub-group");
  try {
    build(name, members, devices, std::move(parameters), buffers, options);
  } catch (std::exception const& error) {
    // The others may be waiting for this rank.
    for (auto const& lane : engine_->lanes) lane->lane().communicator->abort(error.what());
    throw;
  }
}

void DistributedDataParallel::build(std::string const& name, std::vector<Rank> const& members,
                                    std::span<Device const> devices, std::vector<Parameter> parameters,
                                    std::span<Buffer const> buffers, Options const& options) {
  World const& here = engine_->world;
  std::vector<ReducerLane> lanes;
  for (Device const device : devices) {
    engine_->lanes.push_back(std::make_unique<Lane>(here, device));
    lanes.push_back(engine_->lanes.back()->lane());
    std::vector<TensorView> values;
    collect_values(parameters, device, values);
    collect_values(buffers, device, values);
    broadcast_from_rank_0(values, lanes.back());
  }
  engine_->reducer = std::make_unique<Reducer>(name, here.shared_control(), members, std::move(lanes),
                                               std::move(parameters), options, here.options().timeout);
  reducer_ = engine_->reducer.get();
}

DistributedDataParallel::~DistributedDataParallel() = default;
DistributedDataParallel::DistributedDataParallel(DistributedDataParallel&& other) noexcept
    : engine_(std::move(other.engine_)), reducer_(std::exchange(other.reducer_, nullptr)) {}

DistributedDataParallel& DistributedDataParallel::operator=(DistributedDataParallel&& other) noexcept {
  reducer_ = std::exchange(other.reducer_, nullptr);
  engine_ = std::move(other.engine_);
  return *this;
}

}  // namespace ddp
