# What quickstart.sh, test.sh, .ci/run and tests/versions.sh share: packages, configuring, GPUs, counts of tests. Sourced, not run.
# shellcheck shell=bash

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
readonly repository
readonly build_folder=$repository/build/default
readonly fashion_mnist=/usr/share/datasets/fashion-mnist

say() { printf '==> %s\n' "$*"; }
complain() { printf '%s: %s\n' "$(basename "$0")" "$*" >&2; }

installed() { [[ $(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null) == installed ]]; }

# at_least COMMAND VERSION: whether the command is there, and prints a version that is not older.
at_least() {
  local found
  command -v "$1" >/dev/null || return 1
  found=$("$1" --version 2>/dev/null | grep -oE '[0-9]+(\.[0-9]+)+' | head -n 1)
  [[ $(printf '%s\n%s\n' "$2" "$found" | sort -V | head -n 1) == "$2" ]]
}

# missing PACKAGE…: those that are not there, one a line. A tool counts as there whatever package it came from.
missing() {
  local package
  for package in "$@"; do
    case $package in
      g++) at_least g++ 12 || echo g++ ;;
      cmake) at_least cmake 3.25 || echo cmake ;;
      ninja-build) at_least ninja 1.10 || echo ninja-build ;;
      dataset-fashion-mnist) [[ -e $fashion_mnist/train-images-idx3-ubyte.gz ]] || echo "$package" ;;
      *) installed "$package" || echo "$package" ;;
    esac
  done
}

# junit_counts FILE: of ctest's JUnit file, how many tests there are, how many failed, and how many did not run.
junit_counts() {
  local counts
  counts=$(grep -m 1 -A 8 '<testsuite ' "$1" | tr '\n' ' ')
  number() { grep -oE "[[:space:]]$1=\"[0-9]+\"" <<<"$counts" | grep -oE '[0-9]+' || echo 0; }
  echo "$(number tests) $(number failures) $(($(number skipped) + $(number disabled)))"
}

as_root() {
  if ((EUID == 0)); then "$@"; else sudo "$@"; fi
}

may_install() {
  ((EUID == 0)) || { command -v sudo >/dev/null && { [[ -t 0 ]] || sudo -n true 2>/dev/null; }; }
}

# install_packages PACKAGE…: installs what is missing. Fails, having said why, if it cannot.
install_packages() {
  local wanted
  mapfile -t wanted < <(missing "$@")
  if ((${#wanted[@]} == 0)); then
    say "nothing to install: all Debian packages are there"
    return
  fi
  local -r by_hand="apt-get update && apt-get install --no-install-recommends ${wanted[*]}"
  if ! command -v apt-get >/dev/null; then
    complain "expected Debian or Ubuntu with apt-get, found neither. Install what these packages hold, by other means: ${wanted[*]}"
    return 69
  fi
  if ! may_install; then
    complain "packages are missing, and installing them needs root or sudo. As root, run: $by_hand"
    return 77
  fi
  say "installing Debian packages: ${wanted[*]}"
  local -r log=$repository/build/apt.log
  mkdir -p "$repository/build"
  local -r options=(-q -y -o Acquire::Retries=2 -o Acquire::http::Timeout=30 -o DPkg::Lock::Timeout=120)
  # What cannot be fetched shows when it is installed: an unreachable source that is not needed is no failure.
  as_root apt-get "${options[@]}" update >"$log" 2>&1 || true
  if ! as_root env DEBIAN_FRONTEND=noninteractive apt-get "${options[@]}" install --no-install-recommends \
    "${wanted[@]}" >>"$log" 2>&1; then
    grep -E '^(E|Err|W):' "$log" | sort -u | tail -n 8 >&2 || true
    complain "apt-get could not install: ${wanted[*]}. Its output is in $log." \
      "Is there a network, and on Ubuntu the component universe (add-apt-repository universe)?" \
      "Then, as root, run: $by_hand"
    return 69
  fi
  mapfile -t wanted < <(missing "$@")
  if ((${#wanted[@]} > 0)); then
    complain "still missing or too old after installing: ${wanted[*]} (needed: g++ 12, cmake 3.25, ninja 1.10 or later)"
    return 69
  fi
}

# configure [OPTION…]: prints which backends will be built, or everything if it fails.
configure() {
  local -r log=$repository/build/configure.log
  mkdir -p "$repository/build"
  if ! (cd "$repository" && cmake --preset default "$@") >"$log" 2>&1; then
    cat "$log" >&2
    complain "cmake could not configure $build_folder"
    return 70
  fi
  sed -n '/backends:/,/^-- [^ ]/p' "$log" | grep -E 'backends:|^--   ' || true
}

# gpus: how many the driver lists and CUDA_VISIBLE_DEVICES leaves; 0 without a driver. As CUDA reads the variable: up to
# the first entry that means nothing, and none if one is named twice.
gpus() {
  local listed visible
  listed=$({ nvidia-smi -L 2>/dev/null || true; } | grep -c '^GPU ' || true)
  visible=$listed
  if [[ -n ${CUDA_VISIBLE_DEVICES+set} ]]; then
    visible=$(tr ',' '\n' <<<"$CUDA_VISIBLE_DEVICES" | awk -v listed="$listed" '
      { gsub(/[[:space:]]/, "") }
      !/^([0-9]|GPU-|MIG-)/ || (/^[0-9]/ && $0 + 0 >= listed) { exit }
      seen[$0]++ { count = 0; exit }
      { count++ }
      END { print count + 0 }')
  fi
  echo $((visible < listed ? visible : listed))
}

# gpu_ranks_are_built: whether configure found what they need, a CUDA toolkit and NCCL.
gpu_ranks_are_built() { grep -q 'CUDA: built' "$repository/build/configure.log"; }

# say_what_gpus_lack: to be called after configure. CUDA and NCCL are never installed here: which version fits is the
# driver's and the user's affair.
say_what_gpus_lack() {
  local -r count=$(gpus)
  if ((count > 0)) && ! gpu_ranks_are_built; then
    say "$count GPUs, but no GPU ranks: the CUDA toolkit or NCCL was not found (above). They are not installed by this" \
      "script; README.md, section GPUs, says where they come from"
  fi
}

# shellcheck disable=SC2034  # used by those who source this
readonly build_packages=(g++ cmake ninja-build libboost-program-options-dev nlohmann-json3-dev libssl-dev zlib1g-dev)
# shellcheck disable=SC2034
readonly fuzz_packages=(clang libclang-rt-dev)
# shellcheck disable=SC2034
readonly abi_packages=(abigail-tools)
# shellcheck disable=SC2034
readonly test_packages=(libgtest-dev libgmock-dev libopenmpi-dev openmpi-bin pkg-config)
