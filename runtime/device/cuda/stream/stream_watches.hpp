// The watches of a GPU's stream: which failures a wait for it throws.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "device/stream/stream_watch.hpp"

namespace ddp {

/// The watches whose work runs on a stream, and those whose work the stream waits for. Any thread.
///
/// The GPU's progress does not suffice to end a wait: a root may be done before other ranks have called the
/// operation, and ranks that called different operations may be done with garbage. So the wait also settles
/// each watch, but only for work enqueued before the wait. Other ranks may call later operations only after a
/// message that this rank sends after the wait.
class StreamWatches {
 public:
  /// Work of `watch` is enqueued on this stream from now on.
  void add(std::shared_ptr<StreamWatch const> watch);
  /// No more of its work is enqueued.
  void leave(StreamWatch const& watch);
  /// `other`'s stream waits for what has been enqueued on this one until now.
  void pass_to(StreamWatches& other);
  /// Called before a wait, so that it throws only what the program does not know: forgets watches that have
  /// ended, unless they failed, and neither the program knows it nor a wait for this stream has thrown it.
  void forget();

  /// Forgets the watches that have failed, when nothing of their work is left on the stream. False if it has
  /// forgotten none.
  bool forget_failed();

  /// Throws the failure of the first watch that has one.
  void check();

  /// What a wait must settle once the GPU has done the stream's work.
  struct Due {
    std::uint64_t watch;
    std::uint64_t through;
  };
  /// One for every watch.
  [[nodiscard]] std::vector<Due> dues() const;
  /// One of them, without allocating; nullopt past the last. Called by the thread that enqueues.
  [[nodiscard]] std::optional<Due> due(std::size_t place) const;
  /// Asks that watch to settle, unless it is over and forgotten.
  void settle(Due due);

 private:
  struct Watched {
    std::uint64_t number;  ///< of this stream's watches
    std::shared_ptr<StreamWatch const> watch;
    /// How much of its work this stream waits for; nullopt: the work runs here.
    std::optional<std::uint64_t> through;
    int settling = 0;   ///< waits that are settling it
    bool told = false;  ///< a wait for this stream has thrown its failure
    [[nodiscard]] bool is_over() const noexcept { return watch->is_over() || (told && watch->has_ended()); }
    [[nodiscard]] Due due() const noexcept { return {number, through ? *through : watch->enqueued()}; }
  };
  // With mutex_ held.
  [[nodiscard]] Watched* find(StreamWatch const& watch) noexcept;
  /// A stream would otherwise keep the watch of every communicator. The caller destroys what is returned
  /// after releasing the lock, because freeing memory can block on the GPU.
  [[nodiscard]] std::list<Watched> take_what_is_over();

  mutable std::mutex mutex_;  // of what follows
  std::list<Watched> watches_;
  std::uint64_t watched_ = 0;  // how many were ever added
};

}  // namespace ddp
