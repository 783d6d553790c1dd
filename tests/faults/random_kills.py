#!/usr/bin/env python3
"""Kills ranks of trainings at random moments, and looks whether each job ends as docs/surviving.md promises (R26).

random_kills.py BUILD_FOLDER [JOBS [SEED]]

Each job is train_mlp on 2 to 6 CPU ranks under ddp-launch --survive. One to three of its ranks are killed: during the start,
while it trains, while the others rebuild, at the end; in half of the jobs while they write checkpoints too. It prints what did not end as promised, with the seed that repeats its
kills (not their timing), and `N passed, N failed`. Run it by hand: a job takes about a second.
"""
import hashlib
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

LONGEST = 60  # seconds, of a job that takes two


def ranks_of(launcher):
    """The processes of the ranks, in the order of their start."""
    children = pathlib.Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    return [pid for pid in map(int, children) if name_of(pid) == "train_mlp"]


def name_of(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def left_over(mark):
    """Living processes that have `mark` in the environment that they started with."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark.encode() in (entry / "environ").read_bytes():
                found.append(entry.name)
        except OSError:
            pass
    return found


def broken_checkpoints(folder):
    """What is wrong with the checkpoints of a job that has ended well; empty if nothing."""
    found = [each for each in folder.iterdir() if each.is_dir() and not each.is_symlink()]
    if not found:
        return "no checkpoint"
    for each in found:
        if not (each / "manifest.json").exists():
            return f"{each.name} is not complete"
        for file in json.loads((each / "manifest.json").read_text())["files"]:
            if hashlib.sha256((each / file["name"]).read_bytes()).hexdigest() != file["sha256"]:
                return f"{file['name']} of {each.name} is damaged"
    return ""


def run_job(build, seed):
    """Why the job did not end as promised; empty if it did."""
    choose = random.Random(seed)
    ranks = choose.randint(2, 6)
    kills = min(choose.choice([1, 1, 1, 2, 2, 3]), ranks - 1)
    from_start = choose.random() < 0.15
    saves = choose.random() < 0.5
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "tmp").mkdir()
        mark = f"RANDOM_KILLS={os.getpid()}-{seed}"
        environment = dict(os.environ, DDP_TIMEOUT="10", TMPDIR=str(folder / "tmp"), RANDOM_KILLS=mark.split("=")[1])
        with open(folder / "out", "w") as out, open(folder / "err", "w") as err:
            job = subprocess.Popen(
                [build / "launcher/ddp-launch", "--survive", "--cpus", str(ranks), "--no-log-files", "--",
                 build / "examples/train_mlp/train_mlp", "--survive", "--synthetic", "--limit", "8000", "--hidden", "32",
                 "--batch", "64", "--epochs", "9", *(["--checkpoint", folder / "saved", "--checkpoint-every", "7"] if saves else [])],
                stdout=out, stderr=err, cwd=folder, env=environment)
        said = lambda: (folder / "out").read_text()
        while not from_start and "epoch 1/" not in said() and job.poll() is None:
            time.sleep(0.002)
        killed = []
        for _ in range(kills):
            time.sleep(choose.choice([0, choose.uniform(0, 0.03), choose.uniform(0, 0.8)]))
            try:
                living = [pid for pid in ranks_of(job.pid) if pid not in killed]
                if living:
                    killed.append(choose.choice(living))
                    os.kill(killed[-1], signal.SIGKILL)
            except OSError:
                pass  # the job, or that rank, has ended
        try:
            code = job.wait(LONGEST)
        except subprocess.TimeoutExpired:
            job.kill()
            return f"{ranks} ranks, {len(killed)} killed: hangs\n{(folder / 'err').read_text()}"
        wrong = []
        # A rank that is killed before it is in its `try` ends the job.
        if code != 0 and not (from_start and code == 137):
            wrong.append(f"exit code {code}")
        if code == 0 and "final: test accuracy" not in said():
            wrong.append("no result")
        if code == 0 and saves and (what := broken_checkpoints(folder / "saved")):
            wrong.append(what)
        if any((folder / "tmp").iterdir()):
            wrong.append("files are left")
        if left_over(mark):
            wrong.append("processes are left")
        return f"{ranks} ranks, {len(killed)} killed: {', '.join(wrong)}\n{(folder / 'err').read_text()}" if wrong else ""


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    jobs = int(sys.argv[2]) if len(sys.argv) > 2 else 100
    first = int(sys.argv[3]) if len(sys.argv) > 3 else random.randrange(1 << 30)
    failed = 0
    for seed in range(first, first + jobs):
        if wrong := run_job(build, seed):
            failed += 1
            print(f"seed {seed}: {wrong}", flush=True)
    print(f"{jobs - failed} passed, {failed} failed, seeds {first} to {first + jobs - 1}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
