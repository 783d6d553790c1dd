#!/usr/bin/env python3
"""Times one training step of several models through three kinds of DDP, by turns, and compares them.

  ours         this project's adapter for PyTorch's C++ library (compare_ddp_ours)
  c10d         PyTorch's c10d::Reducer from C++, on the same modules (compare_ddp_c10d)
  python       PyTorch's Python DistributedDataParallel (torch_ddp.py)
  python-bf16  the same with gradients sent as bf16
  ours-bf16    ours with gradients sent as bf16
  ours-checked     ours, looking for gradients that are not finite, in every step
  ours-measured    the same, and measuring every step (statistics)
  ours-per-bucket  ours, updating parameters while other gradients travel
  ours-masters     ours, with an optimizer of f32 values of 16-bit parameters, as a sharded one is
  ours-graph       ours, replaying steps as one CUDA graph
  python-graph     python the same; compared with ours-graph
  ours-sharded              ours with a part of the optimizer on each rank, updated in step()
  ours-sharded-in-backward  the same, updated in the backward pass
  ours-sharded-graph        the first of them as a CUDA graph
  ours-sharded-in-backward-graph  the second
  python-zero      python with ZeroRedundancyOptimizer

gpt2-clipped clips gradients to a norm of 1, and gpt2-accumulated adds up four micro-steps (not for c10d).
gpt2-dropping is GPT-2 in which each rank leaves a block out in every other step: for sides ours and python, with an even
number of steps and warm-up steps together.

Each with gradients as views of buckets, a static graph, fused AdamW, and buffers broadcast in every step. In each round every
side is one job of ddp-launch that times all cases; the order of the sides turns around from round to round. A step is timed as
it stands ("local"), followed by an all-reduce of 4 bytes ("meet": what waiting for the slowest rank costs), and through DDP. The
slowest rank counts, of each rank the median of its steps; "exposed" is DDP - meet. With one rank it is what hooks and copies
cost. Reported are medians over rounds, and ratios of the same round. A second table compares sharded and deterministic sides
with the same side that is not; memory there is what is left after the steps.

It fails (exit code 1) unless all sides began with the same weights, had gradients of the same norm in the first step, and
losses that agree, and all ranks ended with bit-equal weights.

  compare.py --bin build/default/bench/compare_ddp --gpus 0,1 --json bench/results/….json
  compare.py --bin build/default/bench/compare_ddp --cpus 2 --tiny --rounds 1     # to see that it works"""
import argparse
import datetime
import json
import math
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile
import time

CASES = ("gpt2-amp", "gpt2-bf16", "gpt2-fp32", "resnet50", "layers512")
SIDES = ("ours", "c10d", "python", "python-bf16")
# What is added to a program's command. Sides that are not in SIDES run only where they are asked for.
OPTIONS = {**{side: [] for side in SIDES}, "python-bf16": ["--bf16-hook"], "ours-bf16": ["--bf16"],
           "ours-checked": ["--checked"], "ours-measured": ["--checked", "--statistics"],
           "ours-per-bucket": ["--update-per-bucket"], "ours-masters": ["--masters"],
           "ours-graph": ["--graph"], "python-graph": ["--graph"],
           "ours-sharded": ["--shard", "in-step"], "ours-sharded-in-backward": ["--shard", "in-backward"],
           "ours-sharded-graph": ["--shard", "in-step", "--graph"],
           "ours-sharded-in-backward-graph": ["--shard", "in-backward", "--graph"], "python-zero": ["--zero"],
           "ours-deterministic": ["--deterministic"], "ours-deterministic-graph": ["--deterministic", "--graph"]}
PLAIN = {"ours-sharded": "ours", "ours-sharded-in-backward": "ours", "ours-sharded-graph": "ours-graph",
         "ours-sharded-in-backward-graph": "ours-graph", "ours-deterministic": "ours",
         "ours-deterministic-graph": "ours-graph", "python-zero": "python"}  # what these are compared with
