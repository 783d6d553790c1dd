# Faults of a job of two hosts, bad input for it, and what must come of each. Source it after hosts.sh; they need hosts and these
# arrays:
#   two_hosts   ddp-launch and what it needs to start a rank on each host
#   here        what stands before it on node-a: env NAME=VALUE…, or nothing
#   kind        the ranks' device and backend
# shellcheck shell=bash disable=SC2154

# when_training SECONDS COMMAND…: in the background of a job, runs the command as long after the ranks began to train.
# What an earlier job said must be gone.
when_training() {
  local delay=$1 end=$((SECONDS + 30))
  shift
  until grep -q training "$work/out"; do
    ((SECONDS < end)) || return 1
    sleep 0.1
  done
  sleep "$delay"
  "$@"
}

# rank_says RANK PATTERN: in the file that own_stderr keeps.
rank_says() {
  grep -qE -- "$2" "$work/rank$1.err" || { sed "s/^/    | [$1] /" "$work/rank$1.err"; return 1; }
}

killed_rank() {
  echo "== a killed rank (F1)"
  # When the exception begins; main() has it when GPU and NCCL are torn down, and mpirun ends the rank after a second.
  watch_for 'dies in 0.1 s' 'rank 0 reports peer_lost: rank 1 is gone .*(its process, [0-9]*,|signal 9 .SIGKILL.) on node-b' &
  run 90 node-a "${here[@]}" env DDP_LOG=info "${two_hosts[@]}" -- \
    "${own_stderr[@]}" "$work" "$training_rank" kill-in-all-reduce 1
  wait $!
  check "exit code 137, after $seconds s" exits_with 137
  check "rank and host are named" says 'rank 1 .*node-b.*signal 9'
  check "rank 0 names it $(lag) ms after it said that it dies in 100 ms" at_most 1100
  check "nothing is left" nothing_left 10
}

stopped_rank() {
  echo "== a stopped rank (F3)"
  run 90 node-a "${here[@]}" env DDP_TIMEOUT=5 "${two_hosts[@]}" "$training_rank" stop 1
  check "the other one names it at its deadline, after $seconds s" says 'timeout: rank 0 waited 5 s in .* for rank 1'
  check "nothing is left" nothing_left 10
}

different_operations() {
  echo "== ranks that call different operations (F8)"
  run 90 node-a "${here[@]}" env DDP_TIMEOUT=5 "${two_hosts[@]}" -- "${own_stderr[@]}" "$work" "$training_rank" order 1
  local rank
  for rank in 0 1; do
    check "rank $rank names both operations, after $seconds s" rank_says "$rank" '^mismatch: .*broadcast'
  done
  check "nothing is left" nothing_left 10
}

thrown_exception() {
  echo "== an exception of one rank reaches the others"
  watch_for 'failed: the loss' 'aborted: .*ended by rank 1' &
  run 90 node-a "${here[@]}" "${two_hosts[@]}" -- "${own_stderr[@]}" "$work" "$training_rank" exception 1
  wait $!
  check "rank 0 says so" rank_says 0 '^aborted: .*ended by rank 1'
  check "$(lag) ms after rank 1" at_most 400
  check "nothing is left" nothing_left 10
}

# MPI does not tell which rank is missing.
absent_rank() {
  echo "== a rank that never makes its World (F9)"
  run 90 node-a "${here[@]}" env DDP_INIT_TIMEOUT=5 "${two_hosts[@]}" "$training_rank" no-init 1
  check "rank 0 names it" says '\[0\] .*timed out after 5 s: 1 of 2 ranks is missing: 1'
  check "so does the report" says 'error: timeout: .*1 of 2 ranks is missing: 1'
  check "exit code 3" exits_with 3
  check "after $seconds s, not after the 30 s that the other sleeps" test "$seconds" -lt 20
  check "nothing is left" nothing_left 10
}

# killed_starter NODE PROGRAMS: by their names in Open MPI 4 and 5, as a regular expression.
killed_starter() {
  local node=$1 program=$2
  echo "== ${program/|/ or } of $node is killed (L7)"
  : >"$work/out"
  when_training 0 on "$node" pkill -9 -x "$program" &
  run 90 node-a "${here[@]}" env DDP_TIMEOUT=5 "${two_hosts[@]}" "$training_rank" none 9
  check "it was there to be killed" wait $!
  check "the job has failed, after $seconds s" says 'first cause: '
  if [ "$node" = node-b ]; then
    check "by that host, not by the rank that only lost another" says 'first cause: rank 1 '
  fi
  check "with a code of its own" test "$status" -ne 0 -a "$status" -ne 124
  check "nothing is left" nothing_left 20
}

pause_launcher() {
  on node-a pkill -STOP -x ddp-launch
  sleep 8
  on node-a pkill -CONT -x ddp-launch
  pkill -CONT -x nsenter  # which stops with what it started
}

# A rank of the other host ends well meanwhile: its guard must not take ddp-launch for unreachable.
stopped_launcher() {
  echo "== ddp-launch is stopped for 8 s (L7)"
  : >"$work/out"
  when_training 0 pause_launcher &
  # shellcheck disable=SC2016  # the ranks' shell expands it
  run 90 node-a "${here[@]}" "${two_hosts[@]}" -- sh -c '[ "$RANK" = 1 ] || { echo training; sleep 12; exit 0; }; sleep 3'
  check "it was there to be stopped" wait $!
  check "the job ends well, after $seconds s" exits_with 0
  check "nothing is left" nothing_left 10
}

