// What the ranks of a measurement tell each other, and how they begin together.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "ddp/device/event.hpp"
#include "ddp/parallel/world.hpp"

namespace ddp::bench {

/// Every rank's value, in rank order. Collective, as all of these are.
[[nodiscard]] std::vector<std::string> gather(World const& world, std::string const& name,
                                              std::string const& value);

/// Rank 0 alone reads and writes files; what goes wrong there is thrown on every rank.
void succeed_on_root(World const& world, std::string const& what, std::function<void()> const& action);

/// Position by position the largest of all ranks' values.
[[nodiscard]] std::vector<double> slowest_rank(World const& world, std::vector<double> const& mine);

/// Times work on a stream.
class StreamTimer {
 public:
  /// Both must outlive it. The world's communicator is used on `stream`.
  StreamTimer(World const& world, Stream& stream);
  /// Milliseconds from the stream's start of what `enqueue` enqueues to its end, on this rank; all ranks
  /// begin together.
  [[nodiscard]] double milliseconds(std::function<void()> const& enqueue);
  /// Microseconds that the host spends in `enqueue`, with nothing on the stream before it; all ranks begin
  /// together.
  [[nodiscard]] double host_microseconds(std::function<void()> const& enqueue);

 private:
  void meet();
  World const& world_;
  Stream& stream_;
  Event begin_;
  Event end_;
};

}  // namespace ddp::bench
