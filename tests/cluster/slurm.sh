#!/usr/bin/env bash
# Slurm, really tried: two hosts (hosts.sh) with munged and slurmd each, slurmctld on the first, all from Debian's
# packages, with a key and settings of their own. With two GPUs, each host has one of them.
#   tests/cluster/slurm.sh [BUILD-FOLDER]      as root; the folder is build/default unless told
# Ends with "N passed, N failed, N skipped"; exit code 1 if anything failed, 77 if nothing can be tried here.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# shellcheck source=tests/cluster/hosts.sh
source tests/cluster/hosts.sh

need munge munged
need slurmctld slurmctld
need slurmd slurmd
need slurm-client srun sbatch scontrol scancel
need openmpi-bin mpirun
begin_cluster tests/cluster/slurm.sh "${1-}"
need_built

# start NODE WHAT COMMAND…: a daemon of that host.
start() {
  local node=$1 what=$2
  shift 2
  on "$node" "$@" >"$work/$node.$what" 2>&1 || {
    tail -n 20 "$work/$node.$what" "$work"/slurm*.log
    quit_with_skip "$what does not start here"
  }
}

# Why Slurm cannot be given a GPU for each host; nothing if it can.
why_no_gpus() {
  if ! command -v nvidia-smi >/dev/null; then
    echo "no NVIDIA driver here"
  elif (($(nvidia-smi --list-gpus | wc -l) < 2)); then
    echo "fewer than two GPUs here"
  elif [[ ! -c /dev/nvidia0 || ! -c /dev/nvidia1 ]]; then
    echo "/dev/nvidia0 and /dev/nvidia1 are not both here"
  fi
}
no_gpus=$(why_no_gpus)

start_slurm() {
  head -c 1024 /dev/urandom >"$work/munge.key"
  chmod 400 "$work/munge.key"
  cat >"$work/slurm.conf" <<END
ClusterName=two
SlurmctldHost=node-a
SlurmUser=root
AuthType=auth/munge
StateSaveLocation=/run/slurmctld
SlurmdSpoolDir=/run/slurmd
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile=$work/slurmctld.log
SlurmdLogFile=$work/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=5
TaskProlog=$work/task_prolog
NodeName=node-a,node-b CPUs=4 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
END
  if [[ -z $no_gpus ]]; then
    sed -i 's/^NodeName=.*/GresTypes=gpu\n& Gres=gpu:1/' "$work/slurm.conf"
    printf 'NodeName=node-%s Name=gpu File=/dev/nvidia%s\n' a 0 b 1 >"$work/gres.conf"
  fi
  # Slurm counts each host's GPUs from 0, but these hosts are one machine. A task without GPUs is to see none.
  cat >"$work/task_prolog" <<'END'
#!/bin/sh
gpu=
if [ -n "$SLURM_STEP_GPUS" ]; then
  case $SLURMD_NODENAME in node-a) gpu=0 ;; *) gpu=1 ;; esac
fi
echo "export CUDA_VISIBLE_DEVICES=$gpu"
END
  chmod +x "$work/task_prolog"
  # slurmd wants a plugin for cgroups also where nothing uses them; this one touches nothing then.
  printf 'CgroupPlugin=cgroup/v1\nCgroupMountpoint=/run/cgroup\n' >"$work/cgroup.conf"
  export SLURM_CONF=$work/slurm.conf
  local node end
  for node in "${nodes[@]}"; do
    on "$node" mkdir -p -m 755 /run/munge /run/slurmctld /run/slurmd
    start "$node" munged munged --force --key-file="$work/munge.key" --pid-file=/run/munge/pid \
      --log-file="$work/$node.munge" --seed-file=/run/munge/seed
  done
  start node-a slurmctld slurmctld
  for node in "${nodes[@]}"; do start "$node" slurmd slurmd -N "$node"; done
  end=$((SECONDS + 30))
  until [[ $(on node-a sinfo --noheader --format='%D %t' 2>"$work/err") == "2 idle" ]]; do
    if ((SECONDS >= end)); then
      on node-a sinfo || true
      tail -n 20 "$work"/slurm*.log
      quit_with_skip "the hosts of Slurm do not become idle here"
    fi
    sleep 0.5
  done
}
daemons="|munged|slurmctld|slurmscriptd|slurmd"
start_slurm
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 CUDA_VISIBLE_DEVICES=

