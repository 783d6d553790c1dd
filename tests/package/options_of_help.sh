#!/usr/bin/env bash
# The options that the installed ddp-launch --help names, sorted, one a line. options_of_help.sh INSTALLED
set -euo pipefail
"$1/bin/ddp-launch" --help | sed -n 's/^  -/-/p' | sed 's/  .*//' | grep -oE '(^| )--?[a-z-]+' | tr -d ' ' | LC_ALL=C sort
