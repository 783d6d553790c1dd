// What ranks of other hosts have called: asked for when something has gone wrong, not before.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "comm/group/members.hpp"
#include "comm/nccl/calls/published_calls.hpp"
#include "ddp/core/failure.hpp"

namespace ddp {

/// While all goes well, hosts tell each other nothing. At a deadline, and when a step's head shows that ranks
/// called different operations, a rank asks the first ranks of all other hosts. They answer the first rank of
/// its host, which writes the calls into the PublishedCalls of that host. The rank in which a failure begins
/// tells the others at once.
///
/// Notices hold values as they lie in memory: all ranks run the same version (check_locations()). With one
/// host this class does nothing.
class RemoteCalls {
 public:
  RemoteCalls(MemberGroup const& group, std::shared_ptr<PublishedCalls> calls);

  /// From now on this rank hears what other hosts say, if it is the first of its host, and calls `wake` when
  /// serve() has something to do. Returns false if the control plane passes on no notices. A later call
  /// replaces `wake`.
  bool listen(std::function<void()> wake);
  void stop_listening() noexcept { listening_.reset(); }
  /// Answers questions. `done`: how many of its operations this rank's GPU has done. Returns whether
  /// others have told what they called since the last time. One thread at a time.
  [[nodiscard]] bool serve(std::uint64_t done);

  // Any thread.

  /// Asks the other hosts, unless this host has asked at `not_before` or later. Returns true when all have
  /// answered, or have had a second for it: call it until then.
  [[nodiscard]] bool find_out(std::chrono::steady_clock::time_point not_before) const;
  /// Tells the other hosts why the group fails.
  void tell_failure(Failure const& failure) const noexcept;
  /// The first ranks of hosts that have not answered the latest question.
  [[nodiscard]] std::vector<std::size_t> silent_hosts() const;

 private:
  void hear(Rank from, std::string_view bytes) noexcept;
  void hear_calls(Rank from, std::string_view bytes);
  [[nodiscard]] std::string own_calls(std::uint64_t done) const;
  void tell(std::vector<std::size_t> const& whom, std::string_view bytes) const;

  std::shared_ptr<ControlPlane> control_;
  std::string name_;
  Rank me_;  // of the world
  std::vector<Rank> world_ranks_;
  std::shared_ptr<PublishedCalls> calls_;
  std::vector<std::size_t> here_;    // the ranks of this host
  std::vector<std::size_t> others_;  // the first ranks of other hosts
  std::function<void()> wake_;
  std::mutex mutex_;  // guards the next two
  std::set<std::size_t> askers_;
  bool heard_calls_ = false;
  std::shared_ptr<void> listening_;  // last: ends before what the listener uses
};

}  // namespace ddp
