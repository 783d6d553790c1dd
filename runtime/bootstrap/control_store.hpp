// The state of the control plane, apart from how ranks reach it: who waits for what, and what each gets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bootstrap/wire.hpp"
#include "ddp/bootstrap/control_plane.hpp"
#include "ddp/core/failure.hpp"
#include "ddp/core/ids.hpp"

namespace ddp {

/// A state machine: requests go in, answers come out, for the asker and for ranks whose wait this ends. No
/// clocks, no locks, no I/O. Each request that is not withdrawn or forgotten is answered exactly once, by the
/// call that made it or by a later one. Used by the control server and by the in-process control plane.
///
/// all_gather: groups that overlap need names of their own; the same name with another overlapping group is a
/// mismatch, for the caller and for those who wait. Disjoint groups can use one name at the same time.
class ControlStore {
 public:
  using Value = std::shared_ptr<std::string const>;

  /// One request of one rank; the number is the asker's own and not used twice.
  struct Ticket {
    Rank rank;
    std::uint64_t number = 0;
    friend bool operator==(Ticket const&, Ticket const&) noexcept = default;
  };
  struct Answer {
    Ticket to;
    std::optional<Failure> failure;  ///< without the operation and its key: the asker knows them
    std::vector<Value> values;       ///< put: none; get: one; all_gather: one for each rank of the group
  };
  using Answers = std::vector<Answer>;

  /// What one job may make the server keep.
  struct Limits {
    std::size_t keys = std::size_t{1} << 16;
    std::size_t stored_bytes = (1_GiB).value;  ///< keys and values that were put or wait in a gather
    std::size_t waiting_per_rank = 1024;
    int min_ranks = 0;  ///< with fewer that live there is no rebuild(); 0: there is never one
  };

  explicit ControlStore(int size) : ControlStore(size, Limits{}) {}
  ControlStore(int size, Limits limits);

  [[nodiscard]] int size() const noexcept { return static_cast<int>(waiting_.size()); }

  [[nodiscard]] Answers put(Ticket ticket, std::string_view key, std::string value);
  [[nodiscard]] Answers get(Ticket ticket, std::string_view key);
  /// `for_first`: as for this ticket, only the first rank of the group is told the values.
  [[nodiscard]] Answers all_gather(Ticket ticket, std::string_view name, std::span<Rank const> group,
                                   std::string value, bool for_first = false);
  /// As ControlPlane::rebuild().
  [[nodiscard]] Answers rebuild(Ticket ticket, std::string value);
  /// The asker's deadline passed: answers ErrorCode::timeout that tells who is missing. No answer when the
  /// request has been answered already. A rebuild() is not withdrawn: lose() whom it awaits.
  [[nodiscard]] Answers withdraw(Ticket ticket);
  /// The living ranks for which this rebuild() waits; none for any other ticket, nor for a newcomer's, whose
  /// deadline says nothing of the others.
  [[nodiscard]] std::vector<Rank> awaited_by(Ticket ticket) const;
  /// How many rebuilds are complete.
  [[nodiscard]] int membership() const noexcept { return membership_; }
  /// A new process stands for `rank`, which died. It stays in lost() until a membership begins with it: that
  /// is the next one whose members have all come when it has asked for rebuild(). Until then it may only ask
  /// for that and gather of itself alone.
  void come_back(Rank rank) { newcomers_.insert(rank); }
  [[nodiscard]] bool is_newcomer(Rank rank) const { return newcomers_.contains(rank); }
  /// ControlPlane::interruption() of `member`.
  [[nodiscard]] std::optional<Failure> interruption(Rank member) const;
  /// The ranks that are not in lost(), ascending.
  [[nodiscard]] std::vector<Rank> living() const;
  /// Answers for each of `ranks` the name or the key that it waits for; "" for none.
  [[nodiscard]] Answers waits(Ticket ticket, std::span<Rank const> ranks) const;
  /// Carries out a rank's frame, and may move its value away. nullopt for a frame of another type. Throws
  /// Error(protocol) for a group that cannot be read.
  [[nodiscard]] std::optional<Answers> handle(Rank rank, wire::Frame& frame);
  /// The rank cannot be answered any more: its waiting requests are removed and not answered.
  void forget(Rank rank);
  /// The first rank of `lost` takes part no longer; its own waiting requests fail too. Only the first call
  /// for a process of that rank has an effect.
  [[nodiscard]] Answers lose(Failure const& lost);

