"""bench/plot_step.py draws what a trace has, bench/profile_timeline.py makes one of a profile, and the pictures in docs/ are what
they draw: plot_step_test.py REPOSITORY"""
import json
import pathlib
import shlex
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

SVG = "{http://www.w3.org/2000/svg}"
PICTURES = [
    ["bench/results/2026-11-21-h200-overlap-2-gpus-comm-sms-16-trace.json", "docs/step.svg", "--step", "2",
     "--title", "One training step on two GPUs", "--subtitle",
     "2 × NVIDIA H200, NCCL 2.28.3: 24 linear layers of 4096 × 4096, f32, 1.5 GiB of gradients in buckets of 64 MiB, "
     "16 of 132 SMs for communication"],
    ["bench/results/2026-11-25-h100-graph-step-timeline.json", "docs/graph_step.svg", "--step", "2",
     "--title", "One step of GPT-2 124M, replayed as a CUDA graph", "--subtitle",
     "one of 2 × NVIDIA H100, NCCL 2.28.3: autocast, 8 × 1024 tokens, buckets of 25 MiB; bucket 13 is most of the embedding, "
     "whose gradient comes last"],
]

root = pathlib.Path(sys.argv[1])


def run(script, *arguments):
    return subprocess.run([sys.executable, str(root / "bench" / script), *map(str, arguments)], capture_output=True, text=True,
                          encoding="utf-8", env={"PYTHONIOENCODING": "utf-8"}, check=False)


def draw(*arguments):
    return run("plot_step.py", *arguments)


def expect(condition, what):
    if not condition:
        sys.exit(f"expected {what}")


def span(name, category, tid, ts, dur, pid=0, **more):
    return {"name": name, "cat": category, "ph": "X", "pid": pid, "tid": tid, "ts": ts, "dur": dur, **more}


def of_rank(pid, with_compute):
    events = [{"name": "process_name", "ph": "M", "pid": pid, "tid": 0, "args": {"name": f"rank {pid} (<cpu> & co)"}},
              span("bucket 0", "communication", 1, 600, 300, pid, args={"bytes": 4096, "dtype": "f32"}),
              span("bucket 1", "communication", 1, 900, 200, pid),
              span("bucket 0", "communication", 1, 1600, 300, pid),
              span("bucket 1", "communication", 1, 1900, 2100, pid)]
    if with_compute:
        for begin in (0, 1200):
            events += [span("step, overlapped", "step", 2, begin, 1150, pid),
                       span("backward", "compute", 2, begin + 100, 800, pid),
                       span("layer 1", "compute", 2, begin + 110, 390, pid),
                       span("layer 0", "compute", 2, begin + 500, 390, pid)]
    return events


def boxes(drawn):
    """What the boxes say when a pointer rests on them; a picture that is no XML ends the test here."""
    expect(drawn.returncode == 0, f"exit code 0, found {drawn.returncode}: {drawn.stderr}")
    picture = xml.etree.ElementTree.fromstring(drawn.stdout)
    expect(picture.tag == SVG + "svg", f"an SVG picture, found {picture.tag}")
    texts = [text.text for text in picture.iter(SVG + "text")]
    return [title.text for box in picture.iter(SVG + "rect") for title in box], texts


with tempfile.TemporaryDirectory() as folder:
    trace = pathlib.Path(folder) / "trace.json"

    # Two ranks with a track of their own work: the second step of each.
    trace.write_text(json.dumps({"traceEvents": of_rank(0, True) + of_rank(1, True)}), encoding="utf-8")
    shown, texts = boxes(draw(trace, "-", "--step", "2", "--title", "a < b"))
    step = ["layer 1: 390 µs", "layer 0: 390 µs", "bucket 0: 300 µs", "bucket 1: 2.10 ms"]
    expect(sorted(shown) == sorted(2 * step), f"the boxes {2 * step}, found {shown}")
    for label in ("a < b", "rank 0 (<cpu> & co)", "rank 1 (<cpu> & co)", "compute", "communication", "backward 800 µs",
                  "backward: layer", "bucket", "0 ms"):
        expect(label in texts, f"the text {label!r}, found {texts}")

    # Communication alone, as DDP_TRACE writes it: a step begins with its first bucket.
    trace.write_text(json.dumps({"traceEvents": of_rank(0, False)}), encoding="utf-8")
    shown, texts = boxes(draw(trace, "-"))
    expect(shown == ["bucket 0: 300 µs, 4,096 bytes", "bucket 1: 200 µs"], f"two buckets, found {shown}")
    expect("compute" not in texts, f"no lane for compute, found {texts}")

    missing = draw(trace, "-", "--step", "3")
    expect(missing.returncode != 0 and "has 2 steps" in missing.stderr, f"a refusal, found: {missing.stderr}")

    # A profile of two replays and some kernels outside of them.
    profile = pathlib.Path(folder) / "profile.json"
    names = 30 * ["gemm"] + ["softmax_Backward"] + 20 * ["gemm"] + ["ncclDevKernel_AllReduce"] + 2 * ["multi_tensor_apply"]
    kernels = [{"ph": "X", "cat": "kernel", "name": name, "ts": 1000 * replay + 10 * i, "dur": 10, "args": {"correlation": replay}}
               for replay in (1, 2) for i, name in enumerate(names)]
    kernels += [{"ph": "X", "cat": "kernel", "name": "copy", "ts": 5000, "dur": 10, "args": {"correlation": 3}},
                {"ph": "X", "cat": "cuda_runtime", "name": "cudaGraphLaunch", "ts": 1, "dur": 1, "args": {"correlation": 1}}]
    profile.write_text(json.dumps({"traceEvents": kernels}), encoding="utf-8")
    made = run("profile_timeline.py", trace, profile, profile)
    expect(made.returncode == 0, f"exit code 0, found {made.returncode}: {made.stderr}")
    shown, texts = boxes(draw(trace, "-", "--step", "2"))
    step = ["forward: 300 µs", "backward: 210 µs", "bucket 0: 10 µs", "optimizer: 20 µs"]
    expect(sorted(shown) == sorted(2 * step), f"the boxes {2 * step}, found {shown}")
    expect("rank 1" in texts, f"the name of the second rank, found {texts}")
    profile.write_text(json.dumps({"traceEvents": kernels[-2:]}), encoding="utf-8")
    missing = run("profile_timeline.py", trace, profile)
    expect(missing.returncode != 0 and "found none" in missing.stderr, f"a refusal, found: {missing.stderr}")

    # The pictures of the pages.
    for picture in PICTURES:
        path = pathlib.Path(folder) / "step.svg"
        drawn = draw(root / picture[0], path, *picture[2:])
        expect(drawn.returncode == 0, f"exit code 0, found {drawn.returncode}: {drawn.stderr}")
        if path.read_text(encoding="utf-8") != (root / picture[1]).read_text(encoding="utf-8"):
            sys.exit(f"{picture[1]} is not what bench/plot_step.py draws. Draw it again, in the repository's folder:\n"
                     "python3 bench/plot_step.py " + shlex.join(picture))
