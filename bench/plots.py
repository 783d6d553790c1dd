#!/usr/bin/env python3
"""Draws what compare_ddp/compare.py measured: plots.py RESULTS.json PICTURE.png (needs matplotlib)

One panel for each model: a bar for each side, made of the local step, what meeting the slowest rank adds, and exposed
communication, with the step through DDP written above it."""
import argparse
import json
import pathlib
import sys

PARTS = (("local", "#9aa5b1"), ("meet − local", "#d9b44a"), ("exposed", "#b5473c"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=pathlib.Path)
    parser.add_argument("picture", type=pathlib.Path)
    parser.add_argument("--title")
    options = parser.parse_args()
    try:
        import matplotlib
        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        sys.exit("plots.py: no matplotlib here (package python3-matplotlib)")

    result = json.loads(options.results.read_text(encoding="utf-8"))
    rows = result.get("summary", [])
    if not rows:
        sys.exit(f"plots.py: {options.results} has no summary; compare.py writes one")
    cases = list(dict.fromkeys(row["case"] for row in rows))
    figure, panels = pyplot.subplots(1, len(cases), figsize=(2.6 * len(cases), 4), squeeze=False, layout="constrained")
    for panel, case in zip(panels[0], cases):
        of_case = [row for row in rows if row["case"] == case]
        for place, row in enumerate(of_case):
            # A part may be below zero by noise: it is then left out, and the number says what was measured.
            heights = (row["local_ms"], row["meet_ms"] - row["local_ms"], row["exposed_ms"])
            bottom = 0
            for (name, colour), height in zip(PARTS, heights):
                panel.bar(place, max(height, 0), bottom=bottom, color=colour, width=0.7,
                          label=name if place == 0 and panel is panels[0][0] else None)
                bottom += max(height, 0)
            panel.text(place, bottom, f"{row['ddp_ms']:.1f}", ha="center", va="bottom", fontsize=8)
        panel.set_title(case, fontsize=10)
        panel.set_xticks(range(len(of_case)), [row["side"] for row in of_case], rotation=45, ha="right", fontsize=8)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0][0].set_ylabel("ms a step, the slowest rank")
    figure.legend(loc="outside lower center", ncols=len(PARTS), frameon=False, fontsize=8)
    machine = result["machine"]
    ranks = result["runs"][0]["ranks"][0]["ranks"]
    where = machine["gpus"][0].split(",")[0] if machine.get("gpus") else machine.get("cpu", "")
    figure.suptitle(options.title or f"{ranks} × {where}, {machine['date'][:10]}", fontsize=11)
    figure.savefig(options.picture, dpi=150)


if __name__ == "__main__":
    main()
