#!/usr/bin/env bash
# Lets libFuzzer drive the targets of this folder: tests/fuzz/run.sh [target…], without a target all of them. They must
# be built: cmake --preset fuzz && cmake --build --preset fuzz
#
# FUZZ_SECONDS is the time for each (60), FUZZ_JOBS how many run at once (as many as there are cores). Inputs that reach
# new code stay in build/fuzz/found/<target>, and the next run goes on from them. What makes a target fail lies in
# build/fuzz/findings/<target>. The last line is "N passed, N failed"; the exit status is 1 if any failed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

readonly here=tests/fuzz build=build/fuzz
seconds=${FUZZ_SECONDS:-60}
[[ $seconds =~ ^[1-9][0-9]*$ ]] || { echo "FUZZ_SECONDS: expected a whole number from 1, found \"$seconds\"" >&2; exit 64; }

# from_hex FILE: its bytes. Blanks, and comments behind #, do not count.
from_hex() {
  local digits
  digits=$(sed 's/#.*//' "$1" | tr -d '[:space:]')
  # shellcheck disable=SC2059,SC2001  # the bytes are the format; pairs of digits are a pattern
  printf "$(sed 's/../\\x&/g' <<<"$digits")"
}

# gather_seeds TARGET: corpus and regressions as libFuzzer reads them.
gather_seeds() {
  local file
  rm -rf "$build/seeds/$1"
  mkdir -p "$build/seeds/$1"
  for file in "$here"/{corpus,regressions}/"$1"/*; do
    case $file in
      *'*') ;;
      *.hex) from_hex "$file" >"$build/seeds/$1/${file##*/}" ;;
      *) cp "$file" "$build/seeds/$1/" ;;
    esac
  done
}

# fuzz TARGET: one line of result, and before that the end of its output if it failed.
fuzz() {
  local -r target=$1 log=$build/$1.log findings=$build/findings/$1
  local status=0 ran seeds
  gather_seeds "$target"
  seeds=$(find "$build/seeds/$target" -type f | wc -l)
  mkdir -p "$findings" "$build/found/$target"
  timeout -k 10 $((seconds + 120)) "$build/$here/fuzz_$target" -max_total_time="$seconds" -max_len=4096 -timeout=25 \
    -rss_limit_mb=2048 -malloc_limit_mb=256 -print_final_stats=1 -artifact_prefix="$findings/" \
    -dict="$here/dictionaries/$target.dict" "$build/found/$target" "$build/seeds/$target" >"$log" 2>&1 || status=$?
  ran=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
  if ((status != 0)); then
    tail -n 60 "$log"
    echo "$target: FAILED with status $status; its output is in $log, the input that did it: $(
      sed -n 's/.*Test unit written to //p' "$log" | grep . || echo none was written)"
    return 1
  fi
  if ((${ran:-0} <= seeds)); then
    tail -n 20 "$log"
    echo "$target: FAILED: it ran ${ran:-0} inputs, of which $seeds are seeds: nothing was fuzzed"
    return 1
  fi
  echo "$target: $ran inputs in $seconds s, no finding"
}

if [[ ${1:-} == --one ]]; then
  fuzz "$2"
  exit
fi

targets=("$@")
if ((${#targets[@]} == 0)); then
  mapfile -t targets < <(find "$build/$here" -maxdepth 1 -type f -executable -name 'fuzz_*' -printf '%f\n' | sed 's/^fuzz_//' | sort)
fi
for target in "${targets[@]}"; do
  [[ -x $build/$here/fuzz_$target ]] || { echo "$build/$here/fuzz_$target is not there; build it first" >&2; exit 66; }
done
if ((${#targets[@]} == 0)); then
  echo "no target is there; build them first: cmake --preset fuzz && cmake --build --preset fuzz" >&2
  exit 66
fi

# Control sockets lie in TMPDIR, also those of a server that was fuzzed to its end.
TMPDIR=$(mktemp -d /tmp/ddp-fuzz-XXXXXX)
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT
results=$TMPDIR/results
# shellcheck disable=SC2016  # the inner shell expands it
printf '%s\n' "${targets[@]}" | xargs -P "${FUZZ_JOBS:-$(nproc)}" -I '{}' bash -c '
  if output=$(bash tests/fuzz/run.sh --one "$1" 2>&1); then echo passed >>"$2"; else echo failed >>"$2"; fi
  echo "$output"' - '{}' "$results"
failed=$(grep -c failed "$results" || true)
echo "$((${#targets[@]} - failed)) passed, $failed failed"
((failed == 0))
