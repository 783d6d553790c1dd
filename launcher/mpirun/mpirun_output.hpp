// What mpirun --tag-output makes of the ranks' output.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "ddp/core/ids.hpp"

namespace ddp::launcher {

/// Sorts output by rank. mpirun puts "[1,3]<stdout>:" before each line of rank 3 and before each piece of
/// one; a line without such a tag is mpirun's own. A tag that a rank writes itself cannot be told apart.
class TagReader {
 public:
  /// `rank` is nullopt for mpirun's own words.
  using Sink = std::function<void(std::optional<Rank> rank, std::string_view bytes)>;

  void feed(std::string_view bytes, Sink const& sink);
  /// The stream has ended: passes on the bytes that might have become a tag.
  void finish(Sink const& sink);

 private:
  std::string held_;  // may be the beginning of a tag
  std::optional<Rank> rank_;
  bool at_line_start_ = true;
};

/// The rank that mpirun's own words say failed first: "… process rank 1 with PID …" for a signal,
/// "Process name: [[5983,1],1]" for an exit code.
[[nodiscard]] std::optional<Rank> named_culprit(std::string_view line);

/// The host whose daemon mpirun (Open MPI 4) has lost: "  Remote daemon: [[5983,0],1] on node node-b".
[[nodiscard]] std::optional<std::string> lost_host(std::string_view line);

/// Whether mpirun (Open MPI 4) says with this line that a rank has failed and that mpirun ends the job.
/// mpirun says so before it waits for all hosts.
[[nodiscard]] bool tells_of_failure(std::string_view line);

}  // namespace ddp::launcher
