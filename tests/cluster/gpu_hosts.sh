#!/usr/bin/env bash
# GPU ranks of several hosts, really tried: two hosts with a GPU each (hosts.sh), NCCL over TCP between them.
#   tests/cluster/gpu_hosts.sh [BUILD-FOLDER]      as root, with two GPUs; the folder is build/default unless told
# With TRY_CPUS=1 the same with CPU ranks, to see that the script works; what needs GPUs is skipped. OTHER_NCCL names a
# folder with an NCCL of another version, WITHOUT_MPI a build folder with -DDDP_WITH_MPI=OFF, whose programs ranks by address
# then are.
# Ends with "N passed, N failed, N skipped"; exit code 1 if anything failed, 77 if nothing can be tried here.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# shellcheck source=tests/cluster/hosts.sh
source tests/cluster/hosts.sh
# shellcheck source=tests/cluster/faults.sh
source tests/cluster/faults.sh

need openmpi-bin mpirun
if [[ -z ${TRY_CPUS-} ]]; then
  command -v nvidia-smi >/dev/null || quit_with_skip "no NVIDIA driver here"
  (($(nvidia-smi --list-gpus | wc -l) >= 2)) || quit_with_skip "fewer than two GPUs here"
fi
begin_cluster tests/cluster/gpu_hosts.sh "${1-}"
need_built
without_mpi=${WITHOUT_MPI:+$(realpath "$WITHOUT_MPI")}
oracle=$build/tests/multi_process/multi_process_ddp_oracle
nccl_contract=$build/tests/gpu/gpu_nccl_communicator
step_graph=$build/tests/multi_process/multi_process_step_graph graph_rank=$build/tests/gpu/graph_rank
[[ -x $oracle ]] || quit_with_skip "$oracle is missing"
start_agents CUDA_VISIBLE_DEVICES=@
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 NCCL_SOCKET_IFNAME=eth0
unset CUDA_VISIBLE_DEVICES

kind=(cuda:0 nccl) here=(env CUDA_VISIBLE_DEVICES=0) one_host=(--gpus "0,1")
[[ -z ${TRY_CPUS-} ]] || kind=(cpu:0 mpi) one_host=(--cpus 2)
two_hosts=("$launch" --host "node-a,node-b" --no-log-files)
training=(--synthetic --limit 2000 --hidden 32 --batch 100 --epochs 2)
# needs_gpus WHAT: whether there are some; says what is skipped if not.
needs_gpus() { [[ -z ${TRY_CPUS-} ]] || { skip "$1"; return 1; }; }

echo "== each host has its own GPU (hosts.md, row 5)"
run 90 node-a "${here[@]}" "${two_hosts[@]}" "$hello"
check "hello_all_reduce counts 2" says "rank 1 of 2 on ${kind[0]} \\(${kind[1]}\\): counted 2"
check "the GPUs of the first host are not those of the second" says 'CUDA_VISIBLE_DEVICES=0 holds on this host only'
run 90 node-a "${here[@]}" mpirun --bind-to none --host node-a,node-b -x NCCL_SOCKET_IFNAME "$hello"
check "mpirun needs no ddp-launch" says "rank 1 of 2 on ${kind[0]} \\(${kind[1]}\\): counted 2"
# shellcheck disable=SC2016  # the ranks' shell expands it
run 90 node-a "${here[@]}" "${two_hosts[@]}" -x GREETING="good day" -- sh -c 'echo "$RANK: $GREETING" on $(hostname)'
check "-x passes a variable" says '1: good day on node-b'
if needs_gpus "one GPU as two hosts' (row 6)"; then
  run 90 node-a "${here[@]}" "${two_hosts[@]}" -x CUDA_VISIBLE_DEVICES=0 "$hello"
  check "is refused with the names of both" says 'ranks 0 \(on node-a\), 1 \(on node-b\) share GPU'
  check "which each rank reports: exit code 134" exits_with 134
fi
check "nothing is left" nothing_left 10

