#!/bin/sh
# Stands in for ssh where a test has hosts that are none: local_agent.sh HOST COMMAND… runs the command here, with a
# temporary directory and a session of its own, as a host has.
TMPDIR="${TMPDIR:?}/../ompi-$1"  # beside that of the job, whose test wants it empty
export TMPDIR
mkdir -p "$TMPDIR"
shift
exec setsid --wait /bin/sh -c "$*"
