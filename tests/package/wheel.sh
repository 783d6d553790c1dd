#!/usr/bin/env bash
# The wheel, made of what the build tree installs: pip installs it, programs are built against it and train. With TORCH in the
# environment, the folder that holds torch/, the wheel of ddp::libtorch too. Ends with 77 where scikit-build-core is missing.
# wheel.sh SOURCE_FOLDER BUILD_FOLDER WORK VERSION shared|static…
set -euo pipefail
source=$1 build=$2 work=$3/wheel${TORCH:+-libtorch} version=$4
kinds=("${@:5}")
names=(ddp ${TORCH:+ddp-libtorch})
python=${DDP_TEST_PYTHON:-python3}
if [[ -n ${TORCH-} && -x $TORCH/../../../bin/python ]]; then python=$TORCH/../../../bin/python; fi
"$python" -c 'import ensurepip, pip, scikit_build_core' 2>/dev/null ||
  { echo "SKIPPED: $python lacks python/requirements.txt or venv; DDP_TEST_PYTHON may name another"; exit 77; }
rm -rf "$work"
mkdir -p "$work"
# pip_wheel FOLDER PROJECT SETTING…: as a user makes one, but without a network.
pip_wheel() {
  "$python" -m pip --disable-pip-version-check wheel --quiet --no-index --no-build-isolation --no-deps --wheel-dir "$work/$1" \
    "${@:3}" --config-settings=build-dir="$work/$1.build" "$source/$2"
}
# pack FOLDER PROJECT COMPONENT…: of what the build tree has.
pack() {
  local component
  for component in "${@:3}"; do
    cmake --install "$build" --component "$component" --prefix "$work/$1.tree" --strip >>"$work/$1.log"
  done
  pip_wheel "$1" "$2" --config-settings=cmake.args=-Wno-dev --config-settings=cmake.source-dir="$source/tests/package/wheel" \
    --config-settings=cmake.define.TREE="$work/$1.tree" --config-settings=install.components=Unspecified --config-settings=build.targets=all
}

# As pyproject.toml configures the project; of what that would compile, the smallest part.
if [[ -z ${TORCH-} ]]; then
  pip_wheel configured . --config-settings=build.targets=ddp_line_buffer --config-settings=install.components=none \
    --config-settings=cmake.define.DDP_WITH_CUDA=OFF
  grep -qF libboost_program_options.a "$work/configured.build/build.ninja" ||
    { echo "expected Boost's static library to be linked: wheels go to machines that have another, or none"; exit 1; }
  # shellcheck disable=SC2016  # the dynamic linker expands it
  grep -qF 'NEW_RPATH "\$ORIGIN/../../nvidia/nccl/lib")' "$work/configured.build/cmake_install.cmake" ||
    { echo "expected the folder of NVIDIA's wheel of NCCL, and no other, as that which libddp.so looks in"; exit 1; }
fi

pack ddp . runtime dev tools
if [[ -n ${TORCH-} ]]; then
  PYTHONPATH=$TORCH pack ddp-libtorch python/libtorch libtorch
  minor=$(PYTHONPATH=$TORCH "$python" -c 'import importlib.metadata as m; print(*m.version("torch").split(".")[:2], sep=".")')
fi
for name in "${names[@]}"; do
  wheel=$work/$name/${name/-/_}-$version-py3-none-linux_$(uname -m).whl
  [[ -f $wheel ]] || { echo "expected $wheel, found:"; ls "$work/$name"; exit 1; }
  if "$python" -m zipfile -l "$wheel" | grep -E 'nccl[^ ]*[.]so|cudart|^torch/|ddp/share|pkgconfig|libddp[a-z_]*[.]so '; then
    echo "the wheel holds what it should not"
    exit 1
  fi
done

"$python" -m venv "$work/venv"
PATH=$work/venv/bin:$PATH
pip --disable-pip-version-check install --quiet --no-index --no-deps "$work"/ddp*/*.whl
[[ $(python3 -m ddp --version) == "$version" && $(ddp-launch --version) == "ddp-launch $version" ]]
folder=$(cd "$work" && python3 -m ddp --cmake-dir)
ln -s "$(realpath "$folder/../../..")" "$work/installed"
if [[ -n ${TORCH-} ]]; then
  needed=$(sed -n 's/^Requires-Dist: //p' "$work/installed/../ddp_libtorch-$version.dist-info/METADATA" | sort | xargs)
  [[ $needed == "ddp==$version torch==$minor.*" ]] || { echo "expected PyTorch $minor to be needed, found: $needed"; exit 1; }
  ln -s "$TORCH/torch" "$(realpath "$work/installed/..")/torch"  # as if pip had
fi
# ddp-launch is the process that it was started as, and finds what its ranks preload.
# shellcheck disable=SC2016
ddp-launch --cpus 1 --no-log-files --no-prefix -- sh -c 'echo "$PPID $LD_PRELOAD"' >"$work/preloaded" &
wait $! || { cat "$work/preloaded"; exit 1; }
grep -q "^$! .*ddp_line_buffer[.]so" "$work/preloaded" || { echo "expected $! and a library, found: $(<"$work/preloaded")"; exit 1; }
for kind in "${kinds[@]}"; do
  PREFIX=$folder RUN='ddp-launch --cpus 2 --no-log-files --' \
    "$source/tests/package/use.sh" find_package "$kind" "$work" "${TORCH:+libtorch_}consumer"
done
pip --disable-pip-version-check uninstall --quiet --yes "${names[@]}"
[[ ! -e $folder && ! -e $work/venv/bin/ddp-launch ]] || { echo "pip left something of $folder"; exit 1; }
