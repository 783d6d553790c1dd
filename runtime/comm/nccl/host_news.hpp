// What the hosts of a communicator tell each other while it lives.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/group/members.hpp"
#include "comm/nccl/published_calls.hpp"
#include "ddp/core/failure.hpp"

namespace ddp {

/// The first rank of each host tells the first ranks of all other hosts what the ranks of its own have
/// called, at most every 50 ms (more seldom beyond 16 hosts, so that no host gets more than some 300 letters
/// a second), and writes down on its own host's board what it hears. So every board holds all calls. Where
/// nothing is called it sends an empty letter every half second. A failure is told at once, by the rank in
/// which it began.
///
/// The letters hold values as they lie in memory: all ranks run the same version (check_locations()). On one
/// host, and where the control plane delivers no letters, nothing is done.
class HostNews {
 public:
  HostNews(MemberGroup const& group, std::shared_ptr<PublishedCalls> board);

  /// Whether this rank hears and tells for its host: then exchange() is to be called as long as the
  /// communicator lives.
  [[nodiscard]] bool is_speaker() const noexcept { return speaks_; }
  /// Takes what has come, and tells what is new. One thread at a time. Throws what the control plane does.
  void exchange();
  /// Tells what has not been told yet: the last call of exchange() was before.
  void say_the_rest() noexcept;
  /// Tells the other hosts why the group fails. Any thread.
  void tell_failure(Failure const& failure) const noexcept;

  /// A host of which nothing has been heard for long enough to be worth a word.
  struct Silence {
    std::size_t first_rank = 0;
    std::chrono::milliseconds lasted{0};
  };
  /// Any rank of the host, any thread.
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
  std::shared_ptr<PublishedCalls> board_;
  std::vector<std::size_t> here_;    // the ranks of this host
  std::vector<std::size_t> others_;  // the first ranks of other hosts
  bool speaks_ = false;
  std::chrono::milliseconds period_{0};
  Clock::time_point told_at_;
  std::vector<std::uint64_t> told_;  // by rank: how many of its operations
};

}  // namespace ddp
