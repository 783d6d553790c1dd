#include "parallel/world/terminate_report.hpp"

#include <sysexits.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <stdexcept>

#include "core/system/own_process.hpp"
#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"

namespace ddp {
namespace {

struct Reporter {
  OwnProcess maker;  // of the World
  std::mutex mutex;
  std::weak_ptr<ControlPlane> control;
  std::terminate_handler previous = nullptr;
};

// Never destroyed: exceptions may be thrown while the program's globals are destroyed.
Reporter& reporter() {
  static auto* const the_one = new Reporter;
  return *the_one;
}

/// False where nobody is to be told.
bool tell(std::exception const& error) noexcept {
  try {
    std::shared_ptr<ControlPlane> control;
    {
      std::lock_guard const lock(reporter().mutex);
      control = reporter().control.lock();
    }
    if (!control) return false;
    log(LogLevel::error, text("rank ", control->rank(), " ends by an uncaught exception: ", error.what()));
    control->report_error(failure_of(error));
    return true;
  } catch (...) {  // nothing is left to be done with it
    return false;
  }
}

[[noreturn]] void report_and_terminate() noexcept {
  std::exception_ptr const current = std::current_exception();
  if (current && reporter().maker.is_this()) {
    try {
      std::rethrow_exception(current);
    } catch (BadEnvironment const& error) {
      if (!tell(error)) log(LogLevel::error, error.what());
      std::fflush(nullptr);
      ::_exit(EX_USAGE);
    } catch (std::exception const& error) {
      tell(error);
    } catch (...) {
      tell(std::runtime_error("an exception that is no std::exception"));
    }
  }
  if (reporter().previous != nullptr) reporter().previous();
  std::abort();
}

}  // namespace

void handle_uncaught_exceptions() {
  Reporter& one = reporter();
  std::lock_guard const lock(one.mutex);
  if (!one.maker.is_this()) one.control.reset();  // of the process that forked this one
  one.maker = {};
  if (std::get_terminate() != &report_and_terminate) one.previous = std::set_terminate(&report_and_terminate);
}

void report_uncaught_exceptions_to(std::weak_ptr<ControlPlane> control) {
  handle_uncaught_exceptions();
  std::lock_guard const lock(reporter().mutex);
  reporter().control = std::move(control);
}

}  // namespace ddp
