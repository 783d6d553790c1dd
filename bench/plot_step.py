#!/usr/bin/env python3
"""Draws one training step of every rank as an SVG: plot_step.py TRACE.json STEP.svg [--step N] [--title T] [--subtitle T]

TRACE.json is a timeline of DDP_TRACE or `ddp-bench overlap --trace`: of one rank, or all of them as
`ddp-bench merge-traces` writes them. A step is a span of category "step"; where a program records none, it lasts from one
"bucket 0" to the next. Spans on one track nest: outer ones become headings, inner ones boxes.
"""
import argparse
import json
import re
import statistics
import sys
from xml.sax.saxutils import escape

WIDTH, LEFT, RIGHT = 960, 132, 16  # pixels: of the picture, of the names beside the lanes, of the margin
BOX, HEADING, GAP, RANK_GAP = 26, 17, 6, 18
CHARACTER = 6.2  # the width of a digit in a box, roughly: the viewer's font decides
COMPUTE = ["a", "b", "c", "d"]  # classes below, for kinds of work in order of appearance
COMMUNICATION = ["x", "y", "z"]
STYLE = """
  text { font: 12px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; fill: #1f2328; }
  .back { fill: #ffffff; } .grid { stroke: #d8dee4; } .lane { fill: #f3f5f7; }
  .title { font-size: 16px; font-weight: 600; } .rank { font-weight: 600; } .small { font-size: 11px; fill: #59636e; }
  .in { font-size: 10px; text-anchor: middle; fill: #ffffff; } .middle { text-anchor: middle; }
  .a { fill: #7d8590; } .b { fill: #0969da; } .c { fill: #54aeff; } .d { fill: #1b7c83; }
  .x { fill: #8250df; } .y { fill: #bc4c00; } .z { fill: #bf3989; }
  .heading { stroke: #8c959f; fill: none; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; } .small { fill: #9198a1; } .in { fill: #ffffff; }
    .back { fill: #0d1117; } .grid { stroke: #30363d; } .lane { fill: #161b22; } .heading { stroke: #6e7681; }
    .a { fill: #6e7681; } .b { fill: #1f6feb; } .c { fill: #79c0ff; } .d { fill: #3192aa; }
    .x { fill: #a371f7; } .y { fill: #bd561d; } .z { fill: #bf4b8a; }
  }
"""


def read_ranks(trace):
    """The ranks in order: (name, spans), each span a dictionary with end added and the category's default."""
    names, ranks = {}, {}
    for event in trace["traceEvents"]:
        if event["ph"] == "M" and event["name"] == "process_name":
            names[event["pid"]] = event["args"]["name"]
        elif event["ph"] == "X":
            ranks.setdefault(event["pid"], []).append({**event, "end": event["ts"] + event["dur"]})
    return [(names.get(pid, f"process {pid}"), sorted(ranks[pid], key=lambda span: (span["ts"], -span["end"])))
            for pid in sorted(ranks)]


def steps(spans):
    """The steps of one rank: (begin, end) in the trace's µs."""
    found = [(span["ts"], span["end"]) for span in spans if span.get("cat") == "step"]
    if found:
        return found
    begins = [span["ts"] for span in spans if span["name"] == "bucket 0"]
    return list(zip(begins, begins[1:] + [max((span["end"] for span in spans), default=0)]))


def kind(name):
    """bucket 3 and bucket 4 are of one kind, "bucket"."""
    return re.sub(r" *\d+$", "", name)


def time_of(us):
    return f"{us / 1000:.2f} ms" if us >= 1000 else f"{us:.0f} µs"


def outer_spans(spans):
    """Those in which another one begins."""
    return [span for span, after in zip(spans, spans[1:]) if after["ts"] < span["end"]]


def describe(span):
    size = span.get("args", {}).get("bytes")
    return span["name"] + ": " + time_of(span["dur"]) + (f", {size:,} bytes" if size else "")


