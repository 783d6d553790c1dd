// How the ranks of a group wait for each other.
#pragma once

#include <chrono>
#include <string>

namespace ddp {

struct Waiting {
  std::chrono::milliseconds timeout{0};  ///< of an operation
  std::string timeout_setting;           ///< what a program sets to change that, for messages
  bool may_spin = false;                 ///< this rank's core is its own (have_own_cores())
};

}  // namespace ddp
