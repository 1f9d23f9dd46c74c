"""Measures everything: the engine, the engine beside its peers, images. One command, one table.

    python benchmarks [--quick] [--repeat N] [--json] [--only PROGRAM ...] [--write] [--read FILE ...]

The exit code is 1 only if work was lost or doubled, or if one of the programs could not tell. Times decide nothing.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import msgspec
from measuring.chart import chart
from measuring.tables import Report, markdown, provenance, write_between

PROGRAMS: Mapping[str, Sequence[str]] = {
    # What compare.py measures beside peers is not measured twice.
    "engine": ("engine.py", "--only", "counts", "noop", "five", "submit", "two-workers", "imports", "history"),
    "fleet": ("engine.py", "--store", "postgres"),
    "peers": ("compare.py",),
    "serve": ("serve.py",),
    "images": ("images.py",),
}
RESULTS = HERE / "results.json"
PAGE = HERE.parent / "docs" / "explanation" / "benchmarks.md"
CHART = HERE.parent / "docs" / "images" / "figures.svg"


def main() -> int:
    """Run the programs one after the other, report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="smaller and fewer runs")
    parser.add_argument("--json", action="store_true", help="the figures as JSON on stdout")
    parser.add_argument("--repeat", type=int, help="runs per figure (5, with --quick 3)")
    parser.add_argument("--only", nargs="+", choices=PROGRAMS, metavar="PROGRAM", help=", ".join(PROGRAMS))
    parser.add_argument("--write", action="store_true", help="write results.json, the table of the docs and the chart")
    parser.add_argument("--read", nargs="+", metavar="FILE", type=Path, default=[], help="take the figures from files")
    options = parser.parse_args()
    passed_on = (["--quick"] if options.quick else []) + (["--repeat", str(options.repeat)] if options.repeat else [])
    report, failed = Report(), False
    for path in options.read:
        report.add(msgspec.json.decode(path.read_bytes(), type=Report))
    for name in () if options.read else options.only or PROGRAMS:
        failed |= measure(name, report, passed_on)
    text = msgspec.json.format(msgspec.json.encode(report)).decode()
    print(text if options.json else f"{provenance(report)}\n\n{markdown(report)}")
    if options.write:
        RESULTS.write_text(text + "\n")
        write_between(PAGE, "results", f"{provenance(report)}\n\n{markdown(report)}")
        CHART.write_text(chart(report.figures))
    for title, reason in report.not_measured.items():
        print(f"NOT MEASURED: {title}: {reason}", file=sys.stderr)
    return int(failed)


def measure(name: str, report: Report, options: Sequence[str]) -> bool:
    """Add what one program measures; has it failed, or found work that was lost or doubled?"""
    print(f"--- {name}", file=sys.stderr, flush=True)
    program, *arguments = PROGRAMS[name]
    command = [sys.executable, str(HERE / program), "--json", *options, *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    try:
        report.add(msgspec.json.decode(done.stdout, type=Report).as_part(name))
    except msgspec.DecodeError:
        report.not_measured[name] = f"{program} ended with code {done.returncode} and without a report"
        return True
    return done.returncode != 0


if __name__ == "__main__":
    sys.exit(main())