class Picture:
    def __init__(self, zero, end):
        self.zero, self.scale = zero, (WIDTH - LEFT - RIGHT) / (end - zero)
        self.end, self.items, self.classes, self.y = end, [], {}, 0

    def x(self, time):
        return LEFT + (time - self.zero) * self.scale

    def text(self, x, y, words, classes=""):
        given = f' class="{classes}"' if classes else ""
        self.items.append(f'<text x="{x:.1f}" y="{y:.1f}"{given}>{escape(words)}</text>')

    def colour(self, span, around):
        """The class of its kind; the legend names kinds as they came: "backward: inputs of layer"."""
        palette = COMMUNICATION if span.get("cat") == "communication" else COMPUTE
        words = ": ".join([*(outer["name"] for outer in around), kind(span["name"])])
        taken = sum(1 for colour in self.classes.values() if colour in palette)
        return self.classes.setdefault(words, palette[taken % len(palette)])

    def box(self, span, colour, numbered):
        x, width = self.x(span["ts"]), max(span["dur"] * self.scale, 1)
        shown = max(width - 0.8, 0.8)  # a hair between neighbours
        self.items.append(f'<rect class="{colour}" x="{x:.1f}" y="{self.y}" width="{shown:.1f}" height="{BOX}" '
                          f'rx="1.5"><title>{escape(describe(span))}</title></rect>')
        number = re.search(r"\d+$", span["name"])
        if numbered and number and len(number[0]) * CHARACTER < shown:
            self.text(x + shown / 2, self.y + BOX / 2 + 3.5, number[0], "in")

    def heading(self, span):
        begin, end, y = self.x(span["ts"]), self.x(span["end"]) - 0.8, self.y + HEADING - 3
        self.items.append(f'<path class="heading" d="M{begin:.1f} {y + 3}V{y}H{end:.1f}V{y + 3}"/>')
        words = f'{span["name"]} {time_of(span["dur"])}'
        if len(words) * CHARACTER < end - begin:
            self.text((begin + end) / 2, y - 4, words, "small middle")

    def lane(self, name, spans):
        outer = outer_spans(spans)
        inner = [span for span in spans if span not in outer]
        if outer:
            for span in outer:
                self.heading(span)
            self.y += HEADING
        self.items.append(f'<rect class="lane" x="{LEFT}" y="{self.y}" width="{WIDTH - LEFT - RIGHT}" height="{BOX}"/>')
        self.text(12, self.y + BOX / 2 + 4, name)
        boxes = [(span, self.colour(span, [other for other in outer if other["ts"] <= span["ts"] < other["end"]]))
                 for span in inner]
        widths = {}
        for span, colour in boxes:
            widths.setdefault(colour, []).append(span["dur"] * self.scale)
        for span, colour in boxes:  # numbers where two digits fit into most boxes of the kind
            self.box(span, colour, statistics.median(widths[colour]) > 2 * CHARACTER)
        self.y += BOX + GAP

    def legend(self):
        x = LEFT
        for what, colour in self.classes.items():
            self.items.append(f'<rect class="{colour}" x="{x:.1f}" y="{self.y}" width="12" height="12" rx="2"/>')
            self.text(x + 17, self.y + 10, what, "small")
            x += 17 + len(what) * CHARACTER + 18

    def axis(self, top):
        """Lines behind the lanes from `top` to here, and their times below."""
        length = (self.end - self.zero) / 1000
        tick = next(step for step in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, length) if length / step <= 16)
        lines = []
        for i in range(int(length / tick) + 1):
            x = self.x(self.zero + i * tick * 1000)
            lines.append(f'<path class="grid" d="M{x:.1f} {top}V{self.y + 4}"/>')
            self.text(x, self.y + 18, f"{i * tick:g}" + (" ms" if i == 0 else ""), "small middle")
        self.items[0:0] = lines
        self.y += 34


def draw(trace, number, title, subtitle):
    ranks = read_ranks(trace)
    chosen = []
    for name, spans in ranks:
        found = steps(spans)
        if not number <= len(found):
            raise SystemExit(f"plot_step: {name} has {len(found)} steps in this trace, expected at least {number}")
        chosen.append(found[number - 1])
    if not chosen:
        raise SystemExit("plot_step: the trace has no spans")
    picture = Picture(min(begin for begin, _ in chosen), max(end for _, end in chosen))
    picture.y = 22
    for words, classes, height in ((title, "title", 20), (subtitle, "small", 18)):
        if words:
            picture.text(12, picture.y, words, classes)
            picture.y += height
    picture.y += 4
    top = picture.y
    for (name, spans), (begin, end) in zip(ranks, chosen):
        picture.text(12, picture.y + 11, name, "rank")
        inside = [span for span in spans if begin <= span["ts"] < end and span.get("cat") != "step"]
        work = [span for span in inside if span.get("cat") != "communication"]
        for lane, of_lane in (("compute", work), ("communication", [span for span in inside if span not in work])):
            if of_lane:
                first = lane == "compute" or not work
                if first and not outer_spans(of_lane):
                    picture.y += HEADING  # the rank's name, where no heading leaves room for it
                picture.lane(lane, of_lane)
        picture.y += RANK_GAP
    picture.y -= RANK_GAP
    picture.axis(top)
    picture.legend()
    picture.y += 24
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {picture.y}" width="{WIDTH}" '
                      f'height="{picture.y}" role="img">', f"<title>{escape(title or 'One training step')}</title>",
                      f"<style>{STYLE}</style>", f'<rect class="back" width="{WIDTH}" height="{picture.y}" rx="6"/>',
                      *picture.items, "</svg>", ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace")
    parser.add_argument("svg", help='"-": standard output')
    parser.add_argument("--step", type=int, default=1, metavar="N", help="which step of the trace, from 1")
    parser.add_argument("--title", default="")
    parser.add_argument("--subtitle", default="")
    options = parser.parse_args()
    if options.step < 1:
        parser.error(f"--step is {options.step}, expected 1 or more")
    with open(options.trace, encoding="utf-8") as file:
        trace = json.load(file)
    svg = draw(trace, options.step, options.title, options.subtitle)
    if options.svg == "-":
        sys.stdout.write(svg)
    else:
        with open(options.svg, "w", encoding="utf-8") as file:
            file.write(svg)


if __name__ == "__main__":
    main()