echo "== training has the digits of one host"
run 120 node-a "$launch" "${one_host[@]}" --no-log-files "$train_mlp" "${training[@]}" --log-json "$work/one.json"
run 120 node-a "${here[@]}" "${two_hosts[@]}" "$train_mlp" "${training[@]}" --log-json "$work/two.json"
check "the same parameters, bit by bit: $(tail -n 1 "$work/out")" same_parameters "$work/one.json" "$work/two.json"
run 400 node-a "${here[@]}" "${two_hosts[@]}" "$oracle" --gtest_color=no
check "the oracle: $(grep -oE '\[  PASSED  \] [0-9]+ tests' "$work/out" | head -n 1), $seconds s" exits_with 0
if needs_gpus "the contract of NcclCommunicator"; then
  run 400 node-a "${here[@]}" "${two_hosts[@]}" "$nccl_contract" --gtest_color=no
  check "the contract: $(grep -oE '\[  PASSED  \] [0-9]+ tests' "$work/out" | head -n 1), $seconds s" exits_with 0
fi
check "nothing is left" nothing_left 10

echo "== two ranks on each host, which share its GPU"
four=("$launch" --host "node-a:2,node-b:2" --no-log-files) four_on_one=("$launch" --no-log-files --cpus 4)
shared=(cpu:0 mpi)
if [[ -z ${TRY_CPUS-} ]]; then
  four+=(--gpus 0 --virtual 2) four_on_one=("$launch" --no-log-files --gpus "0,1" --virtual 2)
  shared=(cuda:1 staged)
fi
run 120 node-a "${here[@]}" "${four[@]}" "$hello"
check "hello_all_reduce counts 4" says "rank 3 of 4 on ${shared[0]} \\(${shared[1]}\\): counted 4"
run 120 node-a "${four_on_one[@]}" "$train_mlp" "${training[@]}" --log-json "$work/one.json"
run 120 node-a "${here[@]}" "${four[@]}" "$train_mlp" "${training[@]}" --log-json "$work/two.json"
check "the same parameters, bit by bit: $(tail -n 1 "$work/out")" same_parameters "$work/one.json" "$work/two.json"
run 400 node-a "${here[@]}" "${four[@]}" "$oracle" --gtest_color=no
check "the oracle: $(grep -oE '\[  PASSED  \] [0-9]+ tests' "$work/out" | head -n 1), $seconds s" exits_with 0
run 120 node-a "${here[@]}" env DDP_LOG=info "${four[@]}" -- "${own_stderr[@]}" "$work" "$training_rank" kill-in-all-reduce 3
for rank in 0 1 2; do
  check "rank $rank names the killed one" rank_says "$rank" "rank $rank reports peer_lost: .*rank 3 is gone"
done
check "exit code 137" exits_with 137
check "nothing is left" nothing_left 10

if needs_gpus "steps that are recorded and replayed"; then
  echo "== steps that are recorded and replayed (R24, C8)"
  run 120 node-a "$launch" "${one_host[@]}" --no-log-files "$train_mlp" "${training[@]}" --log-json "$work/one.json"
  run 120 node-a "${here[@]}" "${two_hosts[@]}" "$train_mlp" "${training[@]}" --graph --log-json "$work/two.json"
  check "the parameters of one host's eager steps, bit by bit" same_parameters "$work/one.json" "$work/two.json"
  run 200 node-a "${here[@]}" "${two_hosts[@]}" "$step_graph" --gtest_color=no
  check "the tests of StepGraph: $(grep -oE '\[  PASSED  \] [0-9]+ tests' "$work/out" | head -n 1), $seconds s" exits_with 0
  replaying() { run 90 node-a "${here[@]}" env DDP_TIMEOUT=5 "${two_hosts[@]}" -- "${own_stderr[@]}" "$work" "$graph_rank" "$1" 1; }
  replaying none
  check "200 replays" exits_with 0
  for fault in kill kill-while-replaying; do
    replaying "$fault"
    check "$fault: the other rank names it and the replay" rank_says 0 'peer_lost: .*replay.*rank 1 is gone|peer_lost: rank 1 is gone.*replay'
  done
  replaying stop
  check "a stopped rank is named at the deadline" rank_says 0 'timeout: rank 0 waited 5 s .*for rank 1'
  replaying skip
  check "so is one that skips a replay, or the one that waits for it" \
    grep -qsE 'timeout: rank (0 waited 5 s .*for rank 1|1 waited 5 s .*for rank 0)' "$work/rank0.err" "$work/rank1.err"
  replaying eager
  for rank in 0 1; do
    check "a step without its graph is named by rank $rank" rank_says "$rank" '^mismatch: .*replay'
  done
  check "nothing is left" nothing_left 10
fi

