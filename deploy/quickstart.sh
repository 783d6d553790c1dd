#!/usr/bin/env bash
# From a fresh clone to a trained network: ./deploy/quickstart.sh [options of train_mlp]
#
# Installs the Debian packages that are missing (as root or with sudo; CUDA and NCCL never), builds, and trains on
# Fashion-MNIST on every visible GPU, or on two CPU ranks where there is none. The last line is train_mlp's:
# "final: test accuracy 0.8xxx, N ranks, cuda, S s" (or cpu).
set -euo pipefail
# shellcheck source=deploy/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

install_packages "${build_packages[@]}"

# The data is asked for apart: training is possible without.
arguments=("$@")
if [[ " $* " != *" --data"* && " $* " != *" --synthetic "* && ! -e $fashion_mnist/train-images-idx3-ubyte.gz ]] &&
  ! install_packages dataset-fashion-mnist; then
  say "Fashion-MNIST cannot be installed here: training on made-up images instead (--synthetic)"
  arguments=(--synthetic "$@")
fi

# The tests need more packages, so they are left out, unless test.sh has been here.
options=()
if [[ ! -e $build_folder/CMakeCache.txt ]]; then options=(-DDDP_BUILD_TESTS=OFF); fi
configure "${options[@]}"
say_what_gpus_lack
say "building"
cmake --build "$build_folder" --target ddp-launch train_mlp hello_all_reduce

# ddp-launch itself takes every visible GPU.
devices=()
if gpu_ranks_are_built && (($(gpus) > 0)); then
  say "training on every visible GPU"
else
  ranks=$(($(nproc) < 2 ? 1 : 2))
  devices=(--cpus "$ranks")
  say "training on $ranks CPU ranks"
fi
exec "$build_folder/launcher/ddp-launch" "${devices[@]}" --no-prefix --log-dir "$repository/build/logs/quickstart" -- \
  "$build_folder/examples/train_mlp/train_mlp" "${arguments[@]}"
