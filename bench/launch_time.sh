#!/bin/sh
# How long ddp-launch takes for ranks that do nothing (L13: 8 ranks of /bin/true in under 30 ms), and for any
# other command. Prints the median, the fastest and the slowest of RUNS runs, in milliseconds.
#
#   bench/launch_time.sh [build/default] [--limit MS] [--gpus N | -- ddp-launch's arguments]
#
# With --gpus the ranks are N GPUs that meet in one all-reduce (examples/hello_all_reduce): CUDA's and NCCL's start is in
# the time. With --limit the exit code is 1 when the median is above it.
set -eu

build=build/default
limit=
runs=${RUNS:-31}
if [ $# -gt 0 ] && [ "${1#-}" = "$1" ]; then
  build=$1
  shift
fi
if [ "${1-}" = --limit ]; then
  limit=$2
  shift 2
fi
case $build in /*) ;; *) build=$PWD/$build ;; esac
if [ "${1-}" = --gpus ]; then
  set -- --gpus "$(seq -s , 0 $(($2 - 1)))" -- "$build/examples/hello_all_reduce/hello_all_reduce"
fi
[ "${1-}" = -- ] && shift
[ $# -gt 0 ] || set -- --cpus 8 -- /bin/true

launch=$build/launcher/ddp-launch
if [ ! -x "$launch" ]; then
  echo "launch_time.sh: no $launch; build it first: ninja -C $build ddp-launch" >&2
  exit 66
fi
if [ "$runs" -lt 20 ]; then
  echo "launch_time.sh: RUNS=$runs: a median needs at least 20 runs" >&2
  exit 64
fi

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
cd "$directory"

# Time stamps around each run: forking date costs about 1 ms, which counts against ddp-launch.
i=0
while [ "$i" -lt "$runs" ]; do
  begin=$(date +%s%N)
  "$launch" "$@" >/dev/null
  end=$(date +%s%N)
  echo $(((end - begin) / 1000))
  i=$((i + 1))
done | sort -n >times

awk -v runs="$runs" -v limit="$limit" -v command="ddp-launch $*" '
  { us[NR] = $1 }
  END {
    if (NR != runs) { print "launch_time.sh: a run failed" > "/dev/stderr"; exit 70 }
    median = us[int((NR + 1) / 2)] / 1000
    printf "%s: median %.1f ms, fastest %.1f, slowest %.1f, %d runs\n", command, median, us[1] / 1000, us[NR] / 1000, NR
    if (limit != "" && median > limit) { printf "above the limit of %s ms\n", limit; exit 1 }
  }' times
