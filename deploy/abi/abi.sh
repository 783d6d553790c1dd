#!/usr/bin/env bash
# Compares a shared library with the ABI that was recorded at the last release: docs/versioning.md.
#
#   deploy/abi/abi.sh check LIBRARY RECORDING [SUPPRESSIONS…]   fails on a break that the soname does not announce
#   deploy/abi/abi.sh record LIBRARY RECORDING
#
# LIBRARY needs its types in its debug information, as the preset abi builds it (build/abi/runtime/libddp.so). SUPPRESSIONS
# are files of libabigail beside private.suppr. Needs Debian's package abigail-tools.
set -euo pipefail
folder=$(dirname "${BASH_SOURCE[0]}")
if (($# < 3)) || [[ $1 != check && $1 != record ]]; then
  sed -n '2,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
  exit 64
fi
readonly task=$1 library=$2 recording=$3
seen=$(mktemp) now=$(mktemp)
readonly seen now
trap 'rm -f "$seen" "$now"' EXIT
# record_as FILE: without what differs between machines; ids that are hashes keep the difference of two recordings small.
record_as() {
  abidw --suppr "$folder/private.suppr" --type-id-style hash --no-corpus-path --no-comp-dir-path --no-show-locs \
    --no-parameter-names --no-elf-needed --no-write-default-sizes --out-file "$seen" "$library"
  awk -f "$folder/recording.awk" "$seen" "$seen" >"$1"
  grep -q "'type ddp::" "$1" || { echo "$library has no types of ddp in its debug information: it needs -g" >&2; exit 65; }
}

if [[ $task == record ]]; then
  record_as "$recording"
  exit
fi

# The version in a soname: libddp.so.1 has 1.
recorded=$(grep -m 1 -oE "soname='[^']*'" "$recording" | sed -E "s/.*\.so\.([0-9.]+)'/\1/")
built=$(readelf -d "$library" | sed -nE 's/.*SONAME.*\.so\.([0-9.]+)\]/\1/p')
readonly recorded built
[[ -n $recorded && -n $built ]] || { echo "no soname with a version in $recording or $library" >&2; exit 65; }

# Bits of abidiff's status: 1 and 2 say that it could not compare, 4 and 8 that there is a change; functions that were added
# are none.
record_as "$now"
options=(--no-added-syms --no-unreferenced-symbols --ignore-soname)
for file in "${@:4}"; do options+=(--suppr "$file"); done
status=0
abidiff "${options[@]}" "$recording" "$now" || status=$?
if (((status & 3) != 0)); then
  echo "abidiff could not compare $library with $recording" >&2
  exit 70
fi
if ((status == 0)); then
  echo "the ABI of $recorded is kept"
elif [[ $built != "$recorded" && $(printf '%s\n' "$recorded" "$built" | sort -V | tail -n 1) == "$built" ]]; then
  echo "the ABI has changed, as the soname announces: $recorded was recorded, this is $built"
else
  echo "programs that were linked to $recorded break with this library, and its soname does not say so: raise the version" \
    "in CMakeLists.txt, or take the change back (docs/versioning.md)" >&2
  exit 1
fi
