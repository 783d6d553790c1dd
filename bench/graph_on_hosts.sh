#!/usr/bin/env bash
# A training step of two GPUs on two hosts, eager and replayed from a CUDA graph (train_mlp --graph), by turns, and both on one
# host. The hosts are namespaces of this machine (tests/cluster/hosts.sh), with NCCL over TCP between them, so it needs root,
# Open MPI and two GPUs.
#   bench/graph_on_hosts.sh [BUILD-FOLDER] [HIDDEN]      layers of 256,128; RUNS=N (5)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=tests/cluster/hosts.sh
source tests/cluster/hosts.sh
need openmpi-bin mpirun
begin_cluster bench/graph_on_hosts.sh "${1-}"
need_built
start_agents CUDA_VISIBLE_DEVICES=@
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
hidden=${2-256,128} batch=512 epochs=4
training=("$train_mlp" --synthetic --limit 20000 --batch "$batch" --epochs "$epochs" --hidden "$hidden")
declare -A times

# timed NAME COMMAND…: one training; microseconds a step of its last epoch.
timed() {
  local name=$1 rate
  shift
  run 120 node-a env "CUDA_VISIBLE_DEVICES=${gpus:-0}" "$@" >/dev/null
  exits_with 0 || { show_output; exit 1; }
  rate=$(grep -oE "epoch $epochs/$epochs .*samples/s" "$work/out" "$work/err" | grep -oE '[0-9]+ samples/s' | grep -oE '[0-9]+')
  times[$name]+="$((batch * 1000000 / rate)) "
}
for ((i = 0; i < ${RUNS:-5}; ++i)); do
  for graph in "" --graph; do
    NCCL_SOCKET_IFNAME=eth0 timed "two hosts ${graph:-eager}" "$launch" --host node-a,node-b --no-log-files "${training[@]}" $graph
    gpus=0,1 timed "one host ${graph:-eager}" "$launch" --gpus 0,1 --no-log-files "${training[@]}" $graph
  done
done
echo "2 GPUs, layers of $hidden, batches of $batch; microseconds a step, by run:"
for name in "${!times[@]}"; do echo "  $name: ${times[$name]}"; done | sort
