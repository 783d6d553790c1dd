"""The example gpt2 on several CPU ranks is the training of one rank on the whole batch, also where one of them is killed:
gpt2_test.py DDP_LAUNCH GPT2 [--gpus LIST [--virtual N] RANKS], where on GPUs only the latter is tried"""
import os
import pathlib
import re
import signal
import subprocess
import sys

launch, gpt2, *gpus = sys.argv[1:]
TINY = "--layers 2 --width 32 --context 16 --vocabulary 256 --batch 4 --steps 10 --report 5 --lr 1e-3".split()


def losses(ranks, *more):
    command = [launch, "--cpus", str(ranks), "--no-log-files", "--", gpt2, *TINY, *more]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}: {done.stdout}{done.stderr}")
    found = [float(loss) for loss in re.findall(r"step \d+: loss ([0-9.]+)", done.stdout)]
    if len(found) != 2 or ("bf16" not in more and not found[1] < found[0]):  # bf16 hardly resolves a few steps
        sys.exit(f"expected two falling losses of {ranks} ranks, found {done.stdout}")
    return found


def compare():
    for dtype, tolerance in (("fp32", 1e-5), ("amp", 2e-3), ("bf16", 2e-2)):
        of_one, of_two = losses(1, "--dtype", dtype), losses(2, "--dtype", dtype)
        if any(abs(a - b) > tolerance * a for a, b in zip(of_one, of_two)):
            sys.exit(f"{dtype}: expected the same losses, found {of_one} of one rank and {of_two} of two")
        of_parts = losses(2, "--dtype", dtype, "--shard")  # of bf16 with masters, which train better than bf16
        if any(abs(a - b) > tolerance * a for a, b in zip(of_two, of_parts)):
            sys.exit(f"{dtype}: expected the same losses of a sharded optimizer, found {of_parts} and {of_two}")
    if abs(losses(1, "--seed", "2")[1] - losses(1)[1]) < 1e-3:
        sys.exit("expected other losses of another seed: these tests would see nothing")
    refused = subprocess.run([gpt2, "--width", "100"], capture_output=True, text=True, check=False)
    if refused.returncode != 64 or "multiple of 64" not in refused.stderr:
        sys.exit(f"expected --width 100 to be refused, found {refused.returncode}: {refused.stderr}")


def ranks_of(launcher):
    """The processes of the ranks, in the order of their start."""
    children = pathlib.Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    return [int(pid) for pid in children if pathlib.Path(f"/proc/{pid}/comm").read_text().strip() == "gpt2"]


def losses_by_step(text):
    return {int(step): float(loss) for step, loss in re.findall(r"step (\d+): loss ([0-9.]+)", text)}


def survive(options, ranks, report, tolerance):
    long = ["--layers", "2", "--width", "32", "--context", "16", "--vocabulary", "256", "--batch", "12", "--lr", "1e-3",
            "--steps", str(12 * report), "--report", str(report)]
    whole = losses_by_step(subprocess.run([gpt2, *long], capture_output=True, text=True, check=True).stdout)
    for victim in (ranks // 2, 0):
        with subprocess.Popen([launch, "--survive", *options, "--no-log-files", "--", gpt2, *long, "--survive"],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as job:
            said = ""
            for line in job.stdout:
                said += line
                if f"step {2 * report}:" in line:
                    os.kill(ranks_of(job.pid)[victim], signal.SIGKILL)
            errors = job.stderr.read()
        if job.returncode == 69:
            sys.exit(69)  # no such GPUs
        found = losses_by_step(said)
        if job.returncode != 0 or f"went on without rank {victim}" not in errors or found.keys() != whole.keys():
            sys.exit(f"expected a training that goes on without rank {victim}, found {job.returncode}: {said}{errors}")
        if not found[12 * report] < found[report] or any(abs(found[s] - whole[s]) > tolerance * whole[s] for s in whole):
            sys.exit(f"without rank {victim}: expected the losses of one rank, {whole}, found {found}")


if gpus:  # as ddp-launch takes them, and how many ranks there are then
    survive(gpus[:-1], int(gpus[-1]), 200, 1e-2)
else:
    compare()
    survive(["--cpus", "4"], 4, 20, 1e-3)
