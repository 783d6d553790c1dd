#include "reducer/parts/uneven.hpp"

#include <array>
#include <cstdint>
#include <vector>

#include "ddp/core/error.hpp"
#include "ddp/core/text.hpp"

namespace ddp {

bool Uneven::any_has_data() {
  has_data_.fetch();
  return has_data_.by_any(0);
}

void Uneven::head() {
  has_data_.exchange(std::array{static_cast<std::uint8_t>(of_.step.kind == StepKind::joined ? 0 : 1)});
}

// Every rank knows the same, so every rank throws the same error.
void Uneven::verdict() {
  if (!refuses_) return;
  has_data_.fetch();
  std::vector<Rank> without;
  for (std::size_t r = 0; r < of_.ranks.size(); ++r) {
    if (!has_data_.by(r, 0)) without.push_back(of_.ranks[r]);
  }
  if (without.empty()) return;
  of_.ranks.let_others_read();
  throw Error(ErrorCode::invalid_state,
              text(name_ranks(without), " called join() before synchronised step ", of_.step.number,
                   ", for which others have data: give every rank as many batches, or set Options::uneven to "
                   "divide_by_live or divide_by_all"));
}

}  // namespace ddp
