# Hosts on one machine, node-a (10.77.0.1), node-b (10.77.0.2) and so on: each has a network, a name, processes, /tmp, /run
# and /dev/shm of its own. A cable joins two of them; more hang on a bridge. Source it, then call begin_cluster; everything
# ends with the script, however it ends, since all of it lives in namespaces of its processes and in one temporary folder.
# CLUSTER_NODES names other hosts than the first two.
# shellcheck shell=bash

read -r -a nodes <<<"${CLUSTER_NODES:-node-a node-b}"
declare -A node_pid node_address
for place in "${!nodes[@]}"; do node_address[${nodes[place]}]=10.77.0.$((place + 1)); done
passed=0 failed=0 skipped=0

# quit_with_skip REASON: nothing can be tried here.
quit_with_skip() {
  echo "skipped: $1"
  echo "0 passed, 0 failed, 1 skipped"
  exit 77
}

# need PACKAGE COMMAND…: the commands, of that Debian package.
need() {
  local package=$1 command
  shift
  for command; do
    command -v "$command" >/dev/null || quit_with_skip "$command is missing: apt-get install $package"
  done
}

pass() { passed=$((passed + 1)); echo "  passed: $1"; }
fail() { failed=$((failed + 1)); echo "  FAILED: $1"; }
skip() { skipped=$((skipped + 1)); echo "  skipped: $1"; }
# check WHAT COMMAND…: passes if the command succeeds.
check() {
  local what=$1
  shift
  if "$@"; then pass "$what"; else fail "$what"; show_output; fi
}

# The last job's: exit code, seconds, and files of what it said.
status=0 seconds=0
show_output() { sed 's/^/    | /' "$work/out" "$work/err" | tail -n 30; }

# run SECONDS NODE COMMAND…: a job of that host with a time limit, said beforehand; 124 or 137 past it.
run() {
  local limit=$1 node=$2 begin=$SECONDS
  shift 2
  echo "$node\$ ${*//"$work"/\$work}" | sed "s|$build/||g"
  status=0
  timeout --kill-after=5 "$limit" nsenter --target "${node_pid[$node]}" --all --wdns="$PWD" -- \
    env HOME=/root TMPDIR=/tmp "$@" >"$work/out" 2>"$work/err" </dev/null || status=$?
  # shellcheck disable=SC2034  # for the scripts
  seconds=$((SECONDS - begin))
}
says() { grep -qE -- "$1" "$work/out" "$work/err"; }
exits_with() { ((status == $1)); }

# watch_for FIRST SECOND: in the background of a job, notes when its output, or what own_stderr keeps, has each of the two.
# Ends with both, or after 60 s.
watch_for() {
  local end=$((SECONDS + 60)) pattern number=0
  : >"$work/out"
  : >"$work/err"
  rm -f "$work"/seen* "$work"/rank*.err
  for pattern; do
    until grep -qsE -- "$pattern" "$work"/{out,err} "$work"/rank*.err; do
      ((SECONDS < end)) || return 0
      sleep 0.01
    done
    date +%s%N >"$work/seen$number"
    number=$((number + 1))
  done
}
# Milliseconds between them; nothing if one did not come.
lag() { [[ ! -e $work/seen1 ]] || echo $((($(cat "$work/seen1") - $(cat "$work/seen0")) / 1000000)); }
at_most() { [[ -n $(lag) ]] && (($(lag) <= $1)); }

# Before a program: each rank keeps its stderr in a file of its own. mpirun passes on what a rank of its host says up to a
# second late while it ends a job.
# shellcheck disable=SC2016,SC2034  # the ranks' shell expands it; for the scripts
own_stderr=(sh -c 'exec "$@" 2>"$0/rank$RANK.err"')

# What train_mlp has learnt, to the last bit.
parameters() { grep -o '"hash":"[^"]*"' "$1"; }
same_parameters() { [[ -n $(parameters "$1") && $(parameters "$1") == "$(parameters "$2")" ]]; }

# on NODE COMMAND…: as a process of that host.
on() {
  local node=$1
  shift
  nsenter --target "${node_pid[$node]}" --all --wdns="$PWD" -- env HOME=/root TMPDIR=/tmp "$@"
}

