// Who binds the gradients of which parameters of this process.
#pragma once

#include <atomic>
#include <cstddef>
#include <span>
#include <string>

#include "ddp/reducer/parameter.hpp"

namespace ddp {

/// The parameters of one Reducer. A program writes a gradient where it was bound last. So of two Reducers
/// that have the same values, one that binds gradients and came last is the only one that can average them.
class ValueClaim {
 public:
  /// Takes these parameters; with `binds`, also from those that had them before.
  ValueClaim(std::string name, std::span<Parameter const> parameters, bool binds);
  ~ValueClaim();
  ValueClaim(ValueClaim const&) = delete;
  ValueClaim& operator=(ValueClaim const&) = delete;

  /// The values of a parameter have moved. If another object has taken the old memory since, nothing is lost.
  void move(TensorView const& from, TensorView const& to);
  /// Throws Error(invalid_state) if another object has taken any of the parameters. Any thread.
  void check() const {
    if (lost_ > 0) throw_lost();
  }

 private:
  struct Living;
  static Living& living();
  void take(TensorView const& value, std::string const* name);
  [[noreturn]] void throw_lost() const;

  std::string name_;
  bool binds_;
  std::atomic<std::size_t> lost_ = 0;  // ranges that others have taken
  std::string by_whom_;                // the last one, and who has it; guarded by the lock of living()
};

}  // namespace ddp
