// The barrier of ranks that share memory: they spin, then sleep, with a deadline.
#pragma once

#include <optional>
#include <vector>

#include "comm/group/members.hpp"
#include "comm/shm/region.hpp"
#include "core/pausing_deadline.hpp"
#include "ddp/bootstrap/control_plane.hpp"

namespace ddp::shm {

/// One rank's end of a group. All ranks pass through the same stages 1, 2, 3, …: arrive() says that this rank
/// has reached its next one. A rank that sees it arrive can read all that it wrote before.
///
/// What a rank wrote for stage s may be overwritten for stage s + 2, not earlier: a rank that has seen all
/// ranks at s + 1 knows that all have finished with s. So two alternating buffers are enough, with one wait a
/// stage.
class Barrier {
 public:
  /// `members` must outlive it.
  Barrier(Region region, MemberGroup const& members);

  /// The stage that the next arrive() reaches.
  [[nodiscard]] std::uint32_t next_stage() const noexcept { return stage_ + 1; }
  void arrive() noexcept;
  /// Returns when all ranks have arrived at this rank's stage. Throws CommError.
  void wait_for_all();
  void meet() {
    arrive();
    wait_for_all();
  }

  /// Begins an operation, which errors name. Throws the group's failure.
  void begin(Fingerprint const& operation);

  /// Makes this and every later wait of every rank fail. The first one stays. Any thread.
  void fail(Failure failure) noexcept;
  /// Throws the group's failure, if there is one. Any thread.
  void throw_if_failed() const { region_.failure().throw_if_set(members_.me()); }
  /// fail(), then throw it.
  [[noreturn]] void fail_and_throw(Failure const& failure);

  [[nodiscard]] Region const& region() const noexcept { return region_; }
  /// Whether a wait begins with a spin that is longer than waking a thread takes.
  [[nodiscard]] bool spins() const noexcept;

 private:
  static void post(Word& word) noexcept;
  template <class Ready, class Missing>
  void wait(Word& word, Ready ready, Missing missing, std::optional<PausingDeadline>& timeout);
  [[nodiscard]] bool arrived(std::size_t rank) const noexcept;
  template <class Ready, class Missing>
  void check_lost(Ready ready, Missing missing);

  Region region_;
  MemberGroup const& members_;
  Fingerprint operation_;
  std::uint32_t stage_ = 0;
  int spins_;
};

}  // namespace ddp::shm
