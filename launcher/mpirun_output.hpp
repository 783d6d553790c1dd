// What mpirun --tag-output makes of the ranks' lines.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "ddp/core/ids.hpp"

namespace ddp::launcher {

struct TaggedLine {
  std::optional<Rank> rank;  ///< none: mpirun's own words
  std::string text;
};

/// "[1,3]<stdout>:epoch 1" is rank 3's "epoch 1". A line that came in pieces has more tags inside: they go.
[[nodiscard]] TaggedLine untag(std::string_view line);

/// The rank that mpirun's own words say failed first: "… process rank 1 with PID …" for a signal,
/// "Process name: [[5983,1],1]" for an exit code.
[[nodiscard]] std::optional<Rank> named_culprit(std::string_view line);

}  // namespace ddp::launcher
