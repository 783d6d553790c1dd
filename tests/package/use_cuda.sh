#!/usr/bin/env bash
# Builds a program in a .cu file against the installed copy, by CMake and by nvcc with pkg-config, and runs it as two CPU
# ranks; and compilers that are not told of C++20 say what is missing.
# use_cuda.sh find_package|pkg_config shared|static WORK NVCC
set -euo pipefail
how=$1 kind=$2 work=$3 nvcc=$4
installed=$work/installed
source=$(realpath "$(dirname "$0")/cuda_consumer")
build=$work/cuda-$how-$kind
rm -rf "$build"
mkdir -p "$build"
cd "$build"  # outside of the source tree
export CUDACXX=$nvcc
if [[ $how == find_package ]]; then
  cmake -S "$source" -B . -G Ninja -DCMAKE_PREFIX_PATH="$installed" -DDDP_KIND="$kind" >configure.log
  cmake --build . >build.log || { cat build.log; exit 1; }
else
  PKG_CONFIG_PATH=$(dirname "$(find "$installed" -name ddp.pc)")
  export PKG_CONFIG_PATH
  module=ddp
  if [[ $kind == static ]]; then module=ddp-static; fi
  # shellcheck disable=SC2046  # words are wanted
  "$nvcc" -std=c++20 -Werror all-warnings -o cuda_consumer "$source/main.cu" $(pkg-config --cflags --libs "$module") \
    -Xlinker -rpath -Xlinker "$(pkg-config --variable=libdir ddp)"
  # A level of the language that is too old: the first error says so.
  # shellcheck disable=SC2046
  if "$nvcc" -std=c++17 -c -o old.o "$source/main.cu" $(pkg-config --cflags "$module") >old.log 2>&1; then
    echo "expected an error for C++17"
    exit 1
  fi
  grep -m 1 -i 'error' old.log | grep -q 'ddp needs C++20' || { echo "expected what to do first, found:"; head old.log; exit 1; }
fi
loads=$(ldd ./cuda_consumer | grep -c 'libddp\.so\.' || true)
expected=$([[ $kind == shared ]] && echo 1 || echo 0)
((loads == expected)) || { echo "kind $kind, but ldd says:"; ldd ./cuda_consumer; exit 1; }
"$installed/bin/ddp-launch" --cpus 2 --no-log-files -- ./cuda_consumer | tee output
[[ $(grep -c 'of 2: right$' output) == 2 ]] || { echo "expected two ranks that are right"; exit 1; }
