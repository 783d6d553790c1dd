#!/usr/bin/env bash
# The lines of docs/libtorch.md that configure and build are right, and build what a program needs in few steps.
# preset.sh SOURCE_FOLDER WORK TORCH_FOLDER: nothing is compiled.
set -euo pipefail
source=$1 work=$2 torch=$3
rm -rf "$work"
mkdir -p "$work"
cd "$source"
cp -r CMakeLists.txt CMakePresets.json README.md CHANGELOG.md LICENSE cmake docs include launcher runtime "$work"
cd "$work"  # without tests, examples and bench: they are not built
mapfile -t lines < <(sed -n '/^```sh/,/^```/s/^cmake .*/&/p' docs/libtorch.md)
[[ ${#lines[@]} == 3 && ${lines[0]} == *--preset* && ${lines[1]} == *--build* && ${lines[2]} == *--install\ build/libtorch\ * ]] ||
  { echo "expected three lines that configure, build and install in docs/libtorch.md, found:"; printf '%s\n' "${lines[@]}"; exit 1; }
eval "${lines[0]}" >configure.log || { cat configure.log; exit 1; }
eval "${lines[1]} -- -n" >steps || { cat steps; exit 1; }
for made in runtime/libddp.a runtime/libtorch/libddp_libtorch.a runtime/libtorch/libddp_libtorch.so launcher/ddp-launch; do
  grep -qE "Linking .* $made|Creating .* $made" steps || { echo "expected $made to be built, found:"; cat steps; exit 1; }
done
count=$(grep -c '^\[' steps)
((count < 80)) || { echo "expected fewer than 80 steps, found $count"; exit 1; }