restart() {
  echo "== a restart from the last checkpoint (L10)"
  local longer=(--synthetic --limit 2000 --hidden 32 --batch 100 --epochs 300)
  run 120 node-a "${here[@]}" "${two_hosts[@]}" "$train_mlp" "${longer[@]}" --log-json "$work/whole.json"
  # shellcheck disable=SC2016  # the ranks' shell expands it
  run 120 node-a "${here[@]}" "${two_hosts[@]}" --max-restarts 1 -- sh -c \
    'if [ "$DDP_GENERATION$RANK" = 01 ]; then (until [ -e "$1"/*3* ]; do sleep 0.02; done; kill -9 $$) & fi
     shift; exec "$@"' \
    sh "$work/checkpoints" "$train_mlp" "${longer[@]}" --checkpoint "$work/checkpoints" --resume \
    --log-json "$work/restarted.json"
  check "the job ends well, after $seconds s" exits_with 0
  check "after a restart" says 'restart'
  check "with the parameters of a job that nobody killed" same_parameters "$work/whole.json" "$work/restarted.json"
  check "nothing is left" nothing_left 10
}

take_down() {
  cable "$1" down
  date +%s >"$work/cut"
}

# What each CPU rank, mpirun and the report say of a cut.
said_of_a_cut() {
  local rank other
  for rank in 0 1; do
    other=$((1 - rank))
    check "rank $rank names its operation, the rank and the host that it waits for" rank_says "$rank" \
      "$rank waited 5 s in operation [0-9]+, all_reduce .* for rank $other; .*; rank $other runs on ${nodes[$other]}"
  done
  check "with a code of its own, after $seconds s" test "$status" -ne 0 -a "$status" -ne 124
  check "mpirun, which waits for the other host, is ended" says 'mpirun did not end within 2 s: killing it'
  check "the report has the error" says 'its error: timeout: rank 0 waited 5 s in operation'
}

# cut_cable NODE: two ranks reduce, with a deadline of 5 s, and meanwhile the interface of that host goes down. Each
# rank keeps its own stderr, and when it ended.
cut_cable() {
  local node=$1 rank end begin
  echo "== the interface of $node goes down in the middle of an all-reduce"
  rm -f "$work"/rank* "$work/cut"
  : >"$work/out"
  when_training 1 take_down "$node" &
  # shellcheck disable=SC2016  # the ranks' shell expands it
  run 60 node-a "${here[@]}" env DDP_TIMEOUT=5 "${two_hosts[@]}" -- sh -c \
    '"$1" none 9 2>"$2/rank$RANK.err"; code=$?; date +%s >"$2/rank$RANK.end"; exit $code' sh "$training_rank" "$work"
  wait $! || true
  begin=$(cat "$work/cut" || echo 0)
  for rank in 0 1; do
    end=$(cat "$work/rank$rank.end" || echo 9999999999)
    check "rank $rank has ended $((end - begin)) s after the cut, with a deadline of 5 s" test $((end - begin)) -le 15
  done
  cable "$node" up
  if [[ ${kind[0]} == cuda:* ]]; then
    for rank in 0 1; do
      check "rank $rank names the other host" rank_says "$rank" \
        "waited 5 s in .*(runs on|nothing was heard of) ${nodes[$((1 - rank))]}"
    done
  else
    said_of_a_cut
  fi
  check "a minute later nothing is left on either host" nothing_left 90
}

try_faults() {
  killed_rank
  stopped_rank
  different_operations
  thrown_exception
  absent_rank
  killed_starter node-a 'mpirun|prterun'
  killed_starter node-b 'orted|prted'
  stopped_launcher
  restart
  cut_cable node-b
  cut_cable node-a
  run 90 node-a "${here[@]}" "${two_hosts[@]}" "$hello"
  check "with the interface up again there are jobs again" says 'counted 2'
}

other_build() {
  echo "== another build on one host"
  strip -R .note.gnu.build-id -o "$work/other" "$hello"
  # shellcheck disable=SC2016  # the ranks' shell expands it
  run 90 node-a "${here[@]}" "${two_hosts[@]}" -- sh -c '[ "$RANK" = 0 ] || exec "$1"; exec "$0"' "$hello" "$work/other"
  check "works, with a warning that names rank and host" says 'rank 1 \(on node-b\) runs another build'
  check "counts 2" says "rank 1 of 2 on ${kind[0]} \\(${kind[1]}\\): counted 2"
}

hour_apart() {
  echo "== clocks that differ by an hour"
  if ! command -v faketime >/dev/null; then
    skip "faketime is missing: apt-get install faketime"
    return
  fi
  # shellcheck disable=SC2016  # the ranks' shell expands it
  local later=(sh -c '[ "$RANK" = 0 ] || exec faketime -f +1h "$0" "$@"; exec "$0" "$@"')
  run 90 node-a "${here[@]}" "${two_hosts[@]}" -- "${later[@]}" "$hello"
  check "make no difference" says "rank 1 of 2 on ${kind[0]} \\(${kind[1]}\\): counted 2"
  run 90 node-a "${here[@]}" env DDP_TIMEOUT=5 "${two_hosts[@]}" -- "${later[@]}" "$training_rank" stop 1
  check "nor to a deadline, after $seconds s" says 'timeout: rank 0 waited 5 s in .* for rank 1'
  on node-b find /dev/shm -name '*faketime*' -delete  # of the rank that was killed
}

machine_twice() {
  echo "== a hostfile that names one machine twice"
  printf 'node-a slots=1\nnode-a slots=1\n' >"$work/twice"
  run 90 node-a "${here[@]}" "$launch" --hostfile "$work/twice" --no-log-files "$hello"
  check "is refused, with the line" says 'twice:2: node-a stands in line 1 already; give it slots=N once'
  check "exit code 64" exits_with 64
}

try_bad_input() {
  other_build
  hour_apart
  machine_twice
  check "nothing is left" nothing_left 10
}
