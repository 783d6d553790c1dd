#!/usr/bin/env python3
"""Draws what compare_ddp/compare.py measured: plots.py RESULTS.json… PICTURE.png (needs matplotlib 3.7, from PyPI)

One column for each model. Above, a bar for each side, made of the local step, what meeting the slowest rank adds, and
exposed communication; a line and a number mark the step through DDP. Below, exposed communication alone: it may be below
zero by noise."""
import argparse
import json
import pathlib
import sys

PARTS = (("local", "#9aa5b1"), ("meet − local", "#d9b44a"), ("exposed", "#b5473c"))


def draw_step(panel, rows):
    for place, row in enumerate(rows):
        bottom = 0
        for (_, colour), height in zip(PARTS, (row["local_ms"], row["meet_ms"] - row["local_ms"], row["exposed_ms"])):
            panel.bar(place, max(height, 0), bottom=bottom, color=colour, width=0.7)
            bottom += max(height, 0)
        panel.hlines(row["ddp_ms"], place - 0.42, place + 0.42, color="black", linewidth=1.5)
        panel.text(place, max(bottom, row["ddp_ms"]), f"{row['ddp_ms']:.1f}", ha="center", va="bottom", fontsize=8)
    panel.set_ylim(top=1.06 * panel.get_ylim()[1])


def draw_exposed(panel, rows):
    for place, row in enumerate(rows):
        height = row["exposed_ms"]
        panel.bar(place, height, color=PARTS[-1][1], width=0.7)
        panel.text(place, max(height, 0), f"{height:.2f}", ha="center", va="bottom", fontsize=8)
    panel.axhline(0, color="black", linewidth=0.8)
    panel.set_xticks(range(len(rows)), [row["side"] for row in rows], rotation=45, ha="right", fontsize=8)
    panel.margins(y=0.15)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=pathlib.Path, nargs="+", help="of one machine; cases of one name become one column")
    parser.add_argument("picture", type=pathlib.Path)
    parser.add_argument("--title")
    options = parser.parse_args()
    try:
        import matplotlib
        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        sys.exit("plots.py: no matplotlib here (3.7 or later, from PyPI)")

    rows = []
    for path in options.results:
        result = json.loads(path.read_text(encoding="utf-8"))
        if not result.get("summary"):
            sys.exit(f"plots.py: {path} has no summary; compare.py writes one")
        rows += result["summary"]
    cases = list(dict.fromkeys(row["case"] for row in rows))
    figure, panels = pyplot.subplots(2, len(cases), figsize=(max(2.6 * len(cases), 6), 5.4), squeeze=False, sharex="col",
                                     height_ratios=(3, 2), layout="constrained")
    for column, case in enumerate(cases):
        of_case = [row for row in rows if row["case"] == case]
        draw_step(panels[0][column], of_case)
        draw_exposed(panels[1][column], of_case)
        panels[0][column].set_title(case, fontsize=10)
        for panel in panels[:, column]:
            panel.spines[["top", "right"]].set_visible(False)
    panels[0][0].set_ylabel("ms a step, slowest rank")
    panels[1][0].set_ylabel("exposed, ms")
    for name, colour in PARTS:
        panels[0][0].bar(0, 0, color=colour, label=name)
    panels[0][0].plot([], [], color="black", label="through DDP")
    figure.legend(loc="outside lower center", ncols=len(PARTS) + 1, frameon=False, fontsize=8)
    machine = result["machine"]
    ranks = result["runs"][0]["ranks"][0]["ranks"]
    where = machine["gpus"][0].split(",")[0] if machine.get("gpus") else machine.get("cpu", "")
    figure.suptitle(options.title or f"{ranks} × {where}, {machine['date'][:10]}", fontsize=11)
    figure.savefig(options.picture, dpi=150)


if __name__ == "__main__":
    main()
