// How ranks find each other and learn who is gone: small messages, with deadlines.
#pragma once

#include <atomic>
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ddp/bootstrap/rank_info.hpp"
#include "ddp/core/deadline.hpp"
#include "ddp/core/error.hpp"
#include "ddp/core/export.hpp"
#include "ddp/core/failure.hpp"
#include "ddp/core/ids.hpp"
#include "ddp/observe/progress.hpp"

namespace DDP_EXPORT ddp {

/// The ranks of a job that take part together: all of them at first, and after each rebuild those that live.
struct Membership {
  int number = 0;                     ///< 0 at first, one more with each rebuild
  std::vector<Rank> ranks{};          ///< as the control plane numbers them, ascending
  std::vector<std::string> values{};  ///< what each of them gave to rebuild()
};

/// The control plane of one job. Every method may be called from any thread.
///
/// Values are bytes of at most kMaxValue, keys at most kMaxKey. Not for gradients: each call is a round trip
/// through a server.
///
/// A program whose ranks find each other by other means, such as a key-value store, may derive from this
/// class: make_communicator() works with any control plane that does what the comments of the methods say.
/// Several threads call it at once, some while others wait: get() and all_gather() must not block lost(), the
/// reports, or each other. Exceptions of get(), put() and all_gather() are passed on to the caller that
/// needed the answer. Communicators own a share of the control plane, since they call lost() as long as they
/// live. Their keys and names begin with "ddp/".
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

  /// Each rank of `group` gives a value and gets all of them, in the group's order. Every member calls it
  /// with the same name and group. A rank may use a name again once its own call has returned, even if other
  /// ranks are still in theirs. Groups that have no rank in common may use a name at the same time. Throws
  /// CommError(timeout) or CommError(peer_lost) naming `name` and the missing ranks.
  [[nodiscard]] virtual std::vector<std::string> all_gather(std::string_view name, std::string_view value,
                                                            std::span<Rank const> group,
                                                            Deadline deadline) = 0;

  /// As all_gather(), but only the first rank of `group` gets the values; the others get none. So n ranks
  /// hear n values, not n². Unless a derived class knows better, an all_gather().
  [[nodiscard]] virtual std::vector<std::string> gather(std::string_view name, std::string_view value,
                                                        std::span<Rank const> group, Deadline deadline);

  /// Ends the present membership and begins the next one: collective over the ranks that live. From the first
  /// call on every get() and all_gather() of the old membership fails, on every rank. Returns the same on
  /// every rank when all that live have called it. A rank that dies meanwhile is left out. So is one that has
  /// not come by `deadline`: it is in lost() from then on, and ddp-launch ends its process. Deaths before the
  /// return fail no get() behind it. A new process that stands for a lost rank (RankInfo::replacement) calls
  /// it too, and takes part from then on; nobody waits for it, and it waits until `deadline` at most. Throws
  /// Error(unsupported) where the job ends with its first lost rank, as it does unless ddp-launch --survive
  /// or DDP_MIN_RANKS says otherwise, Error(invalid_state) where fewer ranks live than that says, and
  /// CommError(peer_lost) or CommError(timeout) where the control plane itself is gone or silent. For
  /// World::rebuild(), to which all of these are final.
  [[nodiscard]] virtual Membership rebuild(std::string_view value, Deadline deadline);

  /// For each of `ranks`, the name of the all_gather() or the key of the get() in which it waits; "" if it
  /// waits in neither. Error messages about a late rank use it to say what that rank does instead. Returns an
  /// empty vector if this is not known, or not within a second.
  [[nodiscard]] virtual std::vector<std::string> waits_of(std::span<Rank const> ranks) noexcept;

  /// Ranks that died or left, in the order in which this rank learned of it. Each is one Failure of that rank
  /// alone, with ErrorCode::peer_lost; its manner is `left` if the rank left in order, and another one if it
  /// died. A listed rank stays listed, until a membership begins in which a new process stands for it. An
  /// implementation may always return none: then a lost rank is noticed
  /// when other ranks' waits for it time out.
  ///
  /// Never blocks: every wait of a communicator calls it before it sleeps, and then every 20 ms (shared
  /// memory), every 10 ms (NCCL), or some thousand times a second (MPI). So it returns what this rank has
  /// already heard: a copy under a lock that nobody holds for long, without a message to anybody.
  [[nodiscard]] virtual std::vector<Failure> lost() const = 0;

