#include "parallel/ddp/device_lane.hpp"

#include <algorithm>
#include <exception>
#include <optional>
#include <utility>
#include <vector>

#include "comm/tracing_communicator.hpp"
#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"
#include "device/cuda/backend.hpp"

namespace ddp {
namespace {

// What its stream remembers of other communicators that have failed is forgotten: a rank that let this one go
// for that would wait, when it closes it, for the others, which keep it.
bool is_healthy(SpareLane const& spare) noexcept {
  try {
    if (spare.comm_stream->device().kind != DeviceKind::cuda) {
      spare.comm_stream->synchronize();  // which nothing runs on: throws what it remembers
    } else if (!cuda::forget_failures(*spare.comm_stream)) {
      return false;
    }
    spare.communicator->check_health();  // last, since its own failure is forgotten too
    return true;
  } catch (std::exception const&) {
    return false;
  }
}

// Which it is, and that the same operations have run on it.
std::string name_of(SpareLane const& spare) {
  return text(spare.maker, ' ', backend_of(*spare.communicator).called());
}

// The first that all ranks have kept. Collective.
std::optional<SpareLane> take_spare(World const& world, std::string const& name, Device device,
                                    bool in_rank_order) {
  WorldState& state = WorldAccess::state(world);
  if (!std::exchange(state.had_lanes, true)) return std::nullopt;  // no rank has one
  std::erase_if(state.spares, [](SpareLane const& each) { return !is_healthy(each); });
  auto const fits = [&](SpareLane const& each) {
    return each.communicator->device() == device && each.in_rank_order == in_rank_order;
  };
  std::vector<std::string> names;
  for (SpareLane const& each : state.spares) {
    if (fits(each)) names.push_back(name_of(each));
  }
  std::ranges::sort(names);
  auto const offers = world.control().all_gather(text(name, "/spare ", to_string(device.kind)),
                                                 text('\n', join(names, "\n"), '\n'), world.members(),
                                                 Deadline::after(world.options().timeout));
  for (std::string const& each : names) {
    std::string const line = text('\n', each, '\n');
    auto const has_it = [&](std::string const& offer) { return offer.find(line) != std::string::npos; };
    if (!std::ranges::all_of(offers, has_it)) continue;
    auto const mine = std::ranges::find_if(
        state.spares, [&](SpareLane const& spare) { return fits(spare) && name_of(spare) == each; });
    SpareLane taken = std::move(*mine);
    state.spares.erase(mine);
    return taken;
  }
  return std::nullopt;
}

std::unique_ptr<Communicator> connect(World const& world, std::string const& name, Device device,
                                      std::string const& recorded) {
  if (device == world.device()) return world.communicator().split(all_ranks(world.size()), recorded);
  auto made = TracingCommunicator::wrap(
      make_communicator(world.shared_control(), name, world.members(), device, world.communicator_options()),
      world.trace());
  backend_of(*made).record_as(recorded);
  return made;
}

}  // namespace

DeviceLane::DeviceLane(World const& world, std::string const& name, Device device, Stream* compute,
                       bool in_rank_order, Spares spares)
    : world_(world), spares_(spares) {
  std::string const recorded = text(name, " on ", to_string(device.kind));
  auto spare = spares == Spares::none ? std::nullopt : take_spare(world, name, device, in_rank_order);
  if (spare) {
    kept_ = *std::move(spare);
    backend_of(*kept_.communicator).record_as(recorded);
  } else {
    kept_ = {name, in_rank_order, connect(world, name, device, recorded), world.make_comm_stream(device)};
    if (in_rank_order) backend_of(*kept_.communicator).combine_in_rank_order();
  }
  if (compute == nullptr) {
    compute_stream_ = make_compute_stream(device);
    compute = compute_stream_.get();
  }
  lane_ = {device, &backend_of(*kept_.communicator), compute, kept_.comm_stream.get()};
  if (device.kind == DeviceKind::cuda) lane_.commits = world.communicator_options().commits;
}

DeviceLane::~DeviceLane() {
  if (spares_ == Spares::none || !kept_.communicator || !is_healthy(kept_)) return;
  try {
    WorldAccess::state(world_).spares.push_back(std::move(kept_));
  } catch (std::exception const& error) {  // no memory: it is not kept
    log(LogLevel::error, error.what());
  }
}

}  // namespace ddp
