#!/usr/bin/env python3
"""Draws what scripts/quickstart.py measured, as SVG. Standard library only.

    scripts/plot_learning.py docs/design/data/quickstart -o docs/design/data/quickstart/curves.svg

One folder: every run in it over the steps, learning runs and controls apart.
"""
import argparse
import csv
import pathlib

WIDTH, HEIGHT = 760, 380
LEFT, RIGHT, TOP, BOTTOM = 56, 24, 44, 48
INK, GRID, BACK = "#24292f", "#d8dee4", "#ffffff"
COLOURS = {"learned": "#0969da", "shuffled": "#bc4c00", "frozen": "#6e7781"}


class Figure:
    """A line chart with a rate between 0 and 1 on the vertical axis."""

    def __init__(self, title, below, last):
        self.last = max(last, 1e-9)
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="{BACK}"/>',
            f'<text x="{LEFT}" y="24" font-size="15" fill="{INK}">{title}</text>',
        ]
        for tenth in range(0, 11, 2):
            y = self.y(tenth / 10)
            self.parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="{GRID}"/>')
            self.text(LEFT - 8, y + 4, f"{tenth / 10:.1f}", anchor="end")
        for share in range(5):
            at = self.last * share / 4
            self.text(self.x(at), HEIGHT - BOTTOM + 18, f"{at:.0f}", anchor="middle")
        self.text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, below, anchor="middle")

    def x(self, value):
        return LEFT + (WIDTH - LEFT - RIGHT) * value / self.last

    def y(self, value):
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value

    def text(self, x, y, words, anchor="start", colour=INK):
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{words}</text>')

    def steps(self, points, colour, dashes=""):
        """A line that keeps its height until the next point: what is served between two releases."""
        path = []
        for n, (x, y) in enumerate(points):
            path.append(f"M{self.x(x):.1f} {self.y(y):.1f}" if n == 0 else f"H{self.x(x):.1f}V{self.y(y):.1f}")
        style = f' stroke-dasharray="{dashes}"' if dashes else ""
        self.parts.append(f'<path d="{"".join(path)}" fill="none" stroke="{colour}" stroke-width="2"{style}/>')

    def dot(self, x, y, colour, radius=3.5, hollow=False):
        fill = BACK if hollow else colour
        self.parts.append(
            f'<circle cx="{self.x(x):.1f}" cy="{self.y(y):.1f}" r="{radius}" fill="{fill}" stroke="{colour}"/>'
        )

    def cross(self, x, y, colour):
        x, y, r = self.x(x), self.y(y), 4
        self.parts.append(
            f'<path d="M{x - r:.1f} {y - r:.1f}l{2 * r} {2 * r}m0 {-2 * r}l{-2 * r} {2 * r}" stroke="{colour}" stroke-width="1.5"/>'
        )

    def upright(self, x, words):
        x = self.x(x)
        self.parts.append(f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{HEIGHT - BOTTOM}" stroke="{GRID}" stroke-dasharray="3 3"/>')
        self.parts.append(f'<text transform="translate({x - 4:.1f} {TOP + 4}) rotate(-90)" text-anchor="end" font-size="10" fill="{INK}">{words}</text>')

    def done(self):
        return "\n".join([*self.parts, "</svg>", ""])


def read(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def run_svg(path):
    """One run over time."""
    rows = read(path)
    seconds = lambda row: float(row["seconds"])
    figure = Figure("Reward on held-out tickets while serving", "seconds since the service started", seconds(rows[-1]))
    measured = [(seconds(row), float(row["heldout_reward"])) for row in rows if row["kind"] == "measure"]
    for row in rows:
        if row["kind"] == "round":
            figure.dot(seconds(row), float(row["train_reward"]), COLOURS["frozen"], 2.5, hollow=True)
        elif row["kind"] == "step" and row["outcome"] != "released":
            before = [y for x, y in measured if x <= seconds(row)]
            figure.cross(seconds(row), before[-1] if before else 0, COLOURS["shuffled"])
        elif row["kind"] == "grader":
            figure.upright(seconds(row), "the grader breaks")
        elif row["kind"] == "measure" and row["outcome"] in ("rollback", "rollforward"):
            figure.upright(seconds(row), "rollback" if row["outcome"] == "rollback" else "and back")
    figure.steps(measured, COLOURS["learned"])
    figure.steps([(seconds(row), float(row["heldout_greedy"])) for row in rows if row["kind"] == "measure"], COLOURS["learned"], "2 4")
    for row in rows:
        if row["kind"] == "measure" and row["outcome"] == "released":
            figure.dot(seconds(row), float(row["heldout_reward"]), COLOURS["learned"])
    figure.dot(figure.last * 0.70, 0.14, COLOURS["learned"])
    figure.text(figure.x(figure.last * 0.70) + 10, figure.y(0.14) + 4, "held-out reward (dotted: temperature 0)")
    figure.cross(figure.last * 0.70, 0.08, COLOURS["shuffled"])
    figure.text(figure.x(figure.last * 0.70) + 10, figure.y(0.08) + 4, "candidate refused by the gate")
    figure.dot(figure.last * 0.70, 0.02, COLOURS["frozen"], 2.5, hollow=True)
    figure.text(figure.x(figure.last * 0.70) + 10, figure.y(0.02) + 4, "reward of one round of traffic")
    return figure.done()


def by_round(rows):
    """Held-out reward of what is served after each round."""
    points, served, number = [], 0.0, 0
    for row in rows:
        if row["kind"] == "round":
            number = int(row["step"])
        elif row["kind"] == "measure" and row["outcome"] in ("base", "released", "end"):
            served = float(row["heldout_reward"])
            points.append((number, served))
        elif row["kind"] == "grader":
            break
    return points + [(number, served)]


def folder_svg(folder):
    """Every run of a folder over its rounds."""
    runs = {path.stem: by_round(read(path)) for path in sorted(pathlib.Path(folder).glob("*-*.csv"))}
    last = max((points[-1][0] for points in runs.values()), default=1)
    figure = Figure("Reward on held-out tickets, every seed", "rounds of traffic", last)
    for order, (kind, colour) in enumerate([("frozen", COLOURS["frozen"]), ("shuffled", COLOURS["shuffled"]), ("learned", COLOURS["learned"])]):
        for name, points in runs.items():
            if name.startswith(kind):
                figure.steps(points, colour, {"frozen": "2 4", "shuffled": "6 4"}.get(kind, ""))
        figure.text(LEFT + 10 + 150 * order, 40, f"━ {kind} ({sum(name.startswith(kind) for name in runs)} seeds)", colour=colour)
    return figure.done()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder")
    parser.add_argument("-o", "--out", type=pathlib.Path, required=True)
    args = parser.parse_args()
    args.out.write_text(folder_svg(args.folder))


if __name__ == "__main__":
    main()
