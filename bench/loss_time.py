#!/usr/bin/env python3
"""What going on after a lost rank costs, and how fast it is (R26): loss_time.py [BUILD_FOLDER] [--ranks 2,4 | --gpus 0,1] [--runs N] [--json FILE]

Without a loss: runs of train_mlp with and without --survive, by turns; seconds of training for each sample, and their ratio.
With one: from SIGKILL of the last rank until rank 0 has the averages of the next step, as its timeline (DDP_TRACE) has it, with
`ddp-launch --survive` and, by turns, with `--max-restarts 1`, where new processes go on from the last checkpoint. Both write
checkpoints. Medians, fastest and slowest. On a machine on which nothing else runs: a step takes less than a millisecond.
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


def last_rank(job):
    children = pathlib.Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
    return max(int(pid) for pid in children if pathlib.Path(f"/proc/{pid}/comm").read_text().strip() == "train_mlp")


def next_step(timeline):
    """When rank 0 had the averages of its first step after a loss, in nanoseconds since 1970."""
    trace = json.loads(timeline.read_text())
    spans = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    rebuilt = max((span["ts"] + span["dur"] for span in spans if span["cat"] == "rebuild"), default=0)
    steps = (span["ts"] + span["dur"] for span in spans if span["name"] == "bucket 0" and span["ts"] > rebuilt)
    return trace["otherData"]["unix_ns"] + 1000 * min(steps)


def loss_time(build, where, survives):
    """Milliseconds from SIGKILL until the next step."""
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        options, more = (["--survive"], ["--survive"]) if survives else (["--max-restarts", "1"], ["--resume"])
        job = launch(build, folder, where, options,
                     ["--limit", "5000", "--epochs", "10000", "--checkpoint", "saved", "--checkpoint-every", "50", *more],
                     DDP_TRACE=str(folder / "traces"))
        while not (folder / "saved/latest").exists():
            time.sleep(0.01)
        time.sleep(0.1)
        killed = time.time_ns()
        os.kill(last_rank(job), signal.SIGKILL)
        goes_on = "going on with" if survives else "resumed from"
        while goes_on not in (folder / "out").read_text():
            time.sleep(0.01)
        time.sleep(0.1)  # some steps
        job.terminate()
        ended_well(job, folder, 128 + signal.SIGTERM)
        return (next_step(folder / "traces/rank0.json") - killed) / 1e6


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
    options.add_argument("--runs", type=int, default=21)
    options.add_argument("--json")
    given = options.parse_args()
    result = {"date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"), "cpus": os.cpu_count(),
              "runs": given.runs, "rows": []}
    jobs = [["--gpus", given.gpus]] if given.gpus else [["--cpus", ranks] for ranks in given.ranks.split(",")]
    for where in jobs:
        ranks = len(given.gpus.split(",")) if given.gpus else int(where[1])
        survives, plain = by_turns(given.runs, lambda side: sample_time(given.build, where, side))
        ratio = statistics.median(survives) / statistics.median(plain)
        print(f"{ranks} ranks, no loss: {words_of(survives, 'us')} a sample with --survive, {words_of(plain, 'us')} without: "
              f"{ratio:.4f} x", flush=True)
        goes_on, restarts = by_turns(given.runs, lambda side: loss_time(given.build, where, side))
        print(f"{ranks} ranks, from SIGKILL to the next step: {words_of(goes_on, 'ms')} with --survive, "
              f"{words_of(restarts, 'ms')} restarted from a checkpoint", flush=True)
        result["rows"].append({"ranks": ranks, "gpus": given.gpus, "sample_us": survives, "plain_sample_us": plain, "ratio": ratio,
                               "survive_ms": goes_on, "restart_ms": restarts})
    if given.json:
        pathlib.Path(given.json).write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
