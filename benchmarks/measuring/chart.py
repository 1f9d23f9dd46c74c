"""The chart of the README: five figures of a report as bars, ours above what stands beside it. Shorter is better."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape

from measuring.figures import Figure, short

LEFT, WIDTH, BAR, ROW, TOP = 250, 400, 13, 50, 40
"""Pixels: where bars begin, the longest of them, the height of one, that of a pair, and of the lines above."""


STYLE = (
    "<style>text{fill:#57606a;font-size:12px}.t,.i{fill:#24292f}.a{fill:#1f7a5c}.b{fill:#c4ccd4}"
    "@media(prefers-color-scheme:dark){text{fill:#9aa4af}.t,.i{fill:#e6edf3}.a{fill:#3fb68b}.b{fill:#4a525b}}</style>"
)


class Line(NamedTuple):
    """One pair of bars: a figure by its question and what it stands beside, and how it becomes seconds."""

    title: str
    question: str
    name: str
    ratio_to: str
    seconds: Callable[[float], float] = lambda value: value


LINES = (
    Line("1,000 five-step flows, SQLite", "five-step flows, SQLite", "", "DBOS", lambda rate: 1000 / rate),
    Line("1,000 five-step flows, PostgreSQL", "five-step flows, PostgreSQL", "", "Absurd", lambda rate: 1000 / rate),
    Line("SIGKILL of 1,000 flows, to all done", "1,000 flows in flight", "beside", "DBOS"),
    Line("unpack 100,000 small files, synced", "extract", "100,000 small files", "tar -x"),
    Line("S3 to snapshot, 5,000 large files, gzip", "pipeline", "5,000 large files, gzip", "shell script"),
)


def chart(figures: Sequence[Figure]) -> str:
    """The chart as SVG that reads on a light and on a dark page."""
    height = TOP + ROW * len(LINES) + 4
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 {height}" role="img" font-family="sans-serif">',
        "<title>Times of Holdfast beside peers and plain tools; shorter is better</title>",
        STYLE,
        '<rect class="a" x="0" y="10" width="12" height="12"/><text x="18" y="20">Holdfast</text>',
        '<rect class="b" x="90" y="10" width="12" height="12"/><text x="108" y="20">beside it</text>',
    ]
    for index, line in enumerate(LINES):
        parts += _pair(TOP + ROW * index, line, _found(figures, line))
    return "\n".join([*parts, "</svg>", ""])


def _found(figures: Sequence[Figure], line: Line) -> Figure:
    """Of several that fit, the one beside the fastest other."""
    fitting = [
        one
        for one in figures
        if one.question.startswith(line.question)
        and (one.name == line.name if line.name and line.name != "beside" else one.name.startswith("beside"))
        and one.ratio_to.startswith(line.ratio_to)
        and one.beside
    ]
    if not fitting:
        raise SystemExit(f"error: the report has no figure for the chart's line {line.title!r}")
    return min(fitting, key=lambda one: line.seconds(one.beside or 1.0))


def _pair(top: int, line: Line, one: Figure) -> list[str]:
    ours, other = line.seconds(one.value), line.seconds(one.beside or 1.0)
    longest = max(ours, other)
    parts = [f'<text class="t" x="0" y="{top + BAR + 4}">{escape(line.title)}</text>']
    for offset, (kind, seconds, label) in enumerate((("a", ours, ""), ("b", other, one.ratio_to))):
        y = top + offset * (BAR + 3)
        width = max(2.0, WIDTH * seconds / longest)
        text = f"{short(seconds)} s{f'  {label}' if label else ''}"
        inside = kind == "b" and width > WIDTH / 2
        x, anchor = (LEFT + width - 6, "end") if inside else (LEFT + width + 6, "start")
        parts.append(f'<rect class="{kind}" x="{LEFT}" y="{y}" width="{width:.1f}" height="{BAR}" rx="2"/>')
        shown = ' class="i"' if inside else ""
        parts.append(f'<text{shown} x="{x:.1f}" y="{y + BAR - 2}" text-anchor="{anchor}">{escape(text)}</text>')
    return parts
