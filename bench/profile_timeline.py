#!/usr/bin/env python3
"""Makes a timeline that plot_step.py draws from profiles of steps that were replayed as CUDA graphs:
profile_timeline.py TIMELINE.json RANK0.trace.json [RANK1.trace.json…]

The profiles are PyTorch's: `compare_ddp_ours --graph --profile` writes one for each rank. A launch of at least 50 kernels is a
step. Its kernels become four kinds of spans: the forward pass; the backward pass, from the first kernel with "backward" in its
name; the optimizer, of PyTorch's multi_tensor kernels; and buckets, of NCCL's.
"""
import json
import re
import sys

FEWEST_KERNELS = 50  # of a step


def replays(trace):
    """The kernels of each replay, in order of their begin."""
    launches = {}
    for event in trace["traceEvents"]:
        if event.get("ph") == "X" and event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
            launches.setdefault(event["args"]["correlation"], []).append(event)
    found = [sorted(kernels, key=lambda kernel: kernel["ts"])
             for kernels in launches.values() if len(kernels) >= FEWEST_KERNELS]
    return sorted(found, key=lambda kernels: kernels[0]["ts"])


def end_of(kernels):
    return max(kernel["ts"] + kernel["dur"] for kernel in kernels)


def spans_of(kernels, rank):
    """One step as spans of a timeline."""
    def span(name, track, category, inside):
        begin = inside[0]["ts"]
        return {"ph": "X", "pid": rank, "tid": track, "name": name, "cat": category, "ts": begin, "dur": end_of(inside) - begin}

    sent = [kernel for kernel in kernels if re.match("nccl", kernel["name"])]
    work = [kernel for kernel in kernels if kernel not in sent]
    updates = [kernel for kernel in work if "multi_tensor" in kernel["name"]]
    first_update = updates[0]["ts"] if updates else float("inf")
    first_backward = next((kernel["ts"] for kernel in work if "backward" in kernel["name"].lower()), first_update)
    passes = [("forward", [kernel for kernel in work if kernel["ts"] < first_backward]),
              ("backward", [kernel for kernel in work if first_backward <= kernel["ts"] < first_update]),
              ("optimizer", updates)]
    return ([span("step", 0, "step", kernels)] + [span(name, 0, "compute", inside) for name, inside in passes if inside] +
            [span(f"bucket {i}", 1, "communication", [kernel]) for i, kernel in enumerate(sent)])


def main():
    if len(sys.argv) < 3:
        raise SystemExit(__doc__)
    events = []
    for rank, path in enumerate(sys.argv[2:]):
        with open(path, encoding="utf-8") as file:
            steps = replays(json.load(file))
        if not steps:
            raise SystemExit(f"profile_timeline: {path}: expected launches of at least {FEWEST_KERNELS} kernels, found none; "
                             "is it a profile of steps that were replayed as CUDA graphs?")
        events.append({"ph": "M", "name": "process_name", "pid": rank, "args": {"name": f"rank {rank}"}})
        for kernels in steps:
            events += spans_of(kernels, rank)
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        json.dump({"traceEvents": events}, file)


if __name__ == "__main__":
    main()