  /// In the order in which it became known.
  [[nodiscard]] std::vector<Failure> const& lost() const noexcept { return lost_; }
  [[nodiscard]] Failure const* find_lost(Rank rank) const noexcept;
  [[nodiscard]] std::size_t stored_bytes() const noexcept { return stored_bytes_; }
  [[nodiscard]] std::size_t waiting(Rank rank) const { return waiting_[rank.index()]; }

 private:
  struct Gather {
    struct Part {
      std::optional<Ticket> ticket;  ///< set once the member has called
      Value value;
      bool wants_values = true;
    };
    std::vector<Rank> group;
    std::vector<Part> parts;  ///< one for each of group
    std::size_t present = 0;

    [[nodiscard]] bool holds(Rank rank) const noexcept;
    [[nodiscard]] std::vector<Rank> missing() const;
  };
  using Gathers = std::multimap<std::string, Gather, std::less<>>;
  using Gets = std::multimap<std::string, Ticket, std::less<>>;

  [[nodiscard]] std::optional<Failure> refuse(Ticket ticket) const;
  [[nodiscard]] std::optional<Failure> refuse_group(Rank rank, std::span<Rank const> group) const;
  [[nodiscard]] std::optional<Failure> refuse_rebuild(Rank rank) const;
  [[nodiscard]] std::optional<Failure> refuse_old_membership() const;
  [[nodiscard]] std::optional<Failure> refuse_storage(Rank rank, std::size_t bytes) const;
  void add_part(Gather& gather, Ticket ticket, std::string value, bool for_first);
  void remove_part(Gather& gather, Gather::Part& part);
  Gathers::iterator erase(Gathers::iterator gather);
  Gathers::iterator fail(Gathers::iterator gather, Failure const& failure, Answers& answers);
  Gathers::iterator complete(Gathers::iterator gather, Answers& answers);
  void fail_waits_of(Rank rank, Failure const& failure, Answers& answers);
  void fail_gets(Failure const& failure, Answers& answers);
  void end_old_membership(Answers& answers);
  void lose_newcomer(Failure const& lost, Answers& answers);
  void stop_rebuilding(Rank rank, Failure const& failure, Answers& answers);
  void rebuild_if_all_came(Answers& answers);

  Limits limits_;
  std::vector<std::size_t> waiting_;  ///< requests of each rank that have no answer yet
  std::size_t stored_bytes_ = 0;
  std::map<std::string, Value, std::less<>> values_;
  Gets gets_;
  Gathers gathers_;
  std::vector<Failure> lost_;
  std::optional<Failure> first_death_;  ///< of this membership
  std::set<Rank> newcomers_;            ///< of lost_: those for which a new process stands
  std::optional<Rank> interrupter_;     ///< the newcomer that has asked for the next membership
  int membership_ = 0;
  std::map<Rank, Gather::Part> rebuilding_;  ///< who has asked for the next membership
};

/// What `rank` asked for is not allowed.
[[nodiscard]] Failure refusal(Rank rank, ErrorCode code, std::string why);
/// The failure of a rank whose process has ended, by an unknown signal or with an unknown code. `process`:
/// its number on `host`, 0 if that is not known.
[[nodiscard]] Failure process_has_ended(Rank rank, int process, std::string const& host);
/// The failure of a rank that has left in order; its own later calls get it too.
[[nodiscard]] Failure has_left(Rank rank);
[[nodiscard]] Failure has_left_already(Rank rank);

/// The failure of a rank that did not come to a rebuild in time.
[[nodiscard]] Failure missed_rebuild(Rank rank);

/// What `member` is told where a newcomer waits to be taken in.
[[nodiscard]] Failure newcomer_waits(Rank newcomer, Rank member);

/// Why `group` cannot be gathered by `caller` in a job of `size` ranks; empty when it can.
[[nodiscard]] std::string why_no_group(std::span<Rank const> group, Rank caller, int size);

}  // namespace ddp
