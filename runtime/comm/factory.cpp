#include "ddp/comm/factory.hpp"

#include <sstream>

#include "comm/shm_communicator.hpp"
#include "comm/solo_communicator.hpp"
#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"

namespace ddp {
namespace {

void check_backend(CommunicatorOptions const& options, Device device, int size) {
  require(options.timeout.count() > 0 && options.init_timeout.count() > 0,
          "a communicator's timeouts must be positive");
  std::string_view const fits = size == 1 ? "solo" : "shm";
  bool const known =
      options.backend.empty() || options.backend == fits || (options.backend == "shm" && size == 1);
  if (!known || (device.kind != DeviceKind::cpu && size > 1)) {
    throw Error(ErrorCode::unsupported,
                text("no backend \"", options.backend, "\" for ", size, " ranks with memory of ", device,
                     "; this build has: solo (1 rank) and shm (ranks of one host), for memory of the CPU"));
  }
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

}  // namespace

std::unique_ptr<Communicator> make_communicator(std::shared_ptr<ControlPlane> control, Device device,
                                                CommunicatorOptions const& options) {
  check_backend(options, device, control->size());
  std::unique_ptr<Communicator> made;
  if (control->size() == 1) {
    made = std::make_unique<SoloCommunicator>(device);
  } else {
    made = make_shm(std::move(control), device, options);
  }
  if (made->rank() == 0) {
    log(LogLevel::info, text("communicator: ", made->backend(), ", ", made->size(), " ranks, ", device,
                             options.backend.empty() ? " (chosen: ranks of one host)" : " (asked for)"));
  }
  return made;
}

std::vector<std::unique_ptr<Communicator>> make_in_process_communicators(
    int size, CommunicatorOptions const& options, std::vector<std::shared_ptr<ControlPlane>> const& control) {
  require(size >= 1, text("a group has at least one rank, ", size, " asked for"));
  require(control.empty() || control.size() == static_cast<std::size_t>(size),
          text(control.size(), " control planes for ", size, " ranks"));
  check_backend(options, Device{}, size);
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
