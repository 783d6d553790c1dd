"""bench/plot_step.py draws what a trace has, and docs/step.svg is what it draws: plot_step_test.py REPOSITORY"""
import json
import pathlib
import shlex
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

SVG = "{http://www.w3.org/2000/svg}"
PICTURE = ["bench/results/2026-11-21-h200-overlap-2-gpus-comm-sms-16-trace.json", "docs/step.svg", "--step", "2",
           "--title", "One training step on two GPUs", "--subtitle",
           "2 × NVIDIA H200, NCCL 2.28.3: 24 linear layers of 4096 × 4096, f32, 1.5 GiB of gradients in buckets of 64 MiB, "
           "16 of 132 SMs for communication"]

root = pathlib.Path(sys.argv[1])
script = root / "bench/plot_step.py"


def draw(*arguments):
    return subprocess.run([sys.executable, str(script), *map(str, arguments)], capture_output=True, text=True, encoding="utf-8",
                          env={"PYTHONIOENCODING": "utf-8"}, check=False)


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

    # The picture of the pages.
    path = pathlib.Path(folder) / "step.svg"
    drawn = draw(root / PICTURE[0], path, *PICTURE[2:])
    expect(drawn.returncode == 0, f"exit code 0, found {drawn.returncode}: {drawn.stderr}")
    if path.read_text(encoding="utf-8") != (root / PICTURE[1]).read_text(encoding="utf-8"):
        sys.exit("docs/step.svg is not what bench/plot_step.py draws. Draw it again, in the repository's folder:\n"
                 "python3 bench/plot_step.py " + shlex.join(PICTURE))
