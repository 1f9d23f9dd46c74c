"""The tables of a report: as Markdown, which reads well on a terminal, too."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from measuring.figures import Figure, short

HEADS = ("question", "ours", "beside", "ratio", "aim", "reached")


class Report(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What one program, or all of them, have measured."""

    machine: dict[str, str] = {}
    quick: bool = False
    repeat: int = 0
    figures: list[Figure] = []
    not_measured: dict[str, str] = {}
    parts: dict[str, str] = {}
    """Program -> how much it has measured, and where."""

    def as_part(self, name: str) -> Report:
        """The same, as what this program has measured."""
        sizes = "with `--quick`" if self.quick else "in full"
        place = self.machine.get("file system", "an unknown file system")
        self.parts = {name: f"{sizes}, {self.repeat} runs, on {place}, load {self.machine.get('load', 'unknown')}"}
        return self

    def add(self, other: Report) -> None:
        """What another program has measured on the same machine."""
        self.machine = {**other.machine, **self.machine}
        self.parts.update(other.parts)
        self.figures += other.figures
        self.not_measured.update(other.not_measured)


def markdown(report: Report) -> str:
    """Every figure that stands beside another one."""
    figures = [one for one in report.figures if one.ratio is not None]
    rows = [HEADS, *[_row(one) for one in figures]]
    rows += [(f"**not measured**: {title}", reason, "", "", "", "") for title, reason in report.not_measured.items()]
    rows = [tuple(cell.replace("|", "\\|") for cell in row) for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADS))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def provenance(report: Report) -> str:
    """When and where it was measured, and how often."""
    of_parts = ("date", "file system", "load")
    machine = ", ".join(f"{key} {value}" for key, value in report.machine.items() if key not in of_parts)
    parts = "; ".join(f"{name} {how}" for name, how in report.parts.items())
    return (
        f"Measured on {report.machine.get('date', 'an unknown day')} by `python benchmarks`: {machine}. {parts}. "
        "Medians, lowest and highest in parentheses."
    )


def write_between(path: Path, mark: str, text: str) -> None:
    """Replace what stands between `<!-- mark -->` and `<!-- /mark -->`."""
    before, opening, rest = path.read_text().partition(f"<!-- {mark} -->")
    _, closing, after = rest.partition(f"<!-- /{mark} -->")
    if not opening or not closing:
        raise SystemExit(f"error: {path.name} has no <!-- {mark} --> ... <!-- /{mark} -->")
    path.write_text(f"{before}{opening}\n{text}\n{closing}{after}")


def _row(one: Figure) -> Sequence[str]:
    question = one.question if one.name == f"beside {one.ratio_to}" else f"{one.question}: {one.name}"
    beside = one.ratio_to if one.beside is None else f"{one.ratio_to}: {short(one.beside)} {one.unit}"
    ours = f"{short(one.value)} {one.unit}{_spread(one.low, one.high, one.runs)}"
    ratio = f"{short(one.ratio)}{_spread(one.ratio_low, one.ratio_high, one.runs)}"
    return question, ours, beside, ratio, one.aim, {True: "yes", False: "**NO**", None: ""}[one.reached]


def _spread(low: float | None, high: float | None, runs: int) -> str:
    return f" ({short(low)} - {short(high)})" if runs > 1 else ""
