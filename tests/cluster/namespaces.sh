#!/usr/bin/env bash
# Jobs of several hosts, really tried: two hosts with an ssh server each (hosts.sh), mpirun across them.
#   tests/cluster/namespaces.sh [BUILD-FOLDER]      as root; the folder is build/default unless told
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
end_cluster
