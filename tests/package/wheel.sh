#!/usr/bin/env bash
# The wheel, made of the installed tree: pip installs it, programs are built against it and train. Ends with 77 where
# scikit-build-core is missing. wheel.sh SOURCE_FOLDER WORK VERSION shared|static…
set -euo pipefail
source=$1 installed=$2/installed work=$2/wheel version=$3
kinds=("${@:4}")
python=${DDP_TEST_PYTHON:-python3}
"$python" -c 'import ensurepip, pip, scikit_build_core' 2>/dev/null ||
  { echo "SKIPPED: $python lacks python/requirements.txt or venv; DDP_TEST_PYTHON may name another"; exit 77; }
rm -rf "$work"
mkdir -p "$work"
# pip_wheel FOLDER OPTION…: as a user makes one, but without a network.
pip_wheel() {
  "$python" -m pip --disable-pip-version-check wheel --quiet --no-index --no-build-isolation --no-deps --wheel-dir "$work/$1" \
    --config-settings=build-dir="$work/$1.build" "${@:2}" "$source"
}

# As pyproject.toml configures the project; of what that would compile, the smallest part.
pip_wheel configured --config-settings=build.targets=ddp_line_buffer --config-settings=install.components=none \
  --config-settings=cmake.define.DDP_WITH_CUDA=OFF
grep -qF libboost_program_options.a "$work/configured.build/build.ninja" ||
  { echo "expected Boost's static library to be linked: wheels go to machines that have another, or none"; exit 1; }
# shellcheck disable=SC2016  # the dynamic linker expands it
grep -qF 'NEW_RPATH "\$ORIGIN/../../nvidia/nccl/lib")' "$work/configured.build/cmake_install.cmake" ||
  { echo "expected the folder of NVIDIA's wheel of NCCL among those that libddp.so looks in"; exit 1; }

pip_wheel packed --config-settings=cmake.source-dir=tests/package/wheel --config-settings=cmake.define.TREE="$installed"
wheel=$work/packed/ddp-$version-py3-none-linux_$(uname -m).whl
[[ -f $wheel ]] || { echo "expected $wheel, found:"; ls "$work/packed"; exit 1; }
"$python" -m zipfile -l "$wheel" >"$work/contents"
if grep -E 'nccl[^ ]*[.]so|cudart|ddp/share|pkgconfig|libddp[.]so ' "$work/contents"; then
  echo "the wheel holds what it should not"
  exit 1
fi

"$python" -m venv "$work/venv"
PATH=$work/venv/bin:$PATH
pip --disable-pip-version-check install --quiet --no-index --no-deps "$wheel"
[[ $(python3 -m ddp --version) == "$version" && $(ddp-launch --version) == "ddp-launch $version" ]]
folder=$(cd "$work" && python3 -m ddp --cmake-dir)
ln -s "$(realpath "$folder/../../..")" "$work/installed"
# ddp-launch is the process that it was started as, and finds what its ranks preload.
# shellcheck disable=SC2016
ddp-launch --cpus 1 --no-log-files --no-prefix -- sh -c 'echo "$PPID $LD_PRELOAD"' >"$work/preloaded" &
wait $! || { cat "$work/preloaded"; exit 1; }
grep -q "^$! .*ddp_line_buffer[.]so" "$work/preloaded" || { echo "expected $! and a library, found: $(<"$work/preloaded")"; exit 1; }
for kind in "${kinds[@]}"; do
  PREFIX=$folder RUN='ddp-launch --cpus 2 --no-log-files --' \
    "$source/tests/package/use.sh" find_package "$kind" "$work" consumer
done
pip --disable-pip-version-check uninstall --quiet --yes ddp
[[ ! -e $folder && ! -e $work/venv/bin/ddp-launch ]] || { echo "pip left something of $folder"; exit 1; }
