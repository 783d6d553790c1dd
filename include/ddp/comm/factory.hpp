// Which communicator fits these ranks.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ddp/bootstrap/control_plane.hpp"
#include "ddp/comm/communicator.hpp"
#include "ddp/comm/options.hpp"
#include "ddp/core/export.hpp"

namespace DDP_EXPORT ddp {

/// The communicator of all ranks of `control`, which may be the program's own, for memory of `device`.
/// Collective. Throws CommError(timeout) naming the ranks that never came; CommError(mismatch) on every rank,
/// listing what each has, if only some have GPUs, or if ranks ask for different backends; Error(unsupported)
/// for ranks that are threads of one process and share a GPU.
[[nodiscard]] std::unique_ptr<Communicator> make_communicator(std::shared_ptr<ControlPlane> control,
                                                              Device device,
                                                              CommunicatorOptions const& options = {});
/// The same for some ranks of `control`: `members`, whose positions are their ranks in the communicator.
/// Collective over these. `name`: a prefix for the keys that they use, equal on all of them and used by no
/// other group at the time. Errors number ranks as `control` does.
[[nodiscard]] std::unique_ptr<Communicator> make_communicator(std::shared_ptr<ControlPlane> control,
                                                              std::string const& name,
                                                              std::span<Rank const> members, Device device,
                                                              CommunicatorOptions const& options = {});

/// Communicators of `size` ranks that are threads of this process. `control`: the control planes of the same
/// ranks, which tell of lost ones; may be empty.
[[nodiscard]] std::vector<std::unique_ptr<Communicator>> make_in_process_communicators(
    int size, CommunicatorOptions const& options = {},
    std::vector<std::shared_ptr<ControlPlane>> const& control = {});

}  // namespace ddp
