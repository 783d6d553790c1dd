// The messages between the hosts of a communicator.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/group/members.hpp"
#include "comm/nccl/calls/published_calls.hpp"
#include "ddp/core/failure.hpp"

namespace ddp {

/// The first rank of each host sends the calls of its host's ranks to the first ranks of all other hosts, at
/// most every 50 ms (less often with more than 16 hosts, so that no host gets more than some 300 messages a
/// second). It writes calls that it receives into the PublishedCalls of its own host, which so hold all
/// calls. If no rank calls anything, it sends an empty message every half second. The rank in which a failure
/// begins sends it at once.
///
/// Messages hold values as they lie in memory: all ranks run the same version (check_locations()). With one
/// host, and if the control plane has no messages between ranks, this class does nothing.
class HostNews {
 public:
  HostNews(MemberGroup const& group, std::shared_ptr<PublishedCalls> calls);

  /// Whether this rank receives and sends for its host: then exchange() must be called as long as the
  /// communicator lives.
  [[nodiscard]] bool is_speaker() const noexcept { return speaks_; }
  /// Takes messages that have come, sends new calls. One thread at a time. Throws what the control plane
  /// does.
  void exchange();
  /// Sends calls that were not sent yet. exchange() is not called any more.
  void say_the_rest() noexcept;
  /// Tells the other hosts why the group fails. Any thread.
  void tell_failure(Failure const& failure) const noexcept;

  /// A host from which nothing was heard for so long that an error should say it.
  struct Silence {
    std::size_t first_rank = 0;
    std::chrono::milliseconds lasted{0};
  };
  /// For any rank of the host, any thread.
  [[nodiscard]] std::vector<Silence> silent_hosts() const;

 private:
  using Clock = std::chrono::steady_clock;
  void hear(Letter const& letter);
  void hear_calls(Letter const& letter);
  void tell_new_calls();
  void tell_of(std::size_t rank, std::uint64_t first, std::uint64_t last, std::uint64_t collectives);
  void tell(std::string_view letter) const noexcept;

  std::shared_ptr<ControlPlane> control_;
  std::string channel_;
  std::vector<Rank> world_ranks_;
  std::shared_ptr<PublishedCalls> calls_;
  std::vector<std::size_t> here_;    // the ranks of this host
  std::vector<std::size_t> others_;  // the first ranks of other hosts
  bool speaks_ = false;
  std::chrono::milliseconds period_{0};
  Clock::time_point told_at_;
  std::vector<std::uint64_t> told_;  // by rank: how many of its operations were sent
};

}  // namespace ddp
