#!/usr/bin/env bash
# The installed completion of bash offers the options of --help, their values, and what comes behind them.
# completion.sh WORK
set -euo pipefail
installed=$1/installed work=$1/completion
rm -rf "$work"
mkdir -p "$work/folder"
cd "$work"
touch hosts train.py
set +u  # as in users' shells
# shellcheck disable=SC1091
source "$installed/share/bash-completion/completions/ddp-launch"
[[ $(complete -p ddp-launch) == *'-F _ddp_launch ddp-launch' ]]

told=''
compopt() { told+="$*"; }  # outside of a completion the real one fails
# complete_words WORD…: as bash calls the function, which has split the words at = and :.
complete_words() {
  COMP_WORDS=(ddp-launch "$@") COMP_CWORD=$# COMPREPLY=() told=''
  _ddp_launch
}
# expect REPLIES WORD…: exactly these.
expect() {
  local wanted=$1 found
  shift
  complete_words "$@"
  found=$(printf '%s\n' "${COMPREPLY[@]}" | LC_ALL=C sort -u | tr '\n' ' ')
  [[ ${found% } == "$wanted" ]] || { echo "ddp-launch $*: expected $wanted, found $found"; exit 1; }
}

mapfile -t options < <("${BASH_SOURCE[0]%/*}/options_of_help.sh" "$installed")
expect "${options[*]}" -
[[ $told == *'+o default'* ]]  # and no files
expect '--cpus' --cp
expect '--log-dir' --cpus 2 --quiet --log-d
expect 'both err none out' --tee ''
expect 'err' --tee e
expect 'err' --tee = e
expect 'both err none out' --tee =
expect 'local mpi' --engine ''
expect 'auto cpu gpu' --nproc_per_node ''
expect 'all' --gpus ''
expect '' --cpus ''
[[ $told == *'+o default'* ]]
expect 'hosts' --hostfile h
[[ $told == '-o filenames' ]]
expect 'folder hosts train.py' --events ''
expect 'folder' --log-dir ''
expect 'folder' --log_dir = f
export DDP_ONLY_OF_THIS_TEST=1
expect 'DDP_ONLY_OF_THIS_TEST' -x DDP_ONLY_O
# The program is a command or a file.
expect 'train.py' --cpus 2 train.p
expect 'train.py' --host node7 : 4,node8 : 4 -- train.p
expect 'train.py' -m --no-prefix --grace = 3 train.p
complete_words --cpus 2 bas
[[ " ${COMPREPLY[*]} " == *' bash '* ]]
# Behind it nothing is ddp-launch's: without bash-completion the shell completes files, else what the program's own does.
expect '' --cpus 2 ./train --cp
expect '' --cpus 2 -- ./train --tee ''
[[ $told == '' ]]
_command_offset() { COMPREPLY=("${COMP_WORDS[$1]}" "at" "$1"); }
expect './train 4 at' --cpus = 2 ./train --cp
expect './train 6 at' --host node7 : 4 -- ./train --cp
_comp_command_offset() { COMPREPLY=(newer); }
expect newer ./train ''
