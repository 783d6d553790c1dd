// What GPU ranks publish about their operations, for the watchdogs of all ranks.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "comm/fingerprint.hpp"
#include "comm/group/group_failure.hpp"
#include "comm/shared_memory.hpp"

namespace ddp {

/// NCCL compares nothing: ranks that call different operations hang or get wrong numbers. So each rank writes
/// what it calls into memory that all ranks of the host map: a few stores per operation, no lock. What ranks
/// of other hosts call is written there too, when a rank of this host has asked them (RemoteCalls).
class PublishedCalls {
 public:
  /// How many of a rank's latest operations can still be read. GPUs lag behind their hosts by far fewer.
  static constexpr std::uint64_t kRecords = 4096;

  /// New memory for `size` ranks.
  [[nodiscard]] static std::shared_ptr<SharedMemory> make_memory(int size);
  /// `memory`: of this rank's host. `hosts`: for each rank the first rank of its host.
  PublishedCalls(std::shared_ptr<SharedMemory> memory, Rank rank, std::vector<std::size_t> hosts);

  [[nodiscard]] GroupFailure& failure() const noexcept;

  [[nodiscard]] std::vector<std::size_t> const& hosts() const noexcept { return hosts_; }
  /// The first rank of this rank's host.
  [[nodiscard]] std::size_t first_here() const noexcept { return hosts_[me_]; }
  /// Whether a rank is on this rank's host.
  [[nodiscard]] bool is_here(std::size_t rank) const noexcept { return hosts_[rank] == hosts_[me_]; }
  [[nodiscard]] bool is_on_one_host() const noexcept { return on_one_host_; }
  /// Whether this rank sees what `rank` has called: it is on this host, or its host has answered the latest
  /// question, which is not forgotten yet.
  [[nodiscard]] bool knows(std::size_t rank) const noexcept;

  /// A hash of what ranks compare of operations: `before`, the hash of those before, with one more.
  [[nodiscard]] static std::uint64_t digest(std::uint64_t before, Fingerprint const& operation) noexcept;
  /// Says that this rank calls `operation` next, and numbers it. One thread at a time.
  void publish(Fingerprint operation) noexcept;
  /// How many operations this rank has called; how many of them are collectives.
  [[nodiscard]] std::uint64_t published() const noexcept { return published(me_); }
  [[nodiscard]] std::uint64_t collectives() const noexcept { return collectives(me_); }
  // This rank's latest step. For the thread that publishes.

  /// The collective that began it.
  [[nodiscard]] std::uint64_t step_began() const noexcept { return step_began_; }
  /// Whether every rank of this host has begun that step too, in the same way, with the same collective and
  /// after the same ones. It takes a few loads. If false, a rank may be late, or differ: the records tell.
  [[nodiscard]] bool all_began_this_step() const noexcept;
  /// How a rank of this host has begun that step; nullopt if it has not, or not in the same way.
  [[nodiscard]] std::optional<StepMark> mark_of_this_step(std::size_t rank) const noexcept;

  /// digest() of all collectives.
  [[nodiscard]] std::uint64_t called() const noexcept { return called_; }

  [[nodiscard]] std::optional<Fingerprint> record(std::uint64_t number) const noexcept {
    return record(me_, number);
  }

  // The ranks of this host end the communicator together. Any thread.

  enum class End {
    awaits,    ///< some have not come
    together,  ///< all have
    alone      ///< some had not come when another gave up
  };
  /// This rank has come to the end. Once.
  void come_to_end() noexcept;
  [[nodiscard]] End end() const noexcept;
  /// No rank waits any more: `together` where all have come before, otherwise `alone` for every rank.
  [[nodiscard]] End give_up_end() noexcept;

  // What ranks of other hosts have called. One process of this host writes it, one thread at a time.

  /// Writes down the next operation; nullopt: it is not known which.
  void write_down(std::size_t rank, std::optional<Fingerprint> const& operation) noexcept;
  /// How many of them are collectives: after the operations themselves.
  void write_down_collectives(std::size_t rank, std::uint64_t collectives) noexcept;
  /// The operations up to `number` that are not written down yet are not known.
  void skip_to(std::size_t rank, std::uint64_t number) noexcept;
  /// The first rank of another host has answered.
  void write_down_answer(std::size_t rank) noexcept;

  // The latest question of this host's ranks to other hosts. It is forgotten after two seconds. Any thread.

  /// Begins one, unless there is one that began at `not_before` or later. Returns whether this call did.
  [[nodiscard]] bool begin_question(std::chrono::steady_clock::time_point not_before) noexcept;
  /// How long ago it began; nullopt if there is none.
  [[nodiscard]] std::optional<std::chrono::milliseconds> since_question() const noexcept;

  // Calls of any rank that this one sees. Any thread.
  [[nodiscard]] std::uint64_t published(std::size_t rank) const noexcept;
  [[nodiscard]] std::uint64_t collectives(std::size_t rank) const noexcept;
  /// The operation with this number, from 1; nullopt if it has not been called yet, is too old, or has not
  /// become known.
  [[nodiscard]] std::optional<Fingerprint> record(std::size_t rank, std::uint64_t number) const noexcept;
  /// The process of a rank; 0 for a rank of another host.
  [[nodiscard]] pid_t process(std::size_t rank) const noexcept;

 private:
  struct Record;
  struct Slot;
  [[nodiscard]] Slot& slot(std::size_t rank) const noexcept;
  [[nodiscard]] End end_of(std::uint32_t ended) const noexcept;
  static void append(Slot& slot, std::optional<Fingerprint> const& operation) noexcept;

  std::shared_ptr<SharedMemory> memory_;
  std::size_t me_;
  std::vector<std::size_t> hosts_;
  bool on_one_host_;
  std::uint64_t steps_ = 0;
  std::uint64_t step_began_ = 0;
  StepMark begins_;
  std::uint64_t called_ = 0;  // a hash of all operations
};

}  // namespace ddp
