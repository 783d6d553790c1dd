// What the ranks write: from their pipes to log files and to the console.
#pragma once

#include <sys/ioctl.h>

#include <array>
#include <cstddef>
#include <deque>
#include <optional>

#include "core/system/file_descriptor.hpp"
#include "launcher/options/options.hpp"
#include "launcher/output/console.hpp"
#include "launcher/output/log_directory.hpp"
#include "launcher/output/rank_stream.hpp"
#include "launcher/plan/plan.hpp"
#include "launcher/supervise/event_loop.hpp"

namespace ddp::launcher {

/// Reads the ranks' streams in the event loop. While the console's reader is slow it stops reading, so that
/// the ranks wait too.
class OutputForwarder {
 public:
  OutputForwarder(Plan const& plan, Options const& options, Console& console, LogDirectory const& logs,
                  EventLoop& loop)
      : plan_(plan), options_(options), console_(console), logs_(logs), loop_(loop) {}

  /// The streams of `rank`, or of mpirun.
  void add(Rank rank, FileDescriptor out, FileDescriptor err);
  /// Those of a new process of the rank at that place, whose last one has ended. Files go on.
  void replace(std::size_t index, Rank rank, FileDescriptor out, FileDescriptor err);
  /// Terminals of ranks have this size from now on.
  void resize(winsize const& window);
  /// From now on mpirun's own words go to their file only.
  void silence_mpirun();
  /// That rank has ended: takes what is still in its pipes.
  void drain(std::size_t index);
  /// Called after each turn of the loop: pauses and resumes reading with the console's reader.
  void update_flow();
  /// Takes what is left and closes all. Safe to call again.
  void finish();

  // Of a rank, by its place; under mpirun those of all ranks.
  [[nodiscard]] RankStream const& out(std::size_t rank) const {
    return ranks_[plan_.mpi_ranks ? 0 : rank][0];
  }
  [[nodiscard]] RankStream const& err(std::size_t rank) const {
    return ranks_[plan_.mpi_ranks ? 0 : rank][1];
  }

 private:
  using Streams = std::array<RankStream, 2>;  ///< stdout and stderr
  [[nodiscard]] LogFile open_log(std::optional<Rank> of, OutputStream stream, bool append) const;
  [[nodiscard]] RankStream make_stream(Rank rank, OutputStream stream, FileDescriptor pipe,
                                       bool goes_on) const;
  void read(RankStream& stream);
  void forward(RankStream& stream);
  void close(RankStream& stream);

  Plan const& plan_;
  Options const& options_;
  Console& console_;
  LogDirectory const& logs_;
  EventLoop& loop_;
  std::deque<Streams> ranks_;  ///< elements stay in place: the loop refers to them
  bool reading_ = true;
  std::array<bool, 2> console_waits_{};  ///< the console's streams are watched for room
};

}  // namespace ddp::launcher
