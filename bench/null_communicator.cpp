#include "null_communicator.hpp"

#include <algorithm>

namespace ddp::bench {

std::unique_ptr<Communicator> NullCommunicator::split_off(std::span<Rank const> ranks) {
  auto const position = std::find(ranks.begin(), ranks.end(), rank());
  if (position == ranks.end()) return nullptr;
  return std::make_unique<NullCommunicator>(Rank(static_cast<int>(position - ranks.begin())),
                                            static_cast<int>(ranks.size()));
}

}  // namespace ddp::bench
