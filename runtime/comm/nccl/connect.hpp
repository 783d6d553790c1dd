// How ranks become an NCCL communicator: they agree on one, and its first operation opens it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/group/members.hpp"
#include "comm/nccl/calls/published_calls.hpp"
#include "comm/nccl/calls/remote_calls.hpp"
#include "comm/nccl/handles.hpp"
#include "comm/step_commits.hpp"
#include "core/system/host_identity.hpp"
#include "ddp/core/deadline.hpp"
#include "ddp/core/device.hpp"

namespace ddp {

/// Ranks with a GPU each.
struct NcclGroup : MemberGroup {
  Device device;
  int most_ctas = 0;                       ///< of an operation; 0: NCCL chooses
  std::shared_ptr<StepCommits> commits{};  ///< told before operations are ended early; may be null
  std::string host = host_identity();      ///< within which ranks share memory
  std::vector<std::string> host_names{};   ///< of all ranks, once they have met
};

struct NcclConnection {
  NcclGroup group;  ///< renamed: no other communicator has this name
  std::shared_ptr<NcclHandles> handles;
  std::shared_ptr<PublishedCalls> calls;
  std::shared_ptr<RemoteCalls> remote;
};

/// Collective: all is agreed on, and the handles can be opened. Throws CommError(timeout) naming the ranks
/// that never came, CommError(peer_lost), CommError(mismatch) naming a rank with another version of NCCL, and
/// what NCCL says; the same failure comes on every rank that can be told.
[[nodiscard]] NcclConnection connect_nccl(NcclGroup group, Deadline deadline);

/// Has NCCL connect the ranks, all of which call this. `all_came` says whether all ranks have called it, is
/// asked again and again, and throws to give up. Throws CommError(timeout) if NCCL takes longer than the
/// group's init_timeout (its timeout where there is none) from then on, and what NCCL says. After a failure
/// the caller aborts the handles.
void open_nccl(NcclGroup const& group, NcclHandles& handles, bool on_one_host,
               std::function<bool()> const& all_came);

}  // namespace ddp
