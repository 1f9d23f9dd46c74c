"""A figure is the median of several runs, with its spread, and where there is one, its ratio to a limit."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the report. `ratio` is measured run by run beside `ratio_to`, then the median is taken."""

    question: str
    name: str
    value: float
    low: float
    high: float
    runs: int
    unit: str
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    ratio_to: str = ""
    beside: float | None = None
    """The median of what stands at the other end of the ratio, in the same unit, if that was measured as a value."""
    aim: str = ""
    reached: bool | None = None
    note: str = ""


class Settings(msgspec.Struct, frozen=True):
    """How much to measure, and where."""

    directory: str
    quick: bool
    repeat: int

    def pick(self, quick: int, full: int) -> int:
        """A size for this run."""
        return quick if self.quick else full


def figure(
    question: str,
    name: str,
    values: Sequence[float],
    unit: str,
    *,
    ratios: Sequence[float] = (),
    ratio_to: str = "",
    besides: Sequence[float] = (),
    at_least: float | None = None,
    at_most: float | None = None,
    note: str = "",
) -> Figure:
    """A figure from one value per run, and one ratio per run or one value to divide by; an aim is one for the ratio."""
    if besides and not ratios:
        ratios = [value / other for value, other in zip(values, besides, strict=True)]
    ratio = statistics.median(ratios) if ratios else None
    aim, reached = "", None
    if ratio is not None and at_least is not None:
        aim, reached = f">= {at_least:g}", ratio >= at_least
    if ratio is not None and at_most is not None:
        aim, reached = f"<= {at_most:g}", ratio <= at_most
    return Figure(
        question=question,
        name=name,
        value=statistics.median(values),
        low=min(values),
        high=max(values),
        runs=len(values),
        unit=unit,
        ratio=ratio,
        ratio_low=min(ratios) if ratios else None,
        ratio_high=max(ratios) if ratios else None,
        ratio_to=ratio_to,
        beside=statistics.median(besides) if besides else None,
        aim=aim,
        reached=reached,
        note=note,
    )


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of the values lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def table(figures: Sequence[Figure]) -> str:
    """The report for people."""
    heads = ["measure", "median", "low - high", "unit", "ratio", "low - high", "to", "aim", ""]
    rows = [heads]
    question = ""
    for one in figures:
        if one.question != question:
            question = one.question
            rows.append([question, *[""] * (len(heads) - 1)])
        rows.append(
            [
                "  " + one.name,
                short(one.value),
                f"{short(one.low)} - {short(one.high)}" if one.runs > 1 else "",
                one.unit,
                "" if one.ratio is None else short(one.ratio),
                "" if one.ratio is None or one.runs < 2 else f"{short(one.ratio_low)} - {short(one.ratio_high)}",
                one.ratio_to,
                one.aim,
                {True: "reached", False: "NOT REACHED", None: ""}[one.reached] + (f"  {one.note}" if one.note else ""),
            ]
        )
    widths = [max(len(row[column]) for row in rows[:1] + [r for r in rows if r[1]]) for column in range(len(heads) - 1)]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0]), row[1].rjust(widths[1]), row[2].rjust(widths[2]), row[3].ljust(widths[3])]
        cells += [row[4].rjust(widths[4]), row[5].rjust(widths[5]), row[6].ljust(widths[6]), row[7].ljust(widths[7])]
        lines.append("  ".join([*cells, row[8]]).rstrip())
    return "\n".join(lines)


def short(value: float | None) -> str:
    """A number with as many digits as it is worth."""
    if value is None:
        return ""
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"
