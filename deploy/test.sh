#!/usr/bin/env bash
# Builds everything and runs every test that this machine can run: ./deploy/test.sh
#
# Installs the Debian packages that are missing (as root or with sudo). The last line is
# "N passed, N failed, N skipped", counted in ctest's entries. Above it stands what was skipped, and why: a test wants
# more GPUs than there are, or a tool that is no part of the set-up. The exit status is 0 only if nothing failed and
# each required label ran a test: unit, multi_process, faults and package; with a GPU that can be used also gpu, with
# several multi_gpu.
set -euo pipefail
# shellcheck source=deploy/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

readonly results=$repository/build/test-results

install_packages "${build_packages[@]}" "${test_packages[@]}"
configure -DDDP_BUILD_TESTS=ON
say_what_gpus_lack
required_labels=(unit multi_process faults package)
if gpu_ranks_are_built; then
  if (($(gpus) > 0)); then required_labels+=(gpu); fi
  if (($(gpus) > 1)); then required_labels+=(multi_gpu); fi
fi
say "building"
cmake --build "$build_folder"

# why_skipped JUNIT: the tests that did not run, one a line, each with the reason that it printed. Those that want more
# GPUs than there are end with 69; they can be many, and are counted.
why_skipped() {
  awk '
    /<testcase / {
      name = ""; reason = "no reason given"; next_line = 0
      if (/status="notrun"/) { name = $0; sub(/.*<testcase name="/, "", name); sub(/".*/, "", name) }
    }
    name == "" { next }
    /message="SKIP_RETURN_CODE=69"/ { gpu_tests++; name = ""; next }
    next_line { reason = $0; next_line = 0 }
    /: Skipped$/ { next_line = 1 }  # GoogleTest gives the reason below
    /SKIPPED: / { reason = $0; sub(/.*SKIPPED: /, "", reason) }
    /<\/testcase>/ { print name ": " reason }
    END { if (gpu_tests > 0) print gpu_tests " that want a GPU, or more GPUs than there are" }
  ' "$1" | sed 's/&lt;/</g; s/&gt;/>/g; s/&quot;/"/g; s/&amp;/\&/g'
}

passed=0 failed=0 skipped=0
problems=() reasons=()

# run NAME JOBS FILTER…: runs the tests that ctest's FILTER selects, and adds to the counts.
run() {
  local -r name=$1 jobs=$2 junit=$results/$1.xml
  local status=0
  shift 2
  rm -f "$junit"
  say "tests: $name"
  ctest --test-dir "$build_folder" "$@" -j "$jobs" --output-on-failure --output-junit "$junit" </dev/null || status=$?
  ran=0
  [[ -e $junit ]] || return 0
  local all failures not_run
  read -r all failures not_run <<<"$(junit_counts "$junit")"
  ran=$((all - not_run))
  mapfile -t -O "${#problems[@]}" problems \
    < <(grep -oE '<testcase name="[^"]*".* status="fail"' "$junit" | sed -E 's/^<testcase name="([^"]*)".*/failed: \1/')
  mapfile -t -O "${#reasons[@]}" reasons < <(why_skipped "$junit")
  # A test that could not be started is neither: ctest counts it as not run.
  if ((status != 0 && failures == 0)); then
    problems+=("$name: ctest ended with status $status though no test failed; was one not built?")
  fi
  passed=$((passed + ran - failures)) failed=$((failed + failures)) skipped=$((skipped + not_run))
}

mkdir -p "$results"
for label in "${required_labels[@]}"; do
  # Tests of several processes, or on GPUs, are jobs with deadlines, and mostly wait: two at a time.
  case $label in
    unit | package) at_once=$(nproc) ;;
    *) at_once=2 ;;
  esac
  run "$label" "$at_once" -L "^$label\$"
  if ((ran == 0)); then problems+=("no test with the label $label ran; at least one is required"); fi
done
others=(-LE "^($(IFS='|' && echo "${required_labels[*]}"))\$")
if ctest --test-dir "$build_folder" -N "${others[@]}" | grep -qE '^Total Tests: [1-9]'; then run others 1 "${others[@]}"; fi

for reason in "${reasons[@]}"; do say "skipped: $reason"; done
for problem in "${problems[@]}"; do complain "$problem"; done
echo "$passed passed, $failed failed, $skipped skipped"
((failed == 0 && ${#problems[@]} == 0))
