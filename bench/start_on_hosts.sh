#!/usr/bin/env bash
# How long a job of CPU ranks on several hosts takes from ddp-launch to its end: hello_all_reduce, which makes a World, reduces
# once and ends. Beside it mpirun with the same program, and mpirun with /bin/true. The hosts are namespaces of this machine
# (tests/cluster/hosts.sh), so it needs root and Open MPI; all ranks share this machine's cores. Set
# kernel.sched_autogroup_enabled=0 beforehand: with it processes yield to their own session only, as if cores were not shared.
#   bench/start_on_hosts.sh [BUILD-FOLDER] [RANKS-PER-HOST]      16 on each of 4 hosts; RUNS=N (5), CLUSTER_NODES="node-a …"
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export CLUSTER_NODES=${CLUSTER_NODES:-node-a node-b node-c node-d} RANKS=${2-${RANKS-16}}
# shellcheck source=tests/cluster/hosts.sh
source tests/cluster/hosts.sh
need openmpi-bin mpirun
begin_cluster bench/start_on_hosts.sh "${1-}"
need_built
start_agents CLUSTER=1
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
hosts=$(printf "%s:$RANKS," "${nodes[@]}")
hosts=${hosts%,}
declare -A times

# timed NAME COMMAND…: one run on the first host, in milliseconds.
timed() {
  local name=$1 begin
  shift
  begin=$(date +%s%N)
  run 120 "${nodes[0]}" "$@" >/dev/null
  exits_with 0 || { show_output; exit 1; }
  times[$name]+="$((($(date +%s%N) - begin) / 1000000)) "
}
for ((i = 0; i < ${RUNS:-5}; ++i)); do
  timed "ddp-launch, hello_all_reduce" "$launch" --host "$hosts" --no-log-files "$hello"
  timed "mpirun, hello_all_reduce" mpirun --bind-to none --host "$hosts" "$hello"
  timed "mpirun, /bin/true" mpirun --bind-to none --host "$hosts" /bin/true
done
echo "$((${#nodes[@]} * RANKS)) CPU ranks on ${#nodes[@]} hosts, $(nproc) cores, autogroups" \
  "$(cat /proc/sys/kernel/sched_autogroup_enabled 2>/dev/null || echo none); ms, by run:"
for name in "${!times[@]}"; do echo "  $name: ${times[$name]}"; done | sort
