#!/usr/bin/env bash
# deploy/ddp.sbatch passes the program on to srun as it is, and the hostfile is one that mpirun reads.
# deploy_test.sh DEPLOY_FOLDER MPIRUN: without MPIRUN, the hostfile is not tried.
set -euo pipefail
unset OMP_NUM_THREADS  # what the scripts set is looked at
deploy=$1 mpirun=${2:-}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# An srun that says what it was given.
# shellcheck disable=SC2016  # the script expands it
printf '#!/usr/bin/env bash\nprintf "<%%s>" "$@"\nprintf " OMP_NUM_THREADS=%%s" "$OMP_NUM_THREADS"\n' >"$work/srun"
chmod +x "$work/srun"
said=$(PATH=$work:$PATH SLURM_CPUS_PER_TASK=12 "$deploy/ddp.sbatch" ./train --name 'two words')
expected='<--mpi=pmix><--cpus-per-task=12><--kill-on-bad-exit=1><./train><--name><two words> OMP_NUM_THREADS=12'
[[ $said == "$expected" ]] || { echo "expected: $expected"; echo "srun got: $said"; exit 1; }
status=0
PATH=$work:$PATH "$deploy/ddp.sbatch" 2>"$work/usage" || status=$?
((status == 64)) && grep -q usage "$work/usage"
# The directives are read by sbatch only at the top.
grep -m 1 -n '^[^#]' "$deploy/ddp.sbatch" | cut -d : -f 1 >"$work/first"
last=$(grep -n '^#SBATCH' "$deploy/ddp.sbatch" | tail -n 1 | cut -d : -f 1)
((last < $(cat "$work/first"))) || { echo "an #SBATCH line stands below the first command"; exit 1; }

if [[ -n $mpirun ]]; then
  # With this host's name in it: mpirun must find as many slots as the file says.
  sed -E "s/^node01 .*/localhost slots=2/; /^node/d" "$deploy/hostfile.example" >"$work/hosts"
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  [[ $("$mpirun" --bind-to none --hostfile "$work/hosts" echo rank | grep -c rank) == 2 ]]
fi
