#!/usr/bin/env bash
# A CUDA toolkit, NCCL or PyTorch that is too old is not built with, and configure says so; with DDP_WITH_CUDA=ON it fails. Of a
# compiler that is too old the headers say so.
# old_versions.sh SOURCE_FOLDER WORK: nothing is built.
set -euo pipefail
source=$1 work=$2
rm -rf "$work"
mkdir -p "$work/cuda/bin" "$work/cuda/include" "$work/cuda/lib64" "$work/nccl/include" "$work/nccl/lib"
unset CUDACXX CUDA_PATH NCCL_ROOT CPATH LIBRARY_PATH
printf '#define CUDART_VERSION 11080\n' >"$work/cuda/include/cuda_runtime.h"
printf '#!/bin/sh\necho "Cuda compilation tools, release 11.8, V11.8.89"\n' >"$work/cuda/bin/nvcc"
chmod +x "$work/cuda/bin/nvcc"
touch "$work/cuda/lib64/libcudart.so" "$work/nccl/lib/libnccl.so"
printf '#define NCCL_MAJOR 2\n#define NCCL_MINOR 16\n#define NCCL_PATCH 5\n' >"$work/nccl/include/nccl.h"

configure() {  # configure CHOICE [CMAKE-OPTION…]: with these and nothing else
  cmake -S "$source" -B "$work/build" -G Ninja --fresh -DCUDAToolkit_ROOT="$work/cuda" -DNCCL_ROOT="$work/nccl" \
    -DDDP_WITH_CUDA="$1" -DDDP_WITH_MPI=OFF -DDDP_WITH_LIBTORCH=OFF -DDDP_BUILD_TESTS=OFF -DDDP_BUILD_EXAMPLES=OFF \
    -DDDP_BUILD_BENCH=OFF "${@:2}" >"$work/log" 2>&1
}
says() { tr -s ' \n' ' ' <"$work/log" | grep -qF "$1" || { echo "expected \"$1\", found:"; cat "$work/log"; exit 1; }; }

configure AUTO || { cat "$work/log"; exit 1; }
says "CUDA: found 11.8.89, not built: 12.5 or later is needed"
says "NCCL: found 2.16.5, not built: 2.18 or later is needed"
for compiler in "" "-DCMAKE_CUDA_COMPILER=$work/cuda/bin/nvcc"; do  # also where somebody has named it
  if configure ON $compiler; then echo "expected an error with DDP_WITH_CUDA=ON"; exit 1; fi
  says "no CUDA toolkit of 12.5 or later with a working nvcc was found"
done
mkdir -p "$work/torch/include/torch/csrc/autograd" "$work/torch/lib" "$work/torch/share/cmake/Torch"
touch "$work/torch/include/torch/csrc/autograd/engine.h" "$work/torch/lib/lib"{torch,torch_cpu,c10}.so
echo 'set(PACKAGE_VERSION "2.5.1")' >"$work/torch/share/cmake/Torch/TorchConfigVersion.cmake"
configure OFF -DDDP_WITH_LIBTORCH=AUTO -DCMAKE_PREFIX_PATH="$work/torch" || { cat "$work/log"; exit 1; }
says "libtorch: found 2.5.1, not built: 2.6 or later is needed"

# As PyPI's wheel of 2.6: new enough, but its strings are of the old ABI.
echo 'set(PACKAGE_VERSION "2.6.0")' >"$work/torch/share/cmake/Torch/TorchConfigVersion.cmake"
echo 'set(TORCH_CXX_FLAGS "-D_GLIBCXX_USE_CXX11_ABI=0")' >"$work/torch/share/cmake/Torch/TorchConfig.cmake"
if configure OFF -DDDP_WITH_LIBTORCH=AUTO -DCMAKE_PREFIX_PATH="$work/torch"; then echo "expected an error of the old ABI"; exit 1; fi
says "every wheel since 2.7"
for compiler in clang++-14; do
  command -v "$compiler" >/dev/null || continue
  if echo '#include "ddp/core/export.hpp"' | "$compiler" -std=c++20 -fsyntax-only -I"$source/include" -x c++ - >"$work/log" 2>&1; then
    echo "expected an error of $compiler"
    exit 1
  fi
  says "take g++ 12, clang 16 or a later one"
done
