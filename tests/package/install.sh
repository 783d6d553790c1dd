#!/usr/bin/env bash
# Installs into a staging folder, then moves the tree: what is used by the other tests was never built for its place.
# install.sh BUILD_FOLDER WORK
set -euo pipefail
build=$1 work=$2
rm -rf "$work"
mkdir -p "$work"
DESTDIR=$work/stage cmake --install "$build" --prefix /opt/ddp --strip >"$work/install.log"
[[ $(find "$work/stage" -mindepth 1 -maxdepth 2) == "$work/stage/opt"$'\n'"$work/stage/opt/ddp" ]] ||
  { echo "something was installed outside of /opt/ddp"; find "$work/stage" -maxdepth 2; exit 1; }
mv "$work/stage/opt/ddp" "$work/installed"
# Among the sources nothing is installed (here nothing would be anyway: there is no such component).
source=$(realpath "$(dirname "$0")/../..")
ln -s "$source" "$work/link"
for prefix in "$source" "$source/docs/.." "$work/link"; do
  if cmake --install "$build" --prefix "$prefix" --component none >"$work/refused.log" 2>&1; then
    echo "expected $prefix to be refused, which is the source tree"
    exit 1
  fi
  tr -s ' \n' ' ' <"$work/refused.log" | grep -q "found that of ddp's sources: .*--prefix" ||
    { echo "expected what to do, found:"; cat "$work/refused.log"; exit 1; }
done
cmake --install "$build" --prefix "$source/build/elsewhere" --component none >/dev/null  # below it is no matter
for file in bin/ddp-launch share/man/man1/ddp-launch.1 share/bash-completion/completions/ddp-launch include/ddp/ddp.hpp include/ddp/config.hpp share/doc/ddp/LICENSE share/doc/ddp/README.md share/doc/ddp/docs/guide.md; do
  [[ -f $work/installed/$file ]] || { echo "expected $file in the installed tree, found:"; ls -R "$work/installed"; exit 1; }
done
# <ddp/mpi.hpp> is there where MPI is.
has_mpi=$(sed -n 's/^#define DDP_HAS_MPI //p' "$work/installed/include/ddp/config.hpp")
[[ -f $work/installed/include/ddp/mpi.hpp ]] && installed=1 || installed=0
((installed == has_mpi)) || { echo "DDP_HAS_MPI is $has_mpi, and ddp/mpi.hpp is installed: $installed"; exit 1; }
# No path of this machine's build in what other builds read.
! grep -rn -e "$build" -e /opt/ddp -e "$(dirname "$0")" "$work/installed" --include='*.cmake' --include='*.pc' ||
  { echo "the installed tree names folders of its build"; exit 1; }
# MPI and NCCL are its ranks' affair: it starts without them, and faster.
needed=$(objdump -p "$work/installed/bin/ddp-launch" | sed -n 's/^ *NEEDED *//p')
[[ $needed == *libc.so* && $needed != *libmpi* && $needed != *libnccl* ]] ||
  { echo "expected ddp-launch to need neither MPI nor NCCL, found:"; echo "$needed"; exit 1; }
# ddp-launch finds what it has its ranks preload, wherever the tree was moved.
preloaded=$("$work/installed/bin/ddp-launch" --cpus 1 --no-log-files --no-prefix -- sh -c 'echo "${LD_PRELOAD##*:}"')
[[ $preloaded == "$work"/installed/lib*/ddp/ddp_line_buffer.so && -f $preloaded ]] ||
  { echo "expected ddp_line_buffer.so of the installed tree to be preloaded, found: $preloaded"; exit 1; }
[[ -f ${preloaded%/*}/ddp_loopback.so ]] ||
  { echo "expected ddp_loopback.so beside $preloaded, found:"; ls "${preloaded%/*}"; exit 1; }
