// Which ranks share a GPU.
#pragma once

#include <span>
#include <string>

#include "comm/group/rank_location.hpp"

namespace ddp {

/// "ranks 0, 1 share GPU 0000:06:00.0"; empty if none do. Slices of one card (MIG) count as that card.
[[nodiscard]] std::string shared_gpus(std::span<RankLocation const> ranks);

/// The same, of those that are threads of one process: "ranks 0, 1 share GPU 0000:06:00.0".
[[nodiscard]] std::string shared_in_one_process(std::span<RankLocation const> ranks);

/// The same, of those on hosts that differ: "ranks 0 (on node-a), 1 (on node-b) share GPU 0000:06:00.0".
/// Containers of one machine, or namespaces, can be such hosts.
[[nodiscard]] std::string shared_between_hosts(std::span<RankLocation const> ranks);

/// Whether two ranks have the very same device, not each a virtual device or a slice of its own: then nobody
/// asked them to share.
[[nodiscard]] bool share_unasked(std::span<RankLocation const> ranks);

}  // namespace ddp
