// A file descriptor that stays in this process.
#pragma once

#include <functional>

#include "core/system/file_descriptor.hpp"

namespace ddp {

/// Processes that are forked without `exec` do not keep what it stands for: a lock would outlive its owner,
/// and a connection would not close when its owner ends. In a child the number stays taken, by /dev/null. Any
/// thread.
class PrivateDescriptor {
 public:
  /// No child begins between the opening and the registration. Throws what `open` does.
  explicit PrivateDescriptor(std::function<FileDescriptor()> const& open);
  explicit PrivateDescriptor(FileDescriptor&& opened)
      : PrivateDescriptor([&] { return std::move(opened); }) {}
  ~PrivateDescriptor();
  PrivateDescriptor(PrivateDescriptor const&) = delete;
  PrivateDescriptor& operator=(PrivateDescriptor const&) = delete;

  [[nodiscard]] int get() const noexcept { return descriptor_.get(); }
  [[nodiscard]] explicit operator bool() const noexcept { return static_cast<bool>(descriptor_); }

 private:
  struct Registry;
  Registry& registry_;
  FileDescriptor descriptor_;
  // A list without memory of its own, for the child.
  PrivateDescriptor* before_ = nullptr;
  PrivateDescriptor* after_ = nullptr;
};

}  // namespace ddp
