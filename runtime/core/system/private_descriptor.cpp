#include "core/system/private_descriptor.hpp"

#include <fcntl.h>
#include <pthread.h>

#include <mutex>

#include "ddp/core/error.hpp"

namespace ddp {

struct PrivateDescriptor::Registry {
  std::mutex mutex;
  PrivateDescriptor* first = nullptr;

  // Never destroyed: descriptors may live until the process ends.
  static Registry& get() {
    static auto* const registry = [] {
      auto* const made = new Registry;
      int const failed = ::pthread_atfork([] { get().mutex.lock(); }, [] { get().mutex.unlock(); },
                                          [] { get().close_in_child(); });
      if (failed != 0) throw_errno("preparing for forks", failed);
      return made;
    }();
    return *registry;
  }

  void close_in_child() noexcept {
    // The numbers stay taken: their owners close them.
    FileDescriptor const nowhere(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    for (PrivateDescriptor const* each = first; each != nullptr; each = each->after_) {
      if (each->get() >= 0 && ::dup3(nowhere.get(), each->get(), O_CLOEXEC) < 0) ::close(each->get());
    }
    mutex.unlock();
  }
};

PrivateDescriptor::PrivateDescriptor(std::function<FileDescriptor()> const& open)
    : registry_(Registry::get()) {
  std::lock_guard const lock(registry_.mutex);
  descriptor_ = open();
  after_ = registry_.first;
  if (after_ != nullptr) after_->before_ = this;
  registry_.first = this;
}

PrivateDescriptor::~PrivateDescriptor() {
  std::lock_guard const lock(registry_.mutex);
  (before_ == nullptr ? registry_.first : before_->after_) = after_;
  if (after_ != nullptr) after_->before_ = before_;
  descriptor_.reset();
}

}  // namespace ddp