if needs_gpus "hosts that do not fit each other"; then
  echo "== hosts that do not fit each other"
  run 90 node-a "${here[@]}" "${two_hosts[@]}" -x NCCL_SOCKET_IFNAME=nothing7 "$hello"
  check "an interface that is not there" says 'cannot take part: on node-[ab]: NCCL_SOCKET_IFNAME=nothing7 admits none'
  # shellcheck disable=SC2016  # the ranks' shell expands it
  run 90 node-a "${here[@]}" "${two_hosts[@]}" -- \
    sh -c '[ "$RANK" = 0 ] || export CUDA_VISIBLE_DEVICES=; exec "$0"' "$hello"
  check "a host without GPUs" says 'rank 0 \(on node-a\) on cuda:0 .*, rank 1 \(on node-b\) on cpu:0'
  run 90 node-a "${here[@]}" "$launch" --host node-a:1,node-b:2 --no-log-files "$hello"
  check "more ranks than GPUs on one host" says 'node-b: 2 ranks are to run here, for 1 GPU;'
  if [[ -n ${OTHER_NCCL-} ]]; then
    # shellcheck disable=SC2016  # the ranks' shell expands it
    run 90 node-a "${here[@]}" "${two_hosts[@]}" -- \
      sh -c '[ "$RANK" = 0 ] || export LD_LIBRARY_PATH="$1:$LD_LIBRARY_PATH"; exec "$0"' "$hello" "$OTHER_NCCL"
    check "another NCCL" says 'rank 0 \(on node-a\) has NCCL [0-9.]+, rank 1 \(on node-b\) has NCCL [0-9.]+;'
  else
    skip "another NCCL on one host: OTHER_NCCL names no folder of one"
  fi
  check "nothing is left" nothing_left 10
fi

# by_address COMMAND…: on each host a rank that knows rank 0's address and nothing else. No launcher, no mpirun. What rank 1
# says is in second.
by_address() {
  local address=(env "MASTER_ADDR=${node_address[node-a]}" MASTER_PORT=29500 WORLD_SIZE=2 DDP_TIMEOUT=10)
  # A stopped rank ends with its time limit.
  on node-b timeout --kill-after=1 30 "${address[@]}" RANK=1 CUDA_VISIBLE_DEVICES=1 "$@" >"$work/second" 2>&1 </dev/null &
  local second=$!
  run 90 node-a "${address[@]}" RANK=0 CUDA_VISIBLE_DEVICES=0 "$@"
  second_status=0
  wait "$second" || second_status=$?
}
second_says() { grep -qE -- "$1" "$work/second" || { sed 's/^/    | [1] /' "$work/second"; return 1; }; }

echo "== by address (C2, C3), the programs of ${without_mpi:-$build}"
for name in launch hello train_mlp training_rank; do
  declare "own_$name=${!name/#$build/${without_mpi:-$build}}"
done
if needs_gpus "GPU ranks of two hosts without MPI"; then
  by_address "$own_hello"
  check "hello_all_reduce counts 2" says 'rank 0 of 2 on cuda:0 \(nccl\): counted 2'
  check "so does the other rank" second_says 'rank 1 of 2 on cuda:0 \(nccl\): counted 2'
  by_address "$own_train_mlp" "${training[@]}" --log-json "$work/two.json"
  run 120 node-a "$launch" "${one_host[@]}" --no-log-files "$train_mlp" "${training[@]}" --log-json "$work/one.json"
  check "the parameters of one host, bit by bit: $(tail -n 1 "$work/out")" same_parameters "$work/one.json" "$work/two.json"
  by_address "$own_training_rank" kill-in-all-reduce 1
  check "a killed rank is named by the other one" says 'peer_lost: rank 1 is gone .*on node-b'
  check "which exits with an error: $status" [ "$status" != 0 ]
  by_address "$own_training_rank" stop 1
  check "a stopped rank is named at the deadline" says 'timeout: rank 0 waited 10 s in .* for rank 1'
  for how in skip graph; do
    by_address env DDP_MIN_RANKS=1 "$build/tests/gpu/rebuild_rank" "$how" 7 1 "$work"
    check "rank 0 goes on without a killed rank of another host (R26): $how" says 'goes on after step'
    check "and has no part of a broken step" says 'all weights are right'
    check "exit codes 0 and 137" [ "$status $second_status" = "0 137" ]
  done
  check "nothing is left" nothing_left 10
else
  by_address "$own_hello"
  check "CPU ranks there need MPI, and say so: rank 0" says 'exchange data through MPI'
  check "rank 1 too" second_says 'exchange data through MPI'
fi
try_bad_input
try_faults
end_cluster
