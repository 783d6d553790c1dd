// A forked child has copies of its parent's objects, but none of their threads, and is no rank.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <memory>

namespace ddp {

/// Remembers the process that made it.
class OwnProcess {
 public:
  [[nodiscard]] bool is_this() const noexcept { return ::getpid() == pid_; }

 private:
  pid_t pid_ = ::getpid();
};

/// For owners: deletes an object that this process made. Leaves alone what its parent made: a child cannot
/// join those threads, and other ranks would take the end of the object for the end of the parent.
struct DeleteOwn {
  OwnProcess maker{};
  template <class T>
  void operator()(T* object) const noexcept {
    if (maker.is_this()) delete object;
  }
};

/// For the destructor of an owner without DeleteOwn; `object` has a member `maker`.
template <class T>
void leave_to_maker(std::unique_ptr<T>& object) noexcept {
  if (object && !object->maker.is_this()) static_cast<void>(object.release());
}

}  // namespace ddp
