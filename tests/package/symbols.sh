#!/usr/bin/env bash
# The shared library shows names of ddp and nothing else, and of these none of a private header.
# symbols.sh WORK SOURCE_FOLDER
set -euo pipefail
work=$1 source=$2
library=$(find "$work/installed" -name libddp.so)
nm -DC --defined-only "$library" | cut -d ' ' -f 3- | sort -u >"$work/symbols"
count=$(wc -l <"$work/symbols")
((count > 100)) || { echo "expected the library's public functions, found $count symbols"; exit 1; }
if grep -vE '^((vtable|typeinfo|typeinfo name) for )?ddp::' "$work/symbols"; then
  echo "these are not of ddp and must not be shown (runtime/exported_symbols.map)"
  exit 1
fi
# Inline functions are a program's own; g++ does not hide instances of templates.
if nm -DC --defined-only "$library" | grep ' W ' | grep -v '<'; then
  echo "these are inline, and must not be shown (VISIBILITY_INLINES_HIDDEN)"
  exit 1
fi
# Each shown class or function is declared in a public header, so that none is undocumented.
status=0
sed -E 's/^(vtable|typeinfo|typeinfo name) for //; s/^ddp:://; s/[^A-Za-z0-9_].*//' "$work/symbols" | sort -u |
  while read -r name; do
    if ! grep -rqw --include='*.hpp' -e "$name" "$work/installed/include"; then echo "$name"; fi
  done >"$work/undeclared"
if [[ -s $work/undeclared ]]; then
  echo "shown by the library, in no public header:"
  cat "$work/undeclared"
  status=1
fi
# What a public header declares can be linked.
while read -r header; do
  if ! grep -q '^namespace DDP_EXPORT ddp' "$header" && grep -q '^namespace .*ddp' "$header"; then
    echo "$header: expected \"namespace DDP_EXPORT ddp {\", or the shared library lacks what it declares"
    status=1
  fi
done < <(find "$source/include/ddp" -name '*.hpp')
exit "$status"
