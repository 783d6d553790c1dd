#!/usr/bin/env python3
"""Kills ranks of trainings at random moments, and looks whether each job ends as docs/surviving.md promises (R26).

random_kills.py [--replace] [--shard] [--replay] [--losses N] [--gpus LIST [--virtual N]] BUILD_FOLDER [JOBS [SEED]]

Each job is train_mlp on 2 to 6 CPU ranks under ddp-launch --survive. One to three of its ranks are killed: during the start,
while it trains, while the others rebuild, at the end; in half of the jobs while they write checkpoints too. It prints what
did not end as promised, with the seed that repeats its kills (not their timing), how many ranks were killed and how many jobs
went on without one (others ended before, or had not begun), and `N passed, N failed`. Run it by hand: a job takes about a
second. With --replace new processes stand for lost ranks, which may be killed too. With --shard the optimizer is sharded, and
all jobs save, since ranks go back to what is saved. With --replay one of four CPU ranks is killed, and the training is done
again with that schedule of ranks and nobody killed, from checkpoints: its losses outside of the epoch of the change and its
last parameters must be the same bits.
--losses N is one job that loses and replaces N ranks, each when all are there again; it prints the memory and descriptors of
ddp-launch and of the rank that is never killed. --gpus and --virtual are ddp-launch's: a rank on each of these GPUs, or N on
each; a job takes about five seconds then.
"""
import argparse
import hashlib
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

LONGEST = 60  # seconds, of a job that takes two
GPUS = []  # ddp-launch's options
TOLD = {"ranks killed": 0, "jobs that went on": 0, "compared with a replay": 0}


def where(cpus):
    """How many ranks there are, and what tells ddp-launch so: `cpus`, unless GPUs were asked for."""
    if not GPUS:
        return cpus, ["--cpus", str(cpus)]
    return len(GPUS[1].split(",")) * (int(GPUS[3]) if len(GPUS) > 2 else 1), GPUS


def has_begun(out):
    return re.search("epoch +1/", out) is not None


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


def start(build, folder, options, words, **environment):
    """A training of a second or two under ddp-launch, in `folder`."""
    return subprocess.Popen(
        [build / "launcher/ddp-launch", *options, "--no-log-files", "--", build / "examples/train_mlp/train_mlp", "--synthetic",
         "--limit", "8000", "--hidden", "32", "--batch", "64", *words],
        stdout=open(folder / "out", "w"), stderr=open(folder / "err", "w"), cwd=folder, env=dict(os.environ, **environment))


def run_job(build, seed, replace, shard, replay):
    """Why the job did not end as promised; empty if it did."""
    choose = random.Random(seed)
    ranks, places = where(4 if replay else choose.randint(2, 6))
    kills = 1 if replay else min(choose.choice([1, 1, 1, 2, 2, 3]), ranks - 1)
    from_start = choose.random() < 0.15
    saves = (choose.random() < 0.5 or shard) and not replay
    epochs = "40" if GPUS or replay else "9"
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "tmp").mkdir()
        mark = f"RANDOM_KILLS={os.getpid()}-{seed}"
        job = start(build, folder, ["--survive", *(["--replace", "3"] if replace else []), *places],
                    ["--survive", "--epochs", epochs, "--log-json", folder / "log.json",
                     *(["--checkpoint", folder / "saved", "--checkpoint-every", "7"] if saves else []),
                     *(["--shard"] if shard else [])],
                    DDP_TIMEOUT="10", TMPDIR=str(folder / "tmp"), RANDOM_KILLS=mark.split("=")[1])
        try:
            wrong = kill_and_judge(job, folder, choose, kills, from_start, saves, mark, ranks, replace)
        finally:  # if this script is told to end
            if job.poll() is None:
                job.kill()  # its guard ends the ranks
                job.wait(LONGEST)
        if wrong or not replay or job.returncode != 0:
            return wrong
        changes = [(int(left), int(step)) for left, step in
                   re.findall(r"going on with (\d+) ranks? after step (\d+)", (folder / "out").read_text())]
        found = records(folder / "log.json")
        wanted = replayed(build, folder, places, ranks, changes, epochs)
        if isinstance(wanted, str):
            return wanted
        TOLD["compared with a replay"] += len(changes) > 0
        changed = {epoch_of(step) for _, step in changes}  # whose losses the log has of a part only
        curve = lambda log: {each["epoch"]: (each["loss"], each["test_loss"]) for each in log[:-1] if each["epoch"] not in changed}
        differ = [name for name, same in [("losses", curve(found) == curve(wanted)),
                                          ("parameters", found[-1]["parameters"] == wanted[-1]["parameters"])] if not same]
        return f"{' and '.join(differ)} are not those of a replay, ranks and steps {changes}" if differ else ""


def records(log):
    return [json.loads(line) for line in log.read_text().splitlines()]


def epoch_of(step):
    return (step - 1) // 125 + 1


