#!/usr/bin/env bash
# Every public name has a comment, and Doxygen understands all of them. Ends with 77 where there is no doxygen.
# reference.sh SOURCE_FOLDER WORK
set -euo pipefail
source=$1 work=$2
command -v doxygen >/dev/null || { echo "SKIPPED: no doxygen here (package doxygen)"; exit 77; }
mkdir -p "$work"
cd "$source"
{ cat docs/Doxyfile; echo "OUTPUT_DIRECTORY = $work"; } | doxygen -
[[ -f $work/html/classddp_1_1World.html ]] || { echo "expected the page of ddp::World in $work/html"; exit 1; }
# The check finds what it must find.
printf '%s\n' '/// A file.' '#pragma once' 'namespace ddp {' '/// Documented.' 'struct Known {' '  int nameless = 0;' '};' '}' \
  >"$work/planted.hpp"
if { cat docs/Doxyfile; printf '%s\n' "OUTPUT_DIRECTORY = $work/planted" "INPUT = $work/planted.hpp"; } | doxygen - \
  2>"$work/planted.log"; then
  echo "a member without a comment was let through"
  exit 1
fi
grep -q 'nameless.* is not documented' "$work/planted.log"
