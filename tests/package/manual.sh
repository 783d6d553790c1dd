#!/usr/bin/env bash
# The installed ddp-launch(1) has what --help and the document say, and man has nothing to complain of. Ends with 77 where
# there is no man.
# manual.sh WORK
set -euo pipefail
installed=$1/installed work=$1/manual
page=$installed/share/man/man1/ddp-launch.1
document=$installed/share/doc/ddp/docs/launcher.md
rm -rf "$work"
mkdir -p "$work"

# part HEADING: that part of the page, with - as in --help; the names in it are those behind each .TP.
part() { sed 's/\\-/-/g' "$page" | awk -v heading=".SH $1" '/^\.SH /{in_it = $0 == heading} in_it'; }
names() { awk 'is_name {print} {is_name = $0 == ".TP"}' | sed 's/\\f.//g'; }
# first_column HEADING: of the document's table.
first_column() { awk -v heading="## $1" '/^## /{in_it = $0 == heading} in_it && /^\|/' "$document" | sed 's/\\|//g' | cut -d '|' -f 2; }
each() { grep -oE -e "$1" | tr -d ' ' | LC_ALL=C sort -u; }
# same WHAT ONE OTHER: two files of words.
same() {
  [[ -s $work/$2 ]] || { echo "found no $1"; exit 1; }
  diff "$work/$2" "$work/$3" || { echo "$1: < stands in $2 only, > in $3 only"; exit 1; }
}

"${BASH_SOURCE[0]%/*}/options_of_help.sh" "$installed" >"$work/help"
part OPTIONS | names | each '(^| )--?[a-z-]+' >"$work/page"
same options help page
grep -e '^--' "$work/help" >"$work/long_of_help"
first_column Options | each '--[a-z][a-z-]+' >"$work/long_of_document"
same "long options" long_of_help long_of_document
part ENVIRONMENT | sed -n '/^\.SS Environment of each rank/,$p' | names | each '[A-Z_]{4,}' >"$work/variables_of_page"
first_column "Environment of a rank" | each '[A-Z_]{4,}' >"$work/variables_of_document"
same variables variables_of_page variables_of_document
part "EXIT STATUS" | names | each '[0-9]+' >"$work/codes_of_page"
first_column "Exit codes" | each '[0-9]+' >"$work/codes_of_document"
same "exit codes" codes_of_page codes_of_document

man --version 2>/dev/null | grep -q '^man ' || { echo "SKIPPED: no man here (package man-db)"; exit 77; }
export LC_ALL=C.UTF-8 MANWIDTH=80
man --warnings -E UTF-8 -l -Tutf8 -Z "$page" 2>&1 >/dev/null | tee "$work/complaints"
if command -v mandoc >/dev/null; then mandoc -T lint "$page" | tee -a "$work/complaints"; fi
[[ ! -s $work/complaints ]] || { echo "man complains of $page"; exit 1; }
# As a user asks for it: man finds the page beside the folder of the command.
PATH=$installed/bin:$PATH MANPATH='' man -w ddp-launch | tee "$work/place"
[[ $(<"$work/place") == "$page" ]]
