"""What the programs that measure have in common: options, questions asked in turn, a report."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from measuring.figures import Figure, Settings, table
from measuring.machine import describe_machine
from measuring.tables import Report

Questions = Mapping[str, Callable[[Settings], Iterator[Figure]]]


def parser_for(purpose: str | None, names: Sequence[str]) -> argparse.ArgumentParser:
    """The options that all of them have; `purpose` is the docstring of the program."""
    parser = argparse.ArgumentParser(description=(purpose or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="smaller and fewer runs")
    parser.add_argument("--json", action="store_true", help="the figures as JSON on stdout")
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", default=[], help=", ".join(names))
    parser.add_argument("--dir", default=tempfile.gettempdir(), help="where to measure; must be a real disk")
    parser.add_argument("--repeat", type=int, help="runs per figure (5, with --quick 3)")
    return parser


def settings_of(options: argparse.Namespace, directory: str) -> Settings:
    """How much to measure, in this directory."""
    return Settings(directory, options.quick, options.repeat or (3 if options.quick else 5))


def ask(questions: Questions, options: argparse.Namespace) -> Report:
    """Every question, or those that were asked for."""
    clock = Clock()
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=options.dir) as directory:
        settings = settings_of(options, directory)
        # At the beginning: later, the load is our own.
        report = Report(machine=describe_machine(directory), quick=settings.quick, repeat=settings.repeat, figures=[])
        for name, question in questions.items():
            if not options.only or name in options.only:
                clock.tell(name)
                report.figures += question(settings)
    clock.tell("done")
    return report


def show(report: Report, *, as_json: bool) -> None:
    """For machines or for people; what could not be measured is told in any case."""
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(report)).decode())
    else:
        print(", ".join(f"{key} {value}" for key, value in report.machine.items()))
        print(table(report.figures))
    for title, reason in report.not_measured.items():
        print(f"NOT MEASURED: {title}: {reason}", file=sys.stderr)


class Clock:
    """Says how long it has taken so far."""

    def __init__(self) -> None:
        self._began = time.perf_counter()

    def tell(self, what: str) -> None:
        """What begins now."""
        print(f"{time.perf_counter() - self._began:6.1f} s  {what}", file=sys.stderr, flush=True)