  /// What this rank is to throw at its next step, since a new process that stands for a lost rank waits to be
  /// taken in by rebuild(); nullopt if none does. Asked once a step: never blocks.
  [[nodiscard]] virtual std::optional<Failure> interruption() const;

  /// Called with the sender and the bytes of a notice. It must not throw, wait, or call listen().
  using Listener = std::function<void(Rank from, std::string_view bytes)>;
  /// Sends a notice to other ranks, which hear it if they listen under this name, or soon will. Does not wait
  /// for them. Notices of one sender arrive in order. `name` has at most kMaxKey bytes. Throws what sending
  /// fails with, and Error(unsupported) where listen() returns null. Communicators of GPUs on several hosts
  /// send them when something has failed, or a deadline has passed.
  virtual void notify(std::span<Rank const> to, std::string_view name, std::string_view bytes);
  /// Calls `listener` for each notice under `name`, one at a time, in any thread, until what it returns is
  /// destroyed; that waits for a call that runs. Null: this control plane passes on no notices. Then GPU
  /// ranks of different hosts cannot name operations that differ, and only NCCL tells them of each other's
  /// failures. One listener a name.
  [[nodiscard]] virtual std::shared_ptr<void> listen(std::string_view name, Listener const& listener);

  /// Tells the watcher of this rank (ddp-launch) why it is about to fail. Never throws, never blocks long.
  virtual void report_error(Failure const& failure) noexcept = 0;

  /// Tells the watcher of this rank how far it is, for reports. Cheap enough to call once a second, not once
  /// a step. Never throws.
  virtual void report_progress(Progress const& progress) noexcept = 0;

  /// Leaves the group in order; afterwards an exit of this process is no failure. The owner of the control
  /// plane calls it once, as the last call (World does for its own); communicators never call it. Never
  /// throws.
  virtual void leave() noexcept = 0;

  /// `info`, completed with what joining revealed: MPI knows how many ranks there are, and which of them
  /// share this host, if the process manager does not tell. For World.
  [[nodiscard]] virtual RankInfo completed(RankInfo info) const { return info; }

  /// All ranks of the job.
  [[nodiscard]] std::vector<Rank> everyone() const;
  /// Returns when every rank has called it with this name. Errors as all_gather().
  void barrier(std::string_view name, Deadline deadline);

  /// Reports failure_of(error) with report_error(). Call it before a group of ranks is aborted because of
  /// `error`, so that the first report of a job is about the first cause. Only the first call in a process
  /// counts (in a membership, where there are several), since later failures follow from the first. Any
  /// thread.
  void report_failure(std::exception const& error) noexcept;

 protected:
  /// The next membership has begun: its first failure is reported again.
  void begin_membership() noexcept { failure_reported_ = false; }

 private:
  std::atomic<bool> failure_reported_{false};
};

/// Joins the job that this process was started for. The control server is part of ddp-launch, or of rank 0's
/// process: there the others find it by RankInfo::address, or MPI tells them where it is. Under ddp-launch
/// that does not wait for other ranks; otherwise it waits for all. If MPI_Init hangs past the deadline, the
/// process ends with a report. Throws CommError(timeout) with the ranks that are missing, Error(io),
/// Error(invalid_state) when the server refuses this rank, and Error(unsupported) for a build without MPI or
/// an MPI that is not the process manager's.
[[nodiscard]] std::shared_ptr<ControlPlane> connect_control_plane(RankInfo const& info, Deadline deadline);

/// Control planes of `size` ranks that are threads of this process: for tests and for DataParallel.
[[nodiscard]] std::vector<std::shared_ptr<ControlPlane>> make_in_process_control(int size);

}  // namespace ddp
