#include "ddp/core/ids.hpp"

#include <array>

#include "ddp/core/text.hpp"

namespace ddp {

std::vector<Rank> all_ranks(int size) {
  std::vector<Rank> ranks;
  for (int r = 0; r < size; ++r) ranks.emplace_back(r);
  return ranks;
}

std::string to_string(Bytes bytes) {
  static constexpr std::array kUnits{"B", "KiB", "MiB", "GiB", "TiB"};
  auto amount = static_cast<double>(bytes.value);
  std::size_t unit = 0;
  while (amount >= 1024.0 && unit + 1 < kUnits.size()) {
    amount /= 1024.0;
    ++unit;
  }
  return text(amount, " ", kUnits[unit]);
}

}  // namespace ddp