def replayed(build, folder, places, ranks, changes, epochs):
    """The log of that schedule of ranks without a kill, or why there is none. Ranks end at each change, and as many as are
    left begin from the checkpoint of that step."""
    log, saved, checkpoints = folder / "replay.json", folder / "kept", folder / "checkpoints"
    log.unlink(missing_ok=True)

    def begin(ranks, every):
        shutil.rmtree(checkpoints, ignore_errors=True)
        if saved.exists():
            shutil.copytree(saved, checkpoints, symlinks=True)
        return start(build, folder, [places[0], str(ranks)], ["--epochs", epochs, "--log-json", log, "--checkpoint", checkpoints,
                                                              "--resume", "--checkpoint-every", str(every)])

    for left, step in changes:
        for _ in range(10):
            job = begin(ranks, step or 1000000)
            kept = step == 0 or keep(checkpoints, f"-step-{step}", saved, job)
            job.terminate()
            job.wait(LONGEST)
            # What this job has logged behind the change is not of the schedule.
            log.write_text("".join(line + "\n" for line in (log.read_text() if log.exists() else "").splitlines()
                                   if json.loads(line).get("epoch", 1 << 30) <= step // 125))
            if kept:
                break
        else:
            return f"the replay of {changes} got no checkpoint of step {step}"
        ranks = left
    if begin(ranks, 1000000).wait(LONGEST) != 0:
        return f"the replay of {changes} failed: {(folder / 'err').read_text()}"
    return records(log)


def keep(checkpoints, ending, saved, job):
    """Copies the checkpoint whose name ends so, when it is there, in place of `saved`. False if it was gone before, as later
    ones replace it."""
    give_up = time.monotonic() + 20
    while time.monotonic() < give_up and job.poll() is None:
        for each in checkpoints.glob("*" + ending):
            if not (each / "manifest.json").exists():
                continue
            copied = checkpoints.parent / "copied"
            shutil.rmtree(copied, ignore_errors=True)
            try:
                shutil.copytree(each, copied / each.name)
            except (OSError, shutil.Error):
                return False
            if not each.exists():
                return False
            shutil.rmtree(saved, ignore_errors=True)
            copied.rename(saved)
            return True
        time.sleep(0.0005)
    return False


def kill_and_judge(job, folder, choose, kills, from_start, saves, mark, ranks, replace):
    """As run_job(), of a job that has started in that folder."""
    said = lambda: (folder / "out").read_text()
    while not from_start and not has_begun(said()) and job.poll() is None:
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
    result = re.search(r"final: test accuracy [0-9.]+, (\d+) rank", said())
    if code == 0 and not result:
        wrong.append("no result")
    if code == 0 and result and not replace and int(result[1]) < ranks - len(killed):
        wrong.append(f"{result[1]} ranks are left: one was lost that nobody killed")
    if code == 0 and saves and (what := broken_checkpoints(folder / "saved")):
        wrong.append(what)
    if any((folder / "tmp").iterdir()):
        wrong.append("files are left")
    if left_over(mark):
        wrong.append("processes are left")
    TOLD["ranks killed"] += len(killed)
    TOLD["jobs that went on"] += "going on with" in said()
    return f"{ranks} ranks, {len(killed)} killed: {', '.join(wrong)}\n{(folder / 'err').read_text()}" if wrong else ""


def usage_of(pid):
    """Resident memory that is the process's own, shared memory (KiB), and open descriptors."""
    status = dict(line.split(":", 1) for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line)
    number = lambda name: int(status[name].split()[0])
    return number("RssAnon"), number("RssShmem"), len(os.listdir(f"/proc/{pid}/fd"))


def lose_many(build, losses):
    """Why such a job did not go on; empty if it did."""
    ranks, places = where(3)
    again = f"{ranks} of {ranks} ranks again"
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        job = start(build, folder, ["--survive", "--replace", str(losses), *places], ["--survive", "--epochs", "1000000"])
        said = lambda: (folder / "err").read_text()
        while not has_begun((folder / "out").read_text()):
            time.sleep(0.01)
        kept = ranks_of(job.pid)[0]
        print("loss  ddp-launch: own KiB, shared KiB, descriptors  rank 0: the same  files in /dev/shm")
        wrong = ""
        for loss in range(losses + 1):
            if loss % max(losses // 10, 1) == 0:
                print(loss, *usage_of(job.pid), *usage_of(kept), len(os.listdir("/dev/shm")), flush=True)
            if loss == losses:
                break
            os.kill(next(pid for pid in reversed(ranks_of(job.pid)) if pid != kept), signal.SIGKILL)
            give_up = time.monotonic() + LONGEST
            while said().count(again) <= loss and time.monotonic() < give_up and job.poll() is None:
                time.sleep(0.01)
            if said().count(again) <= loss:
                wrong = f"after {loss + 1} losses nobody came\n{said()}"
                break
            time.sleep(0.1)  # some steps
        job.terminate()
        job.wait(LONGEST)
        return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=lambda folder: pathlib.Path(folder).resolve())
    parser.add_argument("jobs", type=int, nargs="?", default=100)
    parser.add_argument("seed", type=int, nargs="?", default=random.randrange(1 << 30))
    for option in ("--replace", "--shard", "--replay"):
        parser.add_argument(option, action="store_true")
    parser.add_argument("--losses", type=int)
    parser.add_argument("--gpus")
    parser.add_argument("--virtual")
    given = parser.parse_args()
    for option in ("gpus", "virtual"):
        if getattr(given, option):
            GPUS.extend([f"--{option}", getattr(given, option)])
    if given.losses is not None:
        wrong = lose_many(given.build, given.losses)
        print(wrong or "went on after all losses")
        return 1 if wrong else 0
    first = given.seed
    failed = done = 0
    told = False
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: says how far it is
    try:
        for seed in range(first, first + given.jobs):
            wrong = run_job(given.build, seed, given.replace, given.shard, given.replay)
            done += 1
            if wrong:
                failed += 1
                print(f"seed {seed}: {wrong}", flush=True)
    except KeyboardInterrupt:
        told = True
        print("told to end before all were done")
    finally:
        print(", ".join(f"{number} {what}" for what, number in TOLD.items()))
        print(f"{done - failed} passed, {failed} failed, seeds {first} to {first + done - 1}", flush=True)
    return 1 if failed or told or not TOLD["jobs that went on"] else 0


if __name__ == "__main__":
    sys.exit(main())
