#!/usr/bin/env bash
# Builds the consumer outside of the tree against the installed copy, and runs it as two ranks of its ddp-launch.
# use.sh find_package|pkg_config shared|static WORK.
set -euo pipefail
how=$1 kind=$2 work=$3
installed=$work/installed
source=$(realpath "$(dirname "$0")/consumer")
build=$work/$how-$kind
rm -rf "$build"
mkdir -p "$build"
cd "$build"  # outside of the source tree
if [[ $how == find_package ]]; then
  cmake -S "$source" -B . -G Ninja -DCMAKE_PREFIX_PATH="$installed" -DDDP_KIND="$kind" >configure.log
  cmake --build . >build.log || { cat build.log; exit 1; }
else
  PKG_CONFIG_PATH=$(dirname "$(find "$installed" -name ddp.pc)")
  export PKG_CONFIG_PATH
  module=ddp
  if [[ $kind == static ]]; then module=ddp-static; fi
  # shellcheck disable=SC2046  # words are wanted
  "${CXX:-c++}" -std=c++20 -Wall -Wextra -Werror -o consumer "$source/main.cpp" $(pkg-config --cflags --libs "$module") \
    -Xlinker -rpath -Xlinker "$(pkg-config --variable=libdir ddp)"
fi
loads=$(ldd ./consumer | grep -c 'libddp\.so\.' || true)
expected=$([[ $kind == shared ]] && echo 1 || echo 0)
((loads == expected)) || { echo "kind $kind, but ldd says:"; ldd ./consumer; exit 1; }
"$installed/bin/ddp-launch" --cpus 2 --no-log-files -- ./consumer | tee output
version=$("$installed/bin/ddp-launch" --version)
[[ $(grep -c "version ${version#ddp-launch }\$" output) == 2 ]] || { echo "expected the version of $version"; exit 1; }
[[ $(grep -c 'of 2: right$' output) == 2 ]] || { echo "expected two ranks that are right"; exit 1; }
