// What an earlier job left in a log folder that is used again.
#pragma once

namespace ddp::launcher {

/// Removes from `folder`, an open one, the files of this user that have the names of ddp-launch's own and
/// that a job of `ranks` ranks does not write anew: output of higher ranks, flight records, and what mpirun
/// said, unless `by_mpirun`. Everything else stays, links too. What cannot be removed stays as well.
void remove_stale_logs(int folder, int ranks, bool by_mpirun);

}  // namespace ddp::launcher
