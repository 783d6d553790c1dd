#!/usr/bin/env bash
# Who asks an installed ddp for ddp::libtorch, and it was built without, is told so.
# without_libtorch.sh WORK
set -euo pipefail
source=$(realpath "$(dirname "$0")/libtorch_consumer")
work=$1/without_libtorch
rm -rf "$work"
mkdir -p "$work"
cp -rl "$1/installed" "$work/ddp"
find "$work/ddp" -name 'ddp-libtorch-*.cmake' -delete
cd "$work"
if cmake -S "$source" -B build -G Ninja -DCMAKE_PREFIX_PATH="$work/ddp" -DDDP_POLICIES=3.25 >log 2>&1; then
  echo "expected an error"
  exit 1
fi
tr -s ' \n' ' ' <log | grep -q "a ddp that was built without PyTorch in $work/ddp/.*docs/libtorch.md says how" ||
  { echo "expected the reason and what to do, found:"; cat log; exit 1; }