WITH_MASTERS = {"ours": "ours-masters"}  # with it in its place, where sharded optimizers keep f32 values
SENT_AS_BF16 = {"python-bf16", "ours-bf16"}
STEPS_COMPARED = 10
# How far losses and norms may be apart: kernels add in different orders, and training amplifies that.
TOLERANCE = {"gpt2-amp": 5e-3, "gpt2-bf16": 2e-2, "gpt2-fp32": 2e-3, "gpt2-medium-amp": 5e-3, "gpt2-clipped": 5e-3, "gpt2-accumulated": 5e-3,
             "gpt2-dropping": 5e-3, "resnet50": 2e-2, "resnet50-channels-last": 2e-2,
             "layers512": 2e-3, "chain": 2e-2}
BF16_TOLERANCE = 2e-2  # of gradients that travelled as bf16
HERE = pathlib.Path(__file__).resolve().parent


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, required=True, help="folder of compare_ddp_ours and compare_ddp_c10d")
    parser.add_argument("--launch", default="", help="ddp-launch (default: that of the same build, or of PATH)")
    parser.add_argument("--python", default=sys.executable, help="a python3 that has torch")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--gpus", default="all", help="which, as ddp-launch reads it (default: all)")
    where.add_argument("--cpus", type=int, help="that many CPU ranks instead")
    parser.add_argument("--cases", default=",".join(CASES), help=f"of {', '.join(TOLERANCE)}")
    parser.add_argument("--sides", default=",".join(SIDES), help="in their order of the first round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=60, help="timed ones")
    parser.add_argument("--warm-up", type=int, default=12, help="steps before these")
    parser.add_argument("--memory", action="store_true",
                        help="steps through DDP only, in processes that do nothing else, and what memory they take")
    parser.add_argument("--hooks", action="store_true", help="also time a step with hooks that do nothing, to subtract")
    parser.add_argument("--tiny", action="store_true", help="sizes for a CPU")
    parser.add_argument("--keep-buffers", action="store_true", help="no side broadcasts buffers")
    parser.add_argument("--json", type=pathlib.Path, help="written after every job; rounds it has already are not run again")
    parser.add_argument("--seconds", type=float, default=math.inf, help="start no job after that long; go on later with --json")
    parser.add_argument("--timeout", type=float, default=900, help="seconds that a job may take")
    parser.add_argument("--without-exchange", default="", metavar="SIDE",
                        help="that side sends no gradients: shows that the comparison notices")
    options = parser.parse_args()
    options.cases, options.sides = options.cases.split(","), options.sides.split(",")
    for given, known, what in ((options.cases, TOLERANCE, "case"), (options.sides, OPTIONS, "side")):
        for each in given:
            if each not in known:
                parser.error(f'there is no {what} "{each}"; there are {", ".join(known)}')
    if "c10d" in options.sides and {"gpt2-accumulated", "gpt2-dropping"} & set(options.cases):
        parser.error("side c10d has a static graph: expected neither gpt2-accumulated nor gpt2-dropping with it; give --sides")
    if not options.launch:
        beside = [options.bin / "ddp-launch", options.bin.parent.parent / "launcher/ddp-launch"]
        options.launch = next((str(each.resolve()) for each in beside if each.exists()), "ddp-launch")
    return options


def clocks():
    """A line of each GPU: clocks of SM and memory, power; nothing without nvidia-smi."""
    try:
        query = subprocess.run(["nvidia-smi", "--query-gpu=clocks.sm,clocks.mem,power.draw", "--format=csv,noheader"],
                               capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return query.stdout.splitlines() if query.returncode == 0 else []


def machine():
    about = {"date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"), "cpus": os.cpu_count()}
    try:
        info = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        about["cpu"] = next(line.split(":", 1)[1].strip() for line in info if line.startswith("model name"))
    except (OSError, StopIteration):
        about["cpu"] = platform.processor()
    try:
        query = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
                               capture_output=True, text=True, timeout=20, check=False)
        about["gpus"] = query.stdout.splitlines() if query.returncode == 0 else []
        commit = subprocess.run(["git", "-C", str(HERE), "describe", "--always", "--dirty"], capture_output=True, text=True,
                                timeout=20, check=False)
        about["commit"] = commit.stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        pass
    about["environment"] = {name: value for name, value in sorted(os.environ.items())
                            if name.startswith(("NCCL_", "TORCH_", "PYTORCH_", "CUBLAS_", "OMP_"))}
    return about


def program(options, side):
    if side.startswith("python"):
        return [options.python, "-u", str(HERE / "torch_ddp.py"), *OPTIONS[side]]
    return [str((options.bin / f"compare_ddp_{side.split('-')[0]}").resolve()), *OPTIONS[side]]


