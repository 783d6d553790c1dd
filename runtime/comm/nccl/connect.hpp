// How ranks become an NCCL communicator.
#pragma once

#include <memory>

#include "comm/group/members.hpp"
#include "comm/nccl/handles.hpp"
#include "comm/nccl/published_calls.hpp"
#include "ddp/core/deadline.hpp"
#include "ddp/core/device.hpp"

namespace ddp {

/// Ranks with a GPU each.
struct NcclGroup : MemberGroup {
  Device device;
  int most_ctas = 0;  ///< of an operation; 0: what NCCL likes
};

struct NcclConnection {
  NcclGroup group;  ///< renamed: no other communicator has this name
  std::shared_ptr<NcclHandles> handles;
  std::shared_ptr<PublishedCalls> board;
};

/// Collective. Throws CommError(timeout) naming the ranks that never came, CommError(peer_lost), and what
/// NCCL says; the same failure comes on every rank of the host.
[[nodiscard]] NcclConnection connect_nccl(NcclGroup group, Deadline deadline);

}  // namespace ddp
