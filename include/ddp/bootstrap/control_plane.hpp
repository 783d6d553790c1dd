// How ranks find each other and learn who is gone: small messages, with deadlines.
#pragma once

#include <atomic>
#include <cstddef>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ddp/bootstrap/rank_info.hpp"
#include "ddp/core/deadline.hpp"
#include "ddp/core/error.hpp"
#include "ddp/core/export.hpp"
#include "ddp/core/ids.hpp"

namespace DDP_EXPORT ddp {

/// A rank that takes part no longer.
struct LostRank {
  /// How a rank ends to take part.
  enum class Manner { died, left };  ///< killed, crashed or exited early; or left the group in order
  Rank rank;                         ///< that is gone
  Manner manner = Manner::died;      ///< how it went
  std::string reason;                ///< "killed by signal 9 (SIGKILL)", "left the group"
};

/// The control plane of one job. Every method may be called from any thread.
///
/// Values are bytes of at most kMaxValue, keys at most kMaxKey. Not for gradients: each call is a round trip
/// through a server.
///
/// A program that has means of its own by which its ranks find each other, such as a key-value store, may
/// derive from this class: make_communicator() works over any control plane that keeps what is said at each
/// method. Several threads call it at once, and calls that wait are among them: get() and all_gather() must
/// not keep lost(), the reports and each other from going on. Whatever get(), put() and all_gather() throw
/// comes out of the call that needed them. Communicators keep the control plane alive, since they ask it for
/// lost ranks as long as they live; their keys and names begin with "ddp/".
class ControlPlane {
 public:
  static constexpr std::size_t kMaxKey = 256;               ///< bytes
  static constexpr std::size_t kMaxValue = (64_MiB).value;  ///< bytes

  virtual ~ControlPlane() = default;

  [[nodiscard]] virtual Rank rank() const noexcept = 0;  ///< This rank; always the same.
  [[nodiscard]] virtual int size() const noexcept = 0;   ///< Ranks of the job; always the same.

  /// Publishes a value. A key is put once in a job; a second put throws Error(invalid_state).
  virtual void put(std::string_view key, std::string_view value) = 0;

  /// The value of `key`, as soon as some rank has put it.
  /// Throws CommError(timeout) naming the key; CommError(peer_lost) when a rank died meanwhile.
  [[nodiscard]] virtual std::string get(std::string_view key, Deadline deadline) = 0;

  /// Each rank of `group` gives a value, each gets all of them, in the group's order. Every member calls it
  /// with the same name and group. A name can be used again once its call has returned, even where it has not
  /// yet on other ranks; groups that have no rank in common may use a name at the same time.
  /// Throws CommError(timeout) or CommError(peer_lost) naming `name` and the ranks that are missing.
  [[nodiscard]] virtual std::vector<std::string> all_gather(std::string_view name, std::string_view value,
                                                            std::span<Rank const> group,
                                                            Deadline deadline) = 0;

  /// Ranks that died or left, in the order in which that became known. A rank that is in it stays in it. None
  /// ever is a normal answer: then a rank that is gone is found by the timeouts of those that wait for it.
  ///
  /// Never blocks: every wait of a communicator asks for it, before it goes to sleep and every 20 ms (in
  /// shared memory), every 10 ms (NCCL), or some thousand times a second (over MPI). So it tells what this
  /// rank has heard already: a copy under a lock that nobody holds for long, and no message to anybody.
  [[nodiscard]] virtual std::vector<LostRank> lost() const = 0;

  /// Tells whoever watches this rank (ddp-launch) why it is about to fail. Never throws, never blocks long.
  virtual void report_error(ErrorCode code, std::string_view message) noexcept = 0;

  /// Tells whoever watches this rank how far it is, for reports: the last step and collective. Cheap enough
  /// to be called once a second, not once a step. Never throws.
  virtual void report_progress(std::string_view what) noexcept = 0;

  /// Leaves the group in order; afterwards an exit of this process is no failure. Called once, last, by
  /// whoever made the control plane (World does for its own); communicators never call it. Never throws.
  virtual void leave() noexcept = 0;

  /// `info` with what joining taught beyond the environment: MPI knows how many ranks there are, and which
  /// of them share this host, where the process manager does not tell. For World.
  [[nodiscard]] virtual RankInfo completed(RankInfo info) const { return info; }

  /// All ranks of the job.
  [[nodiscard]] std::vector<Rank> everyone() const;
  /// Returns when every rank has called it with this name. Errors as all_gather().
  void barrier(std::string_view name, Deadline deadline);

  /// report_error() for whoever ends a group of ranks, before he ends it: so the first report of a job is
  /// that of its first cause. The first call of a process counts, since what follows a failure follows from
  /// it. Any thread.
  void report_failure(std::exception const& error) noexcept;

 private:
  std::atomic<bool> failure_reported_{false};
};

/// The control plane that fits how this process was started: LauncherClient under ddp-launch, MpiControl
/// under mpirun, srun and their like, SoloControl alone. Joins the job: under ddp-launch without waiting for
/// the other ranks; MPI waits for all, and where MPI_Init hangs past the deadline the process ends with a
/// report. Throws CommError(timeout), Error(io), Error(unsupported): a build without MPI, or an MPI that is
/// not the process manager's.
[[nodiscard]] std::shared_ptr<ControlPlane> connect_control_plane(RankInfo const& info, Deadline deadline);

/// Control planes of `size` ranks that are threads of this process: for tests and for DataParallel.
[[nodiscard]] std::vector<std::shared_ptr<ControlPlane>> make_in_process_control(int size);

}  // namespace ddp