def run_job(options, side, round_number):
    """One side once: what each rank wrote, and the clocks meanwhile."""
    modes = ["ddp"] if options.memory else ["local", "meet", *(["hooks"] if options.hooks else []), "ddp"]
    with tempfile.TemporaryDirectory() as folder:
        command = [options.launch, *(["--cpus", str(options.cpus)] if options.cpus else ["--gpus", options.gpus]),
                   "--no-log-files", "--", *program(options, side), "--out", folder, "--steps", str(options.steps),
                   "--warm-up", str(options.warm_up)]
        command += [word for case in options.cases for word in ("--case", case)]
        command += [word for mode in modes for word in ("--mode", mode)]
        command += ["--tiny"] * options.tiny + ["--keep-buffers"] * options.keep_buffers
        command += ["--without-exchange"] * (side == options.without_exchange)
        # The other sides get what ours has always: a stream of high priority.
        environment = {"TORCH_NCCL_HIGH_PRIORITY": "1", **os.environ}
        deadline = time.monotonic() + options.timeout
        seen = []
        with tempfile.TemporaryFile("w+", encoding="utf-8") as said:
            with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, env=environment) as job:
                while job.poll() is None:
                    if time.monotonic() > deadline:
                        job.terminate()  # ddp-launch ends its ranks
                        job.wait()
                        sys.exit(f"{side}: not done after {options.timeout} s: {' '.join(command)}")
                    seen.append(clocks())
                    time.sleep(1)
            said.seek(0)
            if job.returncode != 0:
                sys.exit(f"{side} failed with {job.returncode}: {' '.join(command)}\n{said.read()[-4000:]}")
        ranks = []
        for path in sorted(pathlib.Path(folder).glob("rank*.jsonl"), key=lambda each: int(each.stem[4:])):
            about, *lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
            ranks.append({**about, "results": lines})
        if not ranks or len(ranks) != ranks[0]["ranks"]:
            sys.exit(f"{side}: {len(ranks)} ranks wrote results")
    busy = [sample for sample in seen if sample]
    return {"round": round_number, "side": side, "clocks": busy[len(busy) * 3 // 4] if busy else [], "ranks": ranks}


def rows_of(runs, side, case, mode):
    """By round: what each rank found."""
    found = {}
    for run in runs:
        if run["side"] == side:
            rows = [row for rank in run["ranks"] for row in rank["results"] if (row["case"], row["mode"]) == (case, mode)]
            if rows:
                found[run["round"]] = rows
    return found


def slowest(rows, key="median_ms"):
    return max(row[key] for row in rows)


def median(values):
    return statistics.median(values) if values else None


def summarise(runs, sides, cases):
    """By case and side: medians over rounds of the slowest rank's times, peaks of memory."""
    table = []
    for case in cases:
        for side in sides:
            by_mode = {mode: rows_of(runs, side, case, mode) for mode in ("local", "meet", "hooks", "ddp")}
            if not by_mode["ddp"]:
                continue
            row = {"case": case, "side": side, "rounds": len(by_mode["ddp"])}
            for mode, rounds in by_mode.items():
                if rounds:
                    row[f"{mode}_ms"] = median([slowest(rows) for rows in rounds.values()])
            ddp = by_mode["ddp"]
            row["mean_ms"] = median([slowest(rows, "mean_ms") for rows in ddp.values()])
            if by_mode["meet"]:
                row["exposed_ms"] = median([slowest(rows) - slowest(by_mode["meet"][n]) for n, rows in ddp.items()])
            if by_mode["hooks"]:
                row["us_per_parameter"] = median([(slowest(rows) - slowest(by_mode["hooks"][n])) * 1e3 / rows[0]["parameters"]
                                                  for n, rows in ddp.items()])
            for name in ("kept_allocated", "peak_allocated", "peak_reserved", "device_used"):
                values = [row_of_rank.get(f"{name}_bytes") for rows in ddp.values() for row_of_rank in rows]
                if None not in values:
                    row[f"{name}_gib"] = max(values) / 2**30
            table.append(row)
    by_side = {(row["case"], row["side"]): row for row in table}
    for row in table:
        beside = PLAIN.get(row["side"])
        if "-sharded" in row["side"] and (row["case"], WITH_MASTERS.get(beside)) in by_side:
            beside = WITH_MASTERS[beside]
        if plain := by_side.get((row["case"], beside)):
            row["over_plain"] = over_plain(runs, row, plain)
        base = "ours-graph" if row["side"].endswith("-graph") else "ours"
        ours = by_side.get((row["case"], base))
        if row["side"] == base or ours is None:
            continue
        mine = {mode: rows_of(runs, base, row["case"], mode) for mode in ("local", "meet", "ddp")}
        theirs = {mode: rows_of(runs, row["side"], row["case"], mode) for mode in ("local", "meet", "ddp")}
        both = sorted(mine["ddp"].keys() & theirs["ddp"].keys())
        row["ours_over_it"] = {mode: median([slowest(mine[mode][n]) / slowest(theirs[mode][n]) for n in both])
                               for mode in ("local", "ddp") if mine[mode] and theirs[mode]}
        if row.get("exposed_ms", 0) > 0:
            row["ours_over_it"]["exposed"] = ours["exposed_ms"] / row["exposed_ms"]
        if "peak_reserved_gib" in row:
            row["ours_over_it"]["memory"] = ours["peak_reserved_gib"] / row["peak_reserved_gib"]
    return table


def over_plain(runs, row, plain):
    """A sharded side over the one that is not: times of the same rounds, what memory is left."""
    mine, theirs = (rows_of(runs, each["side"], each["case"], "ddp") for each in (row, plain))
    ratios = {"side": plain["side"], "ddp": median([slowest(mine[n]) / slowest(theirs[n]) for n in sorted(mine.keys() & theirs.keys())])}
    for name in ("kept_allocated_gib", "device_used_gib"):
        if name in row and name in plain:
            ratios[name] = row[name] / plain[name]
    return ratios


def apart(a, b):
    """Relative; infinite where a number is none."""
    return abs(a - b) / max(abs(a), abs(b), 1e-30) if math.isfinite(a) and math.isfinite(b) else math.inf


def find_problems(runs, cases):
    """What must hold and does not, a sentence each."""
    problems = []
    for case in cases:
        reference = {}  # by mode: the first job's losses and norm, which all others are compared with
        first_digest = None
        for run in runs:
            for mode in ("local", "meet", "hooks", "ddp"):
                rows = rows_of([run], run["side"], case, mode).get(run["round"])
                if not rows:
                    continue
                where = f"{case}, {run['side']}, round {run['round']}, {mode}"
                first_digest = first_digest or rows[0]["first_digest"]
                if any(row["first_digest"] != first_digest for row in rows):
                    problems.append(f"{where}: initial weights differ from the others'")
                if mode == "ddp" and len({row["last_digest"] for row in rows}) > 1:
                    problems.append(f"{where}: the ranks' weights differ after the last step")
                losses = [statistics.fmean(step) for step in zip(*(row["losses"] for row in rows))]
                if any(row.get("norm_of_pieces") for row in rows):
                    norm = math.hypot(*(row["first_gradient_norm"] for row in rows))
                else:
                    norm = statistics.fmean(row["first_gradient_norm"] for row in rows)
                # By themselves optimizers that keep f32 values train otherwise than those that do not.
                kind = "ddp" if mode == "ddp" else f"local{' --masters' * (run['side'] in WITH_MASTERS.values())}"
                side, expected, expected_norm = reference.setdefault(kind, (run["side"], losses, norm))
                sent_as_bf16 = kind == "ddp" and SENT_AS_BF16 & {run["side"], side}
                tolerance = max(TOLERANCE[case], BF16_TOLERANCE if sent_as_bf16 else 0)
                for step, (found, wanted) in enumerate(zip(losses[:STEPS_COMPARED], expected), 1):
                    if apart(found, wanted) > tolerance:
                        problems.append(f"{where}: losses differ at step {step}: {found:.6f}, but {wanted:.6f} with {side} "
                                        f"(more than {tolerance:g} apart)")
                        break
                if apart(norm, expected_norm) > tolerance:
                    problems.append(f"{where}: gradients of the first step have norm {norm:.6g}, but {expected_norm:.6g} with "
                                    f"{side}")
    return problems


def cell(value, digits=2):
    return "" if value is None else f"{value:.{digits}f}"


def print_memory(table):
    """GiB of the rank that has most, in any round."""
    print("| case | side | DDP, ms | kept by tensors | allocated at the peak | reserved | used of the device |")
    print("|---" * 7 + "|")
    for row in table:
        gib = (cell(row.get(f"{name}_gib")) for name in ("kept_allocated", "peak_allocated", "peak_reserved", "device_used"))
        print(f"| {' | '.join([row['case'], row['side'], cell(row['ddp_ms']), *gib])} |")


def print_table(table, out=sys.stdout):
    print("| case | side | local | meet | DDP | exposed | µs a parameter | GiB | ours / it: local | DDP | exposed | memory |",
          file=out)
    print("|---" * 12 + "|", file=out)
    for row in table:
        ratio = row.get("ours_over_it", {})
        cells = [row["case"], row["side"], cell(row["local_ms"]), cell(row["meet_ms"]), cell(row["ddp_ms"]),
                 cell(row["exposed_ms"]), cell(row.get("us_per_parameter")), cell(row.get("peak_reserved_gib")),
                 *(cell(ratio.get(name), 3) for name in ("local", "ddp", "exposed", "memory"))]
        print(f"| {' | '.join(cells)} |", file=out)
    sharded = [row for row in table if row["side"] in {*PLAIN, *PLAIN.values(), *WITH_MASTERS.values()}]
    if any("over_plain" in row for row in sharded):
        print("\n| case | side | DDP | GiB kept by the allocator | GiB used of the device | side / plain: DDP | kept | used |",
              file=out)
        print("|---" * 8 + "|", file=out)
    else:
        return
    for row in sharded:
        ratio = row.get("over_plain", {})
        cells = [row["case"], row["side"], cell(row["ddp_ms"]), cell(row.get("kept_allocated_gib")),
                 cell(row.get("device_used_gib")),
                 *(cell(ratio.get(name), 3) for name in ("ddp", "kept_allocated_gib", "device_used_gib"))]
        print(f"| {' | '.join(cells)} |", file=out)


def main():
    options = parse()
    result = {"what": "compare_ddp", "machine": machine(), "options": {}, "runs": []}
    kept = {"cases": options.cases, "sides": options.sides, "steps": options.steps, "warm_up": options.warm_up,
            "tiny": options.tiny, "keep_buffers": options.keep_buffers, "hooks": options.hooks, "memory": options.memory,
            "where": f"--cpus {options.cpus}" if options.cpus else f"--gpus {options.gpus}"}
    if options.json and options.json.exists() and options.json.stat().st_size > 0:
        result = json.loads(options.json.read_text(encoding="utf-8"))
        if result["options"] != kept:
            sys.exit(f"{options.json} was measured with other options: {result['options']}")
    result["options"] = kept
    begin = time.monotonic()
    done = {(run["round"], run["side"]) for run in result["runs"]}
    for number in range(1, options.rounds + 1):
        for side in options.sides if number % 2 else reversed(options.sides):
            if (number, side) in done:
                continue
            if time.monotonic() - begin > options.seconds:
                sys.exit(f"stopped before round {number}, {side}: the same command goes on from there")
            print(f"round {number} of {options.rounds}: {side}", file=sys.stderr, flush=True)
            result["runs"].append(run_job(options, side, number))
            result["summary"] = summarise(result["runs"], options.sides, options.cases)
            result["problems"] = find_problems(result["runs"], options.cases)
            if options.json:
                options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    first = result["runs"][0]
    print(f"{first['ranks'][0]['ranks']} ranks, torch {first['ranks'][0]['torch']}, "
          f"{', '.join(result['machine'].get('gpus', [])) or result['machine'].get('cpu', '')}, {options.steps} steps; ms, medians "
          f"of {options.rounds} rounds, the slowest rank\n")
    print_memory(result["summary"]) if options.memory else print_table(result["summary"])
    for run in result["runs"]:
        if run["clocks"]:
            print(f"\nround {run['round']}, {run['side']}: {'; '.join(run['clocks'])}", end="")
    print()
    for problem in result["problems"]:
        print(f"compare.py: {problem}", file=sys.stderr)
    sys.exit(1 if result["problems"] else 0)


if __name__ == "__main__":
    main()
