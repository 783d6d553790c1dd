#!/usr/bin/env bash
# Jobs of several hosts, really tried: two hosts with an ssh server each (hosts.sh), mpirun across them.
#   tests/cluster/namespaces.sh [BUILD-FOLDER]      as root; the folder is build/default unless told
# LATE_SECONDS=60 says how late a rank starts in the jobs that wait for one.
# Ends with "N passed, N failed, N skipped"; exit code 1 if anything failed, 77 if nothing can be tried here.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# shellcheck source=tests/cluster/hosts.sh
source tests/cluster/hosts.sh
# shellcheck source=tests/cluster/faults.sh
source tests/cluster/faults.sh

need openssh-server sshd
need openssh-client ssh ssh-keygen
need openmpi-bin mpirun
begin_cluster tests/cluster/namespaces.sh "${1-}"
need_built
start_ssh
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

printf 'node-a slots=1\nnode-b slots=1\n' >"$work/hostfile"
# shellcheck disable=SC2034  # for faults.sh
kind=(cpu:0 mpi) here=()
two_hosts=("$launch" --hostfile "$work/hostfile" --no-log-files)
training=(--synthetic --limit 2000 --hidden 32 --batch 100 --epochs 2)

# begin_late NAME COMMAND…: a job on one host of which a rank starts late, beside all that follows. It is on neither node,
# where it would be found as left over. end_late looks how it ended.
late_seconds=${LATE_SECONDS:-60}
declare -A late_job
begin_late() {
  local name=$1
  shift
  mkdir "$work/$name"
  {
    local begin=$SECONDS code=0
    timeout --kill-after=5 "$((late_seconds + 60))" env CUDA_VISIBLE_DEVICES= TMPDIR="$work/$name" "$@" \
      >"$work/$name/out" 2>"$work/$name/err" </dev/null || code=$?
    echo "$code $((SECONDS - begin))" >"$work/$name/end"
  } &
  late_job[$name]=$!
}
end_late() {
  local name=$1
  wait "${late_job[$name]}"
  cp "$work/$name/"{out,err} "$work"
  read -r status seconds <"$work/$name/end"
  check "$name: both ranks count 2, after $seconds s" says 'rank 0 of 2 on cpu:0 .*: counted 2'
  check "$name: after the late one has started, and without an error" \
    test "$status" -eq 0 -a "$seconds" -ge "$late_seconds" -a ! -s "$work/err"
}
for late in 0 1; do
  # shellcheck disable=SC2016  # those shells expand it
  begin_late "by-address-rank-$late" env WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT="2950$late" sh -c \
    'env RANK=$((1 - $1)) "$0" & sleep "$2"; RANK=$1 "$0" && wait $!' "$hello" "$late" "$late_seconds"
done
# shellcheck disable=SC2016
begin_late mpirun-rank-1 mpirun --bind-to none -n 2 sh -c \
  '[ "$OMPI_COMM_WORLD_RANK" = 0 ] || sleep "$1"; exec "$0"' "$hello" "$late_seconds"

echo "== ranks of two hosts (L3, L5)"
# shellcheck disable=SC2016  # the ranks' shell expands it
run 60 node-a "${two_hosts[@]}" -- sh -c 'echo rank $RANK on $(hostname)'
check "each rank is on its host" says '^\[1\] rank 1 on node-b$'
run 60 node-a env DDP_LOG=info "${two_hosts[@]}" "$hello"
check "hello_all_reduce counts 2" says 'rank 1 of 2 on cpu:0 \(mpi\): counted 2'
check "it says why it uses MPI" says 'communicator: mpi, 2 ranks, cpu:0 \(CPU ranks of 2 hosts\)'
run 60 node-a "$launch" --host node-a:2,node-b:2 --nnodes 2 --no-log-files "$hello"
check "--host and --nnodes: 4 ranks" says 'rank 3 of 4 on cpu:0 \(mpi\): counted 4'
run 60 node-a mpirun --bind-to none --host node-a,node-b "$hello"
check "mpirun needs no ddp-launch" says 'rank 1 of 2 on cpu:0 \(mpi\): counted 2'
run 60 node-a "$launch" --host node-a,node-x --no-log-files "$hello"
check "a host that there is not: named" says 'node-x'
check "the job has failed, with ssh's exit code" exits_with 255
check "nothing is left" nothing_left 5

echo "== the contract of communicators, over TCP between hosts"
for ranks in 1 2; do
  run 300 node-a "$launch" --host "node-a:$ranks,node-b:$ranks" --no-log-files "$contract" \
    --gtest_color=no --gtest_filter="*KeepsTheContract*"
  check "$((2 * ranks)) ranks: $(grep -oE '\[  PASSED  \] [0-9]+ tests' "$work/out" | head -n 1), $seconds s" \
    exits_with 0
done
check "nothing is left" nothing_left 5

echo "== training has the digits of one host"
run 60 node-a "$launch" --cpus 2 --no-log-files "$train_mlp" "${training[@]}" --log-json "$work/one.json"
run 60 node-a "${two_hosts[@]}" "$train_mlp" "${training[@]}" --log-json "$work/two.json"
check "the same parameters, bit by bit: $(tail -n 1 "$work/out")" same_parameters "$work/one.json" "$work/two.json"

try_bad_input
try_faults

echo "== a rank that starts $late_seconds s late on one host: the jobs that were begun at the start"
for name in by-address-rank-0 by-address-rank-1 mpirun-rank-1; do end_late "$name"; done
end_cluster