# job SECONDS PROGRAM…: sbatch with the file of deploy/, a task on each host; waits for its end, and shows its output as
# the job's.
gpus=0  # of each host
job() {
  local limit=$1
  shift
  rm -f "$work/job.out"
  run "$limit" node-a sbatch --wait --output="$work/job.out" --nodes=2 --ntasks-per-node=1 --cpus-per-task=1 \
    --gpus-per-node="$gpus" deploy/ddp.sbatch "$@"
  [[ ! -e $work/job.out ]] || cat "$work/job.out" >>"$work/out"
}

# shellcheck disable=SC2317  # check calls it
queue_empties() {
  local try
  for ((try = 0; try < 100; ++try)); do
    [[ -n $(on node-a squeue --noheader) ]] || return 0
    sleep 0.2
  done
  return 1
}

echo "== srun without MPI's help (L5)"
# shellcheck disable=SC2016  # the tasks' shell expands it
run 60 node-a srun --nodes=2 --ntasks=2 sh -c 'echo task $SLURM_PROCID of $SLURM_NTASKS on $(hostname)'
check "each task is on its host" says 'task 1 of 2 on node-b'
run 60 node-a srun --nodes=1 --ntasks=1 "$hello"
check "one task needs nothing" says 'counted 1'
run 60 node-a srun --mpi=pmi2 --nodes=2 --ntasks=2 "$hello"
check "--mpi=pmi2: two tasks that cannot meet do not start two worlds" exits_with 1
check "--mpi=pmi2: rank 0 names --mpi=pmix" says 'warning: .* started these 2 ranks without PMIx.*--mpi=pmix'
run 60 node-a srun --mpi=none --nodes=1 --ntasks=2 "$hello"
check "--mpi=none: two tasks of one host meet at the step's first host (C2)" says 'rank 1 of 2 on cpu:0 \(shm\): counted 2'
run 60 node-a srun --mpi=none --nodes=2 --ntasks=2 "$hello"
check "--mpi=none: CPU ranks of two hosts meet there, and say that they need MPI (C3)" says 'CPU ranks of 2 hosts exchange data through MPI'
run 60 node-a env DDP_INIT_TIMEOUT=5 srun --mpi=none --nodes=2 --ntasks=2 "$training_rank" no-init 1
check "--mpi=none: a rank that does not come is named" says 'missing: 1'

echo "== going on after a lost rank (R26)"
# surviving LOST SRUN-OPTION…: ten seconds of training, in which that rank's process is killed after three.
surviving() {
  local lost=$1
  shift
  # shellcheck disable=SC2016  # the tasks' shell expands it
  run 60 node-a env DDP_MIN_RANKS=2 srun --kill-on-bad-exit=0 "$@" sh -c '
    [ "$SLURM_PROCID" != "$0" ] || exec timeout --foreground --signal=KILL 3 "$@"; exec "$@"' "$lost" \
    "$train_mlp" --synthetic --limit 16000 --hidden 64 --batch 64 --epochs 60 --survive
}
surviving 2 --mpi=none --nodes=1 --ntasks=4
check "the others go on without task 2, and end well" says 'final: test accuracy [0-9.]+, 3 ranks'
check "srun's exit code is task 2's" exits_with 137
surviving 0 --mpi=none --nodes=1 --ntasks=4
check "task 0 serves: each of the others says that its loss ends the job" \
  test 3 -eq "$(grep -cE 'error: rank [123] ends .* rank 0 died: .*no rank can go on' "$work/err")"
surviving 2 --mpi=none --nodes=2 --ntasks=4
check "CPU ranks of two hosts are told before they train" says 'whatever DDP_MIN_RANKS says'

if ! on node-a srun --mpi=list 2>&1 | grep -qw pmix; then
  skip "srun --mpi=pmix, and what needs it: this Slurm has no such plugin"
  end_cluster
fi
echo "== srun --mpi=pmix (L5)"
run 60 node-a srun --mpi=pmix --nodes=2 --ntasks=2 "$hello"
check "two hosts meet" says 'rank 1 of 2 on cpu:0 \(mpi\): counted 2'
run 60 node-a srun --mpi=pmix --nodes=1 --ntasks=2 "$hello"
check "two tasks of one host use shared memory" says 'rank 1 of 2 on cpu:0 \(shm\): counted 2'
surviving 2 --mpi=pmix --nodes=1 --ntasks=4
check "with DDP_MIN_RANKS they meet without MPI, and go on without task 2 (R26)" \
  says 'final: test accuracy [0-9.]+, 3 ranks'
