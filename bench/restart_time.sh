#!/bin/sh
# How long a job stands still when a rank is killed (L10): from SIGKILL to a group of new ranks that have restored the
# last checkpoint, and train. Prints the median, the fastest and the slowest of RUNS runs, in milliseconds.
#
#   bench/restart_time.sh [build/default] [ranks]
set -eu

build=${1:-build/default}
ranks=${2:-2}
runs=${RUNS:-11}
case $build in /*) ;; *) build=$PWD/$build ;; esac
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
cd "$directory"

i=0
while [ "$i" -lt "$runs" ]; do
  rm -rf checkpoints
  "$build/launcher/ddp-launch" --cpus "$ranks" --max-restarts 1 --no-log-files --no-prefix -- \
    "$build/examples/train_mlp/train_mlp" --synthetic --limit 5000 --epochs 10000 --checkpoint checkpoints --checkpoint-every 50 \
    --resume >out 2>err &
  launcher=$!
  until [ -e checkpoints/latest ]; do sleep 0.01; done
  rank=$(pgrep -P "$launcher" -x train_mlp | tail -n 1)
  [ -n "$rank" ] || { echo "restart_time.sh: no rank of $launcher runs" >&2; exit 70; }
  begin=$(date +%s%N)
  kill -KILL "$rank"
  until grep -q '^resumed from' out; do sleep 0.001; done
  end=$(date +%s%N)
  kill -TERM "$launcher"
  wait "$launcher" || true
  echo $(((end - begin) / 1000)) >>times
  i=$((i + 1))
done
sort -n times | awk -v ranks="$ranks" '
  { us[NR] = $1 }
  END {
    printf "%d ranks, from SIGKILL to restored: median %.0f ms, fastest %.0f, slowest %.0f, %d runs\n", ranks,
      us[int((NR + 1) / 2)] / 1000, us[1] / 1000, us[NR] / 1000, NR
  }'
