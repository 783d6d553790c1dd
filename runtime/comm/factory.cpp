#include "ddp/comm/factory.hpp"

#include <algorithm>
#include <sstream>

#include "comm/nccl_communicator.hpp"
#include "comm/placement.hpp"
#include "comm/shm_communicator.hpp"
#include "comm/solo_communicator.hpp"
#include "comm/staged_communicator.hpp"
#include "core/host_identity.hpp"
#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"

namespace ddp {
namespace {

struct Choice {
  std::string_view backend;
  std::string reason;
};

// What fits these ranks, by what they all know of each other.
Choice choose(std::span<Placement const> ranks) {
  if (ranks.size() == 1) return {"solo", "one rank"};
  if (ranks[0].device.kind == DeviceKind::cpu) return {"shm", "CPU ranks of one host"};
  if (std::string shared = shared_cards(ranks); !shared.empty()) return {"staged", std::move(shared)};
  return {"nccl", "each rank has a GPU"};
}

// The backends that these ranks can have. One rank needs none, whatever it is asked for.
std::vector<std::string_view> available(Device device, std::size_t ranks) {
  std::vector<std::string_view> names{"shm"};
  if (device.kind == DeviceKind::cuda) names = {"nccl", "staged"};
  if (ranks == 1) names.insert(names.begin(), "solo");
  return names;
}

// What a rank insists on. `shared`: who shares a GPU, if any do.
Choice insist(std::string const& asked, Device device, std::size_t ranks, std::string const& shared) {
  auto const names = available(device, ranks);
  auto const found = std::find(names.begin(), names.end(), asked);
  if (found == names.end()) {
    throw Error(ErrorCode::unsupported,
                text("no backend \"", asked, "\" for ", ranks, ranks == 1 ? " rank" : " ranks",
                     " with memory of ", device, "; this build has: ", join(names, ", ")));
  }
  if (asked == "nccl" && !shared.empty()) {
    throw Error(ErrorCode::unsupported, text("NCCL takes one rank a GPU, and ", shared,
                                             "; give each rank a GPU of its own, or ask for staged"));
  }
  return {ranks == 1 ? "solo" : *found, "asked for"};
}

void check_timeouts(CommunicatorOptions const& options) {
  require(options.timeout.count() > 0 && options.init_timeout.count() > 0,
          "a communicator's timeouts must be positive");
}

// What rank 0 tells the others of its region, and all tell of their host.
std::string encode(SharedMemory::Handle const& handle) {
  return text(host_identity(), ' ', handle.pid, ' ', handle.fd, ' ', handle.bytes);
}

SharedMemory::Handle decode(std::string const& offer, std::string& host) {
  SharedMemory::Handle handle;
  std::istringstream in(offer);
  if (!(in >> host >> handle.pid >> handle.fd >> handle.bytes)) {
    throw CommError(ErrorCode::protocol, text("rank 0 offers shared memory as \"", offer,
                                              "\"; do all ranks run the same version of this library?"));
  }
  return handle;
}

std::unique_ptr<Communicator> make_shm(std::shared_ptr<ControlPlane> control, Device device,
                                       CommunicatorOptions const& options) {
  Deadline const deadline = Deadline::after(options.init_timeout);
  Rank const rank = control->rank();
  auto region = rank == 0 ? ShmCommunicator::make_region(control->size()) : nullptr;
  auto const ranks = control->everyone();
  auto const offers = control->all_gather(
      "ddp/communicator/offer", encode(region ? region->handle() : SharedMemory::Handle{}), ranks, deadline);
  std::string host;
  SharedMemory::Handle const handle = decode(offers[0], host);
  for (Rank const other : ranks) {
    std::string theirs;
    static_cast<void>(decode(offers[other.index()], theirs));
    if (theirs != host) {
      throw Error(ErrorCode::unsupported,
                  text("ranks 0 and ", other,
                       " cannot share memory: they are on different hosts or in different "
                       "PID namespaces (",
                       host, " and ", theirs, "); several hosts need the MPI backend"));
    }
  }
  if (!region) region = std::make_shared<SharedMemory>(SharedMemory::open(handle));
  control->barrier("ddp/communicator/open", deadline);
  region->close_handle();
  return std::make_unique<ShmCommunicator>(std::move(region), false, rank, ranks, device, std::move(control),
                                           options.timeout);
}

std::unique_ptr<Communicator> make(std::string_view backend, std::shared_ptr<ControlPlane> control,
                                   Device device, CommunicatorOptions const& options) {
  if (backend == "solo") return std::make_unique<SoloCommunicator>(device);
  if (backend == "shm") return make_shm(std::move(control), device, options);
  if (backend == "nccl") return make_nccl_communicator(control, device, options);
  return std::make_unique<StagedCommunicator>(make_shm(std::move(control), Device{}, options), device);
}

}  // namespace

std::unique_ptr<Communicator> make_communicator(std::shared_ptr<ControlPlane> control, Device device,
                                                CommunicatorOptions const& options) {
  check_timeouts(options);
  auto const ranks = gather_placements(*control, placement_of(device, options.backend),
                                       Deadline::after(options.init_timeout));
  check_placements(ranks);
  Choice const choice = options.backend.empty()
                            ? choose(ranks)
                            : insist(options.backend, device, ranks.size(), shared_cards(ranks));
  auto made = make(choice.backend, std::move(control), device, options);
  if (made->rank() == 0) {
    log(LogLevel::info, text("communicator: ", made->backend(), ", ", made->size(), " ranks, ", device, " (",
                             choice.reason, ")"));
    if (share_unasked(ranks)) {
      log(LogLevel::warning,
          text(shared_cards(ranks),
               ": what they exchange goes through host memory, which is slow; start one rank "
               "a GPU, or with ddp-launch --virtual if sharing is meant"));
    }
  }
  return made;
}

std::vector<std::unique_ptr<Communicator>> make_in_process_communicators(
    int size, CommunicatorOptions const& options, std::vector<std::shared_ptr<ControlPlane>> const& control) {
  require(size >= 1, text("a group has at least one rank, ", size, " asked for"));
  require(control.empty() || control.size() == static_cast<std::size_t>(size),
          text(control.size(), " control planes for ", size, " ranks"));
  check_timeouts(options);
  if (!options.backend.empty())
    static_cast<void>(insist(options.backend, Device{}, static_cast<std::size_t>(size), ""));
  std::vector<std::unique_ptr<Communicator>> made;
  if (size == 1) {
    made.push_back(std::make_unique<SoloCommunicator>(Device{}));
    return made;
  }
  auto const region = ShmCommunicator::make_region(size);
  auto const ranks = all_ranks(size);
  for (Rank const rank : ranks) {
    made.push_back(std::make_unique<ShmCommunicator>(region, true, rank, ranks, Device{},
                                                     control.empty() ? nullptr : control[rank.index()],
                                                     options.timeout));
  }
  return made;
}

}  // namespace ddp
