// Makes system calls on files fail, or end the process, at a chosen moment.
#pragma once

namespace ddp::testing {

/// Takes the place of open (that makes files), pwrite, ftruncate, fsync, rename, mkdir and symlink, openat
/// and renameat, in the program that links file_faults.cpp. Counted over all threads.
enum class FileFault {
  kill,   ///< SIGKILL before the call
  half,   ///< a write writes half of its bytes, then SIGKILL; other calls: as kill
  error,  ///< the call fails with the errno given
};

/// From now on the `nth` call (from 1) meets the fault.
void arm_file_fault(FileFault fault, int nth, int error_number = 0);
/// Returns whether the fault has happened.
bool disarm_file_fault();

}  // namespace ddp::testing
