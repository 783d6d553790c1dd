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
  /// `has_space`: tags end with a space, as those of Open MPI 5 do.
  explicit TagReader(bool has_space = false) : has_space_(has_space) {}

  /// `rank` is nullopt for mpirun's own words.
  using Sink = std::function<void(std::optional<Rank> rank, std::string_view bytes)>;

  void feed(std::string_view bytes, Sink const& sink);
  /// The stream has ended: passes on the bytes that might have become a tag.
  void finish(Sink const& sink);

 private:
  bool has_space_;
  std::string held_;  // may be the beginning of a tag
  std::optional<Rank> rank_;
  bool at_line_start_ = true;
};

}  // namespace ddp::launcher
