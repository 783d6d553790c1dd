#!/usr/bin/env python3
"""What going on after a lost rank costs, and how fast it is (R26):
loss_time.py [BUILD_FOLDER] [--ranks 2,4 | --gpus 0,1] [--kill N] [--replace] [--runs N] [--json FILE]

Without a loss: runs of train_mlp with and without --survive, by turns; seconds of training for each sample, and their ratio.
With one: from SIGKILL of the last rank (--kill N: of the last N, at once) until rank 0 has the averages of the next step, as
its timeline (DDP_TRACE) has it, with `ddp-launch --survive` and, by turns, with `--max-restarts 1`, where new processes go on
from the last checkpoint. Both write checkpoints. With --replace, which leaves out the rest, new processes stand for lost ranks:
until the next step of those that are left, and until the first one of all. Medians, fastest and slowest. On a machine on which
nothing else runs: a step takes less than a millisecond.
"""
import argparse
import datetime
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time


def launch(build, folder, where, options, words, **environment):
    return subprocess.Popen(
        [build / "launcher/ddp-launch", *where, "--no-log-files", *options, "--",
         build / "examples/train_mlp/train_mlp", "--synthetic", *words],
        stdout=open(folder / "out", "w"), stderr=open(folder / "err", "w"), cwd=folder, env=dict(os.environ, **environment))


def ended_well(job, folder, code):
    if job.wait() != code:
        sys.exit(f"loss_time.py: exit code {job.returncode}, expected {code}\n{(folder / 'err').read_text()}")


def sample_time(build, where, survives):
    """Microseconds of training for each sample, of a run without a loss."""
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        option = ["--survive"] if survives else []
        size = ["--epochs", "4"] if where[0] == "--cpus" else ["--epochs", "40", "--hidden", "2048,2048"]
        job = launch(build, folder, where, option, ["--limit", "20000", *size, "--log-json", "log", *option])
        ended_well(job, folder, 0)
        return 1e6 / json.loads((folder / "log").read_text().splitlines()[-1])["samples_per_second"]


def last_ranks(job, number):
    children = pathlib.Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
    return sorted(int(pid) for pid in children if pathlib.Path(f"/proc/{pid}/comm").read_text().strip() == "train_mlp")[-number:]


def next_steps(timeline):
    """When rank 0 had the averages of its first step after each rebuild, or of its first one, in nanoseconds since 1970."""
    trace = json.loads(timeline.read_text())
    spans = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    rebuilt = sorted(span["ts"] + span["dur"] for span in spans if span["cat"] == "rebuild") or [0]
    steps = sorted((span["ts"], span["ts"] + span["dur"]) for span in spans if span["name"] == "bucket 0")
    return [trace["otherData"]["unix_ns"] + 1000 * next(end for begin, end in steps if begin > after)
            for after in rebuilt if steps[-1][0] > after]


def loss_time(build, where, ranks, kill, survives, replace=False):
    """Milliseconds from SIGKILL until the next step, and until the first one of the membership that stays."""
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        options, more = (["--survive"], ["--survive"]) if survives else (["--max-restarts", "1"], ["--resume"])
        options += ["--replace", str(kill)] if replace else []
        job = launch(build, folder, where, options,
                     ["--limit", "5000", "--epochs", "10000", "--checkpoint", "saved", "--checkpoint-every", "50", *more],
                     DDP_TRACE=str(folder / "traces"))
        while not (folder / "saved/latest").exists():
            time.sleep(0.01)
        time.sleep(0.1)
        lost = last_ranks(job, kill)
        killed = time.time_ns()
        for rank in lost:
            os.kill(rank, signal.SIGKILL)
        goes_on = f"going on with {ranks if replace else ranks - kill} ranks" if survives else "resumed from"
        while goes_on not in (folder / "out").read_text():
            if job.poll() is not None:
                sys.exit(f"loss_time.py: the job ended: expected \"{goes_on}\"\n{(folder / 'err').read_text()}")
            time.sleep(0.01)
        time.sleep(0.1)  # some steps
        job.terminate()
        ended_well(job, folder, 128 + signal.SIGTERM)
        steps = [(step - killed) / 1e6 for step in next_steps(folder / "traces/rank0.json")]
        return steps[0], steps[-1]


def by_turns(runs, measure):
    """The figures of both sides: with --survive, and without."""
    sides = {True: [], False: []}
    for run in range(runs):
        for survives in ((True, False) if run % 2 else (False, True)):
            sides[survives].append(measure(survives))
    return sides[True], sides[False]


def words_of(figures, unit):
    return f"{statistics.median(figures):.4g} {unit} ({min(figures):.4g} to {max(figures):.4g})"


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("build", nargs="?", default="build/default", type=lambda path: pathlib.Path(path).resolve())
    options.add_argument("--ranks", default="2,4", help="of CPUs")
    options.add_argument("--gpus", help="a rank on each of these, instead")
    options.add_argument("--kill", type=int, default=1, help="ranks, at once")
    options.add_argument("--replace", action="store_true", help="new processes stand for lost ranks")
    options.add_argument("--runs", type=int, default=21)
    options.add_argument("--json")
    given = options.parse_args()
    result = {"date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"), "cpus": os.cpu_count(),
              "runs": given.runs, "rows": []}
    jobs = [["--gpus", given.gpus]] if given.gpus else [["--cpus", ranks] for ranks in given.ranks.split(",")]
    for where in jobs:
        ranks = len(given.gpus.split(",")) if given.gpus else int(where[1])
        if not 0 < given.kill < ranks:
            sys.exit(f"loss_time.py: --kill {given.kill} of {ranks} ranks: expected at least one, and one to be left")
        row = {"ranks": ranks, "gpus": given.gpus, "kill": given.kill}
        result["rows"].append(row)
        if given.replace:
            times = [loss_time(given.build, where, ranks, given.kill, True, True) for run in range(given.runs)]
            row["survive_ms"], row["replaced_ms"] = zip(*times)
            print(f"{ranks} ranks, from SIGKILL of {given.kill}: {words_of(row['survive_ms'], 'ms')} to the next step, "
                  f"{words_of(row['replaced_ms'], 'ms')} to the first step with their replacements", flush=True)
            continue
        if given.kill == 1:
            row["sample_us"], row["plain_sample_us"] = by_turns(given.runs, lambda side: sample_time(given.build, where, side))
            row["ratio"] = statistics.median(row["sample_us"]) / statistics.median(row["plain_sample_us"])
            print(f"{ranks} ranks, no loss: {words_of(row['sample_us'], 'us')} a sample with --survive, "
                  f"{words_of(row['plain_sample_us'], 'us')} without: {row['ratio']:.4f} x", flush=True)
        row["survive_ms"], row["restart_ms"] = by_turns(
            given.runs, lambda side: loss_time(given.build, where, ranks, given.kill, side)[-1])
        print(f"{ranks} ranks, from SIGKILL of {given.kill} to the next step: {words_of(row['survive_ms'], 'ms')} with --survive, "
              f"{words_of(row['restart_ms'], 'ms')} restarted from a checkpoint", flush=True)
    if given.json:
        pathlib.Path(given.json).write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
