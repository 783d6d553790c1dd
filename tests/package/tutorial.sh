#!/usr/bin/env bash
# Follows docs/tutorial.md as its readers do: writes the files that it shows, runs its commands, and compares what they print, but
# for numbers, paths, hosts and what "…" stands for (a line of it: any lines).
# tutorial.sh PAGE own|libtorch INSTALLED FOLDER [NVCC]: the part with kernels of its own, compiled for GPUs too where NVCC is
# given, or that with PyTorch's C++ library, which is in the folder $torch.
set -euo pipefail
unset CPATH C_INCLUDE_PATH CPLUS_INCLUDE_PATH  # with these any program finds its headers
page=$1 wanted=$2 installed=$3 folder=$4 nvcc=${5-}
rm -rf "$folder"
mkdir -p "$folder"
cd "$folder"
export PATH=$installed/bin:$PATH CXXFLAGS="-Wall -Wextra -Werror"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fail() { echo "$page:$number: $*"; exit 1; }

# pattern LINE: of lines that differ from it in what may differ.
pattern() {
  # shellcheck disable=SC2016  # nothing is to be expanded
  sed -E -e 's/[][\\.*^$(){}+?|]/\\&/g' -e 's/[^ ]*\/[^ ]*/[^ ]+/g' -e 's/…/.*/g' -e 's/[0-9]+(\\\.[0-9]+)?/[0-9]+([.][0-9]+)?/g' \
    -e 's/(\\\)) on [^ ]+ was/\1 on [^ ]+ was/' -e 's/ +/ +/g' -e 's/.*/^&$/' <<<"$1"
}

commands=0 printed=() at=0 any=0 left_out=0
# ended: nothing was printed behind what the page shows.
ended() { ((any || at == ${#printed[@]})) || fail "not on the page: ${printed[at]}"; }
run() {
  ended
  local command=${1//\/opt\/ddp/$installed} status=0
  command=${command//\$HOME\/ddp-libtorch/$installed}
  any=0 at=0 printed=() left_out=0
  if [[ $command == mpirun* ]]; then
    if ! command -v mpirun >/dev/null || [[ ! -f $installed/include/ddp/mpi.hpp ]]; then
      echo "left out, without MPI: $command"
      left_out=1
      return
    fi
    command=${command/mpirun/mpirun --oversubscribe}
  fi
  echo "\$ $command"
  timeout 100 bash -c "$command" </dev/null >output 2>&1 || status=$?
  cat output
  mapfile -t printed <output
  ((status == 0 || status == 137)) || fail "exit code $status"
  ((++commands))
}
shown() {
  if ((left_out)); then return; fi
  if [[ $1 == … ]]; then any=1; return; fi
  local -r expected=$(pattern "$1")
  while ((at < ${#printed[@]})); do
    if [[ ${printed[at]} =~ $expected ]]; then ((++at)) && any=0 && return; fi
    ((any)) || fail "expected $1, found ${printed[at]}"
    ((++at))
  done
  fail "not printed: $1"
}

number=0 way=own fenced=0 language='' file=''
while IFS= read -r line; do
  ((++number))
  if ((!fenced)) && [[ $line == '## '* ]]; then
    [[ $line == *PyTorch* ]] && way=libtorch || way=own
  fi
  [[ $way == "$wanted" ]] || continue
  if [[ $line == '```'* ]]; then
    ended
    any=0 at=0 printed=()
    fenced=$((!fenced)) language=${line#'```'} file=''
  elif ((fenced)) && [[ $language =~ ^(cpp|cuda|cmake)$ ]]; then
    if [[ -z $file ]]; then
      file=$(sed -nE 's,^(//|#) ([A-Za-z.]+).*,\2,p' <<<"$line")
      [[ -n $file ]] || fail "expected the name of a file in the first line, found $line"
      : >"$file"
    fi
    printf '%s\n' "$line" >>"$file"
  elif ((fenced)) && [[ -z $language ]]; then
    if [[ $line == '$ '* ]]; then run "${line#'$ '}"; else shown "$line"; fi
  fi
done <"$page"
ended
((commands >= 5)) || fail "expected at least 5 commands, found $commands: is the pattern still right?"

# For GPUs it compiles: this test sees none.
if [[ -n $nvcc ]]; then
  export CUDACXX=$nvcc CUDAFLAGS='-Werror all-warnings'
  cmake -B build_gpu -G Ninja -DGPU=ON -DCMAKE_PREFIX_PATH="$installed"
  cmake --build build_gpu
fi
echo "$commands commands"
