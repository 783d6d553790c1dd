#include "reducer/memory/value_claim.hpp"

#include <iterator>
#include <map>
#include <mutex>
#include <utility>

#include "ddp/core/error.hpp"
#include "ddp/core/text.hpp"

namespace ddp {

// Ranges of memory that do not overlap, by their beginnings.
struct ValueClaim::Living {
  struct Range {
    std::byte const* end = nullptr;
    ValueClaim* owner = nullptr;
  };
  std::mutex mutex;
  std::map<std::byte const*, Range> ranges;
};

// Never destroyed: objects of a program may outlive it.
ValueClaim::Living& ValueClaim::living() {
  static auto* const all = new Living();
  return *all;
}

ValueClaim::ValueClaim(std::string name, std::span<Parameter const> parameters, bool binds)
    : name_(std::move(name)), binds_(binds) {
  std::lock_guard const lock(living().mutex);
  for (Parameter const& parameter : parameters) take(parameter.value, &parameter.name);
}

ValueClaim::~ValueClaim() {
  std::lock_guard const lock(living().mutex);
  std::erase_if(living().ranges, [&](auto const& range) { return range.second.owner == this; });
}

void ValueClaim::move(TensorView const& from, TensorView const& to) {
  std::lock_guard const lock(living().mutex);
  auto& ranges = living().ranges;
  auto const old = ranges.find(static_cast<std::byte const*>(from.data));
  if (old != ranges.end() && old->second.owner == this) {
    ranges.erase(old);
  } else if (lost_ > 0) {
    --lost_;
  }
  take(to, nullptr);
}

// With a null `name` the owner before does not lose anything: it has left this memory, and will call move().
void ValueClaim::take(TensorView const& value, std::string const* name) {
  if (value.count() == 0) return;
  auto const* const begin = static_cast<std::byte const*>(value.data);
  auto const* const end = begin + value.bytes();
  auto& ranges = living().ranges;
  auto each = ranges.lower_bound(begin);
  if (each != ranges.begin() && std::prev(each)->second.end > begin) --each;
  while (each != ranges.end() && each->first < end) {
    ValueClaim& owner = *each->second.owner;
    if (&owner == this || !binds_) return;  // tied, or another one's
    if (name != nullptr) {
      owner.by_whom_ = text("parameter \"", *name, "\" to ", name_);
      ++owner.lost_;
    }
    each = ranges.erase(each);
  }
  ranges.emplace(begin, Living::Range{end, this});
}

void ValueClaim::throw_lost() const {
  std::lock_guard const lock(living().mutex);
  throw Error(ErrorCode::invalid_state,
              text(name_, " has lost ", by_whom_,
                   ", made later of the same values: gradients are written there, and "
                   "averages of this one would not reach the model. Give a parameter to one "
                   "DistributedDataParallel only, and destroy it before the model gets another"));
}

}  // namespace ddp