# What jobs have left on a host: processes that were not there at its start, such as sshd's of a session, files, names of
# shared memory.
leftovers() {
  local known="^(bash|sleep|ps$daemons)\$"
  on "$1" ps -e -o comm=,pid=,args= | grep -v '<defunct>' |
    awk -v known="$known" '$1 !~ known || ($1 == "sshd" && !/\[listener\]/)'
  on "$1" find /tmp /dev/shm -mindepth 1
}
daemons="|sshd"  # what else runs for as long as the host does: "|name|name"

# nothing_left SECONDS: on both hosts, at the latest after that time.
nothing_left() {
  local node end=$((SECONDS + $1)) left
  for node in "${nodes[@]}"; do
    while left=$(leftovers "$node") && [[ -n $left ]]; do
      if ((SECONDS >= end)); then
        echo "    left on $node:"
        echo "    | ${left//$'\n'/$'\n'    | }"
        return 1
      fi
      sleep 0.2
    done
  done
}

cable() { nsenter --target "${node_pid[$1]}" --net ip link set eth0 "$2"; }

# What a host is made of, as its first process, which also takes in whoever loses their parent.
become_host() {
  local node=$1
  hostname "$node"
  local folder
  for folder in /tmp /run /dev/shm; do mount -t tmpfs -o mode=1777 none "$folder"; done
  mount --bind "$work/hosts" /etc/hosts
  mkdir -m 755 /run/sshd
  ip link set lo up
  touch "$work/$node.up"
  sleep infinity &
  wait
}

