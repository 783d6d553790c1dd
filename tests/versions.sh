#!/usr/bin/env bash
# Builds and tests with the compiler and the packages that are found here, and prints what they were as a row of the table of versions in
# docs/dependencies.md. Other versions are found as in any build: CXX, PATH, NCCL_ROOT, CUDACXX, CMAKE_PREFIX_PATH.
#   tests/versions.sh FOLDER "TARGETS" "CTEST-OPTIONS" [CMAKE-OPTION…]      for example
#   CXX=clang++-19 tests/versions.sh build/clang all "-L ^unit$" -DDDP_WITH_LIBTORCH=OFF
# With empty CTEST-OPTIONS it builds only. The exit code is 0 if all was built and no test failed.
set -uo pipefail
(($# >= 3)) || { sed -n '2,/^set/s/^# \?//p' "$0" >&2; exit 2; }
# shellcheck source=deploy/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/../deploy/setup.sh"
cd "$repository" || exit 2
folder=$1 targets=$2 tests=$3
shift 3
mkdir -p "$folder"
log=$folder/versions.log junit=$PWD/$folder/versions.xml

# version WHAT: what configure said that it builds with.
version() { sed -nE "s/^-- +$1: +built \(([^,)]*).*/\1/p" "$folder/configure.log" | sed -E 's/^(toolkit|Open MPI|PyTorch) //'; }
row() {  # row RESULT
  local compiler mpi
  compiler=$(cat "$folder"/CMakeFiles/*/CMakeCXXCompiler.cmake | sed -nE 's/^set\(CMAKE_CXX_COMPILER_(ID|VERSION) "(.*)"\)/\2/p' | xargs)
  mpi=$(version MPI) cuda=$(version CUDA) nccl=$(version NCCL) torch=$(version libtorch)
  # shellcheck source=/dev/null
  printf '| %s | %s | %s | %s | %s | %s | %s | %s |\n' "$(date +%F)" "$(. /etc/os-release && echo "$NAME $VERSION_ID")" "$compiler" \
    "${cuda:-–}" "${nccl:-–}" "${mpi:-–}" "${torch:-–}" "$1"
}

cmake --preset default -B "$folder" "$@" >"$folder/configure.log" 2>&1 || { tail -20 "$folder/configure.log"; exit 1; }
# shellcheck disable=SC2086  # words are wanted
cmake --build "$folder" -j "$(nproc)" --target $targets >"$log" 2>&1 ||
  { grep -m 5 -E "error|FAILED" "$log"; row "**does not build**"; exit 1; }
[[ -n $tests ]] || { row "built: $targets"; exit 0; }
# shellcheck disable=SC2086
ctest --test-dir "$folder" -j "$(nproc)" $tests --no-tests=error --output-junit "$junit" >"$log" 2>&1
status=$?
sed -n '/The following tests FAILED/,$p' "$log"
read -r all failures skipped <<<"$(junit_counts "$junit")"
row "$tests: $((all - failures - skipped)) passed, $failures failed, $skipped skipped"
exit $status