run 300 node-a srun --mpi=pmix --nodes=2 --ntasks=4 "$contract" --gtest_color=no --gtest_filter='*KeepsTheContract*'
check "the contract of communicators, 4 ranks: $(grep -oE '\[  PASSED  \] [0-9]+ tests' "$work/out" | head -n 1)" \
  exits_with 0

echo "== sbatch deploy/ddp.sbatch"
# shellcheck disable=SC2016  # the tasks' shell expands it
(ulimit -S -l 64 && job 60 sh -c 'echo task $SLURM_PROCID may lock $(ulimit -l) of $(ulimit -H -l)')
check "a low limit for locked memory where sbatch is typed is not the tasks'" \
  says "task 1 may lock $(ulimit -H -l) of $(ulimit -H -l)"
training=(--synthetic --limit 2000 --hidden 32 --batch 100 --epochs 2)
run 60 node-a "$launch" --cpus 2 --no-log-files "$train_mlp" "${training[@]}" --log-json "$work/one.json"
job 120 "$train_mlp" "${training[@]}" --log-json "$work/two.json"
check "the job ends well" exits_with 0
check "the parameters are those of one host, bit by bit: $(grep final "$work/out")" \
  same_parameters "$work/one.json" "$work/two.json"
check "DDP_LOG says who started it" says 'rank 1 of 2 \(srun\) on cpu:0, backend mpi'

echo "== GPU ranks"
if [[ -n $no_gpus ]]; then
  skip "srun and sbatch with a GPU for each host: $no_gpus"
else
  export NCCL_SOCKET_IFNAME=eth0
  run 90 node-a srun --mpi=pmix --nodes=2 --ntasks-per-node=1 --gpus-per-node=1 "$hello"
  check "hello_all_reduce counts 2" says 'rank 1 of 2 on cuda:0 \(nccl\): counted 2'
  run 120 node-a env -u CUDA_VISIBLE_DEVICES "$launch" --gpus 0,1 --no-log-files "$train_mlp" "${training[@]}" \
    --log-json "$work/one_gpu_host.json"
  gpus=1
  job 120 "$train_mlp" "${training[@]}" --log-json "$work/two_gpu_hosts.json"
  gpus=0
  check "training ends well" exits_with 0
  check "on GPUs" says 'rank 1 of 2 \(srun\) on cuda:0, backend nccl'
  check "the parameters are those of one host, bit by bit: $(grep final "$work/out")" \
    same_parameters "$work/one_gpu_host.json" "$work/two_gpu_hosts.json"
fi

echo "== a killed rank (F1)"
job 60 "$training_rank" kill-in-all-reduce 1
check "the job has failed, with exit code $status" test "$status" -ne 0 -a "$status" -ne 124
check "Slurm names the task, its host and the signal" says 'srun: error: node-b: task 1: Killed'
check "after $seconds s, not after the 30 s that the other would train" test "$seconds" -lt 25

echo "== the job's time is over (F6)"
(
  for ((try = 0; try < 300; ++try)); do
    if grep -qs 'epoch .*/' "$work/job.out"; then
      on node-a scancel --signal=TERM --name=ddp
      exit
    fi
    sleep 0.1
  done
) &
job 60 "$train_mlp" --synthetic --limit 20000 --hidden 32 --batch 100 --epochs 100000 --checkpoint "$work/checkpoints"
wait $!
check "SIGTERM ends it, with 143" exits_with 143
check "and with a checkpoint" test -e "$work/checkpoints/latest"

echo "== mpirun and ddp-launch in an allocation"
run 60 node-a salloc --nodes=2 --ntasks-per-node=1 mpirun --bind-to none "$hello"
check "mpirun finds the hosts itself" says 'rank 1 of 2 on cpu:0 \(mpi\): counted 2'
run 60 node-a salloc --nodes=2 --ntasks-per-node=2 "$launch" --nnodes 2 --cpus 2 --no-log-files "$hello"
check "ddp-launch --nnodes too" says 'rank 3 of 4 on cpu:0 \(mpi\): counted 4'

check "no job is left" queue_empties
check "nothing else is left" nothing_left 10
end_cluster
