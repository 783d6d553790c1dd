"""bench/compare_ddp/compare.py finds that the sides train alike, and notices one that does not:

compare_ddp_test.py COMPARE_PY DDP_LAUNCH FOLDER_OF_PROGRAMS FOLDER [PYTHON_WITH_TORCH]"""
import json
import pathlib
import shutil
import subprocess
import sys

compare, launch, programs, folder, *python = sys.argv[1:]
folder = pathlib.Path(folder)
shutil.rmtree(folder, ignore_errors=True)
folder.mkdir(parents=True)
sides = ["ours", "c10d", *(["python"] if python else [])]


def run(*more, ranks=2, **files):
    command = [sys.executable, compare, "--bin", programs, "--launch", launch, "--cpus", str(ranks), "--tiny", "--steps", "3",
               "--warm-up", "10", "--rounds", "1", "--sides", ",".join(sides), *more]
    command += ["--python", python[0]] if python else []
    command += [word for option, path in files.items() for word in (f"--{option}", str(path))]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def expect(condition, what, done):
    if not condition:
        sys.exit(f"expected {what}, found {done.returncode}: {done.stdout}{done.stderr}")


results = folder / "results.json"
done = run("--cases", "gpt2-fp32,layers512", json=results)
expect(done.returncode == 0, "that all sides train alike", done)
written = json.loads(results.read_text(encoding="utf-8"))
expect(not written["problems"] and len(written["summary"]) == 2 * len(sides), "a row for each case and side", done)
expect(all(row["ddp_ms"] > 0 and row["local_ms"] > 0 for row in written["summary"]), "times", done)
again = run("--cases", "gpt2-fp32,layers512", json=results)
expect(again.returncode == 0 and "round" not in again.stderr, "that what was measured is not measured again", again)
other = run("--cases", "layers512", json=results)
expect(other.returncode == 1 and "other options" in other.stderr, "that results of other options are kept", other)

memory = run("--cases", "gpt2-fp32", "--sides", "ours", "--memory")
expect(memory.returncode == 0 and "used of the device" in memory.stdout and "| gpt2-fp32 | ours |" in memory.stdout, "a table of memory", memory)

own = run("--cases", "gpt2-fp32", "--sides", "ours,ours-bf16,ours-measured,ours-per-bucket")
expect(own.returncode == 0, "that gradients as bf16, and updates per bucket, train alike", own)

clipped = run("--cases", "gpt2-clipped", "--sides", ",".join([*sides, "ours-graph"]))
expect(clipped.returncode == 0, "that clipped gradients train alike", clipped)
accumulated = run("--cases", "gpt2-accumulated", "--sides", ",".join(["ours", *(["python"] if python else [])]))
expect(accumulated.returncode == 0, "that micro-steps train alike", accumulated)

dropping = run("--cases", "gpt2-dropping", "--sides", ",".join(["ours", *(["python"] if python else [])]),
               "--warm-up", "11")  # an even number of steps: each way of timing begins with the same
expect(dropping.returncode == 0, "that a model that leaves a block out trains alike", dropping)

sharded = folder / "sharded.json"
parts = run("--cases", "gpt2-fp32,gpt2-bf16", "--sides",
            ",".join(["ours", "ours-masters", "ours-sharded", "ours-sharded-in-backward", *(["python", "python-zero"] if python else [])]),
            json=sharded)
expect(parts.returncode == 0, "that sharded optimizers train alike", parts)
rows = json.loads(sharded.read_text(encoding="utf-8"))["summary"]
expect(sum("over_plain" in row for row in rows) == 2 * (3 if python else 2), "each sharded side beside its plain one", parts)
beside = {row["over_plain"]["side"] for row in rows if row["side"].startswith("ours-sharded")}
expect(beside == {"ours-masters"}, f"that what is sharded stands beside a plain optimizer of f32 values, not {beside}", parts)

alone = run("--cases", "layers512", "--hooks", ranks=1)
expect(alone.returncode == 0, "that one rank can be compared", alone)

for side in sides:
    spoilt = run("--cases", "gpt2-fp32", "--without-exchange", side)
    expect(spoilt.returncode == 1, f"that {side} without exchange is noticed", spoilt)
    for sign in (f"{side}, round 1, ddp: the ranks' weights differ", "losses differ at step",
                 "gradients of the first step have norm"):
        expect(sign in spoilt.stderr, f'"{sign}"', spoilt)