make_host() {
  local node=$1
  unshare --net --mount --uts --ipc --pid --fork --kill-child --mount-proc \
    bash -c "$(declare -f become_host); work='$work'; become_host $node" &
  local shell=$! end=$((SECONDS + 10))
  until [[ -e $work/$node.up ]]; do
    if ((SECONDS >= end)) || ! kill -0 "$shell" 2>/dev/null; then
      quit_with_skip "a host cannot be made here: see above"
    fi
    sleep 0.05
  done
  node_pid[$node]=$(cat "/proc/$shell/task/$shell/children")
  node_pid[$node]=${node_pid[$node]// /}
}

plug_in() {
  local node
  if ((${#nodes[@]} == 2)); then
    ip link add "cable-${nodes[0]#node-}" type veth peer name "cable-${nodes[1]#node-}"
  else
    ip link add switch type bridge
    ip link set switch up
    for node in "${nodes[@]}"; do
      ip link add "cable-${node#node-}" type veth peer name "port-${node#node-}"
      ip link set "port-${node#node-}" master switch
      ip link set "port-${node#node-}" up
    done
  fi
  for node in "${nodes[@]}"; do
    ip link set "cable-${node#node-}" netns "${node_pid[$node]}" name eth0
    on "$node" ip address add "${node_address[$node]}/24" dev eth0
    cable "$node" up
  done
}

# An ssh server on each host, with keys that nothing else uses or knows.
start_ssh() {
  ssh-keygen -q -t ed25519 -N '' -f "$work/host_key"
  ssh-keygen -q -t ed25519 -N '' -f "$work/user_key"
  install -m 600 "$work/user_key.pub" "$work/authorized_keys"
  echo "$(IFS=,; echo "${nodes[*]}") $(cut -d ' ' -f 1,2 "$work/host_key.pub")" >"$work/known_hosts"
  cat >"$work/sshd_config" <<END
HostKey $work/host_key
AuthorizedKeysFile $work/authorized_keys
PidFile none
StrictModes no
PermitRootLogin prohibit-password
PasswordAuthentication no
UsePAM no
END
  cat >"$work/ssh_config" <<END
Host *
  IdentityFile $work/user_key
  IdentitiesOnly yes
  UserKnownHostsFile $work/known_hosts
  StrictHostKeyChecking yes
  BatchMode yes
  ConnectTimeout 10
  LogLevel ERROR
END
  local node end
  for node in "${nodes[@]}"; do
    on "$node" "$(command -v sshd)" -f "$work/sshd_config" -E "$work/$node.sshd"
    end=$((SECONDS + 10))
    until on node-a ssh -F "$work/ssh_config" "$node" true 2>"$work/err"; do
      if ((SECONDS >= end)); then
        cat "$work/err" "$work/$node.sshd"
        quit_with_skip "ssh to $node does not work here"
      fi
      sleep 0.2
    done
  done
  export OMPI_MCA_plm_rsh_agent="ssh -F $work/ssh_config"
  export PRTE_MCA_plm_ssh_agent=$OMPI_MCA_plm_rsh_agent  # the same for Open MPI 5
  # Which otherwise ends ranks that have lost another before they can say so (docs/cluster.md).
  if [[ $(mpirun --version) == *"(Open MPI) 5."* ]]; then export OMPI_MCA_pml=ob1 OMPI_MCA_mpi_ft_enable=1; fi
}

# start_agents [NAME=VALUE…]: instead of ssh: on each host a shell that runs what mpirun sends to it, through a pipe that
# all hosts see. The variables are those of the host's shell, "@" in them the host's number from 0.
start_agents() {
  local node number=0
  for node in "${nodes[@]}"; do
    mkfifo "$work/$node.commands"
    # shellcheck disable=SC2016  # that shell expands it
    on "$node" env "${@//@/$number}" bash -c \
      'exec 3<>"$1"; while IFS= read -r -d "" command <&3; do bash -c "$command" 3<&- & done' agent "$work/$node.commands" \
      >"$work/$node.agent" 2>&1 &
    number=$((number + 1))
  done
  cat >"$work/agent" <<END
#!/bin/sh
# mpirun's agent: HOST COMMAND…
host=\$1
shift
[ -p "$work/\$host.commands" ] || { echo "there is no host \$host" >&2; exit 255; }
printf '%s\\0' "\$*" >"$work/\$host.commands"
END
  chmod +x "$work/agent"
  export OMPI_MCA_plm=rsh OMPI_MCA_plm_rsh_agent="$work/agent"
  export PRTE_MCA_plm=ssh PRTE_MCA_plm_ssh_agent="$work/agent"
}

# begin_cluster SCRIPT ARGUMENT…: the first time it starts the script again, in namespaces and with a temporary folder
# that end with it; the second time it makes the hosts. Sets work (the folder) and build (the build folder).
begin_cluster() {
  local script=$1
  build=$(realpath -m "${2:-build/default}")
  if [[ -z ${DDP_CLUSTER_WORK-} ]]; then
    ((EUID == 0)) || quit_with_skip "namespaces of one's own need root"
    need util-linux unshare nsenter
    need iproute2 ip
    need procps ps
    [[ $PWD/ != /tmp/* && $build/ != /tmp/* ]] || quit_with_skip "below /tmp, of which each host has its own"
    unshare --net --mount --pid --fork true || quit_with_skip "namespaces are not allowed here"
    local result=0
    work=$(mktemp -d /var/tmp/ddp-cluster.XXXXXX)
    trap 'rm -rf "$work"' EXIT
    DDP_CLUSTER_WORK=$work unshare --net --mount --pid --fork --kill-child --mount-proc bash "$script" "$build" ||
      result=$?
    exit "$result"
  fi
  work=$DDP_CLUSTER_WORK
  unset DDP_CLUSTER_WORK
  ip link set lo up
  local node
  echo '127.0.0.1 localhost' >"$work/hosts"
  for node in "${nodes[@]}"; do echo "${node_address[$node]} $node" >>"$work/hosts"; done
  for node in "${nodes[@]}"; do make_host "$node"; done
  plug_in
}

# The programs of the build folder, by the names of this project.
need_built() {
  launch=$build/launcher/ddp-launch
  hello=$build/examples/hello_all_reduce/hello_all_reduce
  train_mlp=$build/examples/train_mlp/train_mlp
  contract=$build/tests/multi_process/multi_process_mpi_communicator
  training_rank=$build/tests/faults/training_rank
  local program
  for program in "$launch" "$hello" "$train_mlp" "$contract" "$training_rank"; do
    [[ -x $program ]] || quit_with_skip "$program is missing: build the project, with MPI"
  done
}

end_cluster() {
  echo "$passed passed, $failed failed, $skipped skipped"
  exit $((failed > 0))
}
