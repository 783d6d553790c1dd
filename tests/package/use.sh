#!/usr/bin/env bash
# Builds a program outside of the tree against the installed copy, and runs it as two CPU ranks of its ddp-launch, or of $RUN.
# use.sh find_package|pkg_config shared|static WORK consumer|cuda_consumer|mpi_consumer|libtorch_consumer [NVCC]: with NVCC for a
# program in a .cu file. In the environment, PREFIX: where CMake looks for ddp, if not in WORK/installed; MORE_PREFIXES: where it
# looks too, separated by semicolons.
set -euo pipefail
unset CPATH C_INCLUDE_PATH CPLUS_INCLUDE_PATH  # with these any program finds its headers
how=$1 kind=$2 work=$3 program=$4 nvcc=${5-}
installed=$work/installed
source=$(realpath "$(dirname "$0")/$program")
build=$work/$program-$how-$kind
rm -rf "$build"
mkdir -p "$build"
cd "$build"  # outside of the source tree
if [[ $how == find_package ]]; then
  if [[ -n $nvcc ]]; then export CUDACXX=$nvcc; fi
  # In a project that asks for a recent CMake, and in one that has asked for an old one ever since, whose policies are old.
  for policies in 3.25 3.0; do
    cmake -S "$source" -B . -G Ninja --fresh -DCMAKE_PREFIX_PATH="${PREFIX-$installed};${MORE_PREFIXES-}" -DDDP_KIND="$kind" \
      -DDDP_POLICIES="$policies" -DCMAKE_POLICY_VERSION_MINIMUM=3.5 >"configure-$policies.log"
  done
  if [[ $program == libtorch_consumer && -n ${MORE_PREFIXES-} ]]; then
    if cmake -S "$source" -B without -G Ninja -DCMAKE_PREFIX_PATH="$installed" -DDDP_POLICIES=3.25 >without.log 2>&1; then
      echo "expected an error without PyTorch"
      exit 1
    fi
    # In one piece, since people copy it.
    grep -qF "python3 -c \"import sysconfig; print(sysconfig.get_path('purelib'))\"" without.log || { cat without.log; exit 1; }
  fi
  cmake --build . >build.log || { cat build.log; exit 1; }
  if [[ -n $nvcc ]]; then
    cmake -S "$source/levels" -B levels -G Ninja -DCMAKE_PREFIX_PATH="$installed" -DDDP_KIND="$kind" >levels.log
    sed -nE 's/^ *"command": (.*_([0-9]+)\.dir.*)/\2 \1/p' levels/compile_commands.json >levels.txt
    (($(wc -l <levels.txt) == 7)) || { echo "expected 7 commands, found:"; cat levels.txt; exit 1; }
    while read -r level command; do
      given=$(grep -oE -e '-std=[^ ]+' <<<"$command" | xargs)
      [[ $given == "-std=c++$level" ]] || { echo "expected C++$level, found $given in $command"; exit 1; }
    done <levels.txt
  fi
else
  PKG_CONFIG_PATH=$(dirname "$(find "$installed" -name ddp.pc)")
  export PKG_CONFIG_PATH
  module=ddp
  if [[ $kind == static ]]; then module=ddp-static; fi
  compiler=("${CXX:-c++}" -Wall -Wextra -Werror) main=$source/main.cpp
  if [[ -n $nvcc ]]; then compiler=("$nvcc" -Werror all-warnings) main=$source/main.cu; fi
  # shellcheck disable=SC2046  # words are wanted
  "${compiler[@]}" -std=c++20 -o "$program" "$main" $(pkg-config --cflags --libs "$module") \
    -Xlinker -rpath -Xlinker "$(pkg-config --variable=libdir ddp)"
  # A level of the language that is too old: the first error says so.
  # shellcheck disable=SC2046
  if [[ -n $nvcc ]] && "$nvcc" -std=c++17 -c -o old.o "$main" $(pkg-config --cflags "$module") >old.log 2>&1; then
    echo "expected an error for C++17"
    exit 1
  fi
  if [[ -n $nvcc ]] && ! grep -m 1 -i 'error' old.log | grep -q 'ddp needs C++20'; then
    echo "expected what to do first, found:"
    head old.log
    exit 1
  fi
fi
loads=$(ldd "./$program" | grep -c 'libddp\.so\.' || true)
expected=$([[ $kind == shared ]] && echo 1 || echo 0)
((loads == expected)) || { echo "kind $kind, but ldd says:"; ldd "./$program"; exit 1; }
# shellcheck disable=SC2086  # words are wanted
${RUN-"$installed/bin/ddp-launch" --cpus 2 --no-log-files --} "./$program" | tee output
[[ $(grep -c 'of 2: right$' output) == 2 ]] || { echo "expected two ranks that are right"; exit 1; }
version=$("$installed/bin/ddp-launch" --version)
says_version=$(grep -c "version ${version#ddp-launch }\$" output || true)
((says_version == 2)) || [[ -n $nvcc ]] || { echo "expected the version of $version"; exit 1; }
