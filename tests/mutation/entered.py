"""A plugin of pytest that writes down which functions each passed test enters, and how long it takes.

By the tracer of the interpreter, because it is there in every Python that is supported; coverage.py would be one more
thing to install for lines that are not asked for. What runs in another process is not seen.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Generator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

SOURCE_VARIABLE = "HOLDFAST_MUTATION_SOURCE"
RECORD_VARIABLE = "HOLDFAST_MUTATION_RECORD"


class Recorder:
    """One line of JSON for each test: its name, seconds, and the functions as "path:first line"."""

    def __init__(self, source: str, record: Path) -> None:
        self._source = source.rstrip("/") + "/"
        self._record = record
        self._entered: dict[int, CodeType] = {}
        """By identity: to hash a code object takes longer than most functions."""
        self._passed: dict[str, float] = {}

    def trace(self, frame: FrameType, event: str, argument: Any) -> None:
        """Called for every function that is entered, in every thread."""
        self._entered[id(frame.f_code)] = frame.f_code

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, bool, bool]:
        """Record the test from its first fixture to the end of the last."""
        self._entered = {}
        sys.settrace(self.trace)
        threading.settrace(self.trace)
        try:
            done = yield
        finally:
            sys.settrace(None)
            threading.settrace(None)
        seconds = self._passed.pop(item.nodeid, None)
        if seconds is not None:
            functions = sorted(
                f"{code.co_filename.removeprefix(self._source)}:{code.co_firstlineno}"
                for code in list(self._entered.values())
                if code.co_filename.startswith(self._source)
            )
            with self._record.open("a") as file:
                file.write(json.dumps([item.nodeid, seconds, functions]) + "\n")
        return done

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Remember what passed."""
        if report.when == "call" and report.passed:
            self._passed[report.nodeid] = report.duration
        elif not report.passed:
            self._passed.pop(report.nodeid, None)


def pytest_configure(config: pytest.Config) -> None:
    """Record where the environment says, in the processes that run tests."""
    if not config.getoption("numprocesses", None):
        record = Path(os.environ[RECORD_VARIABLE]) / f"{os.getpid()}.jsonl"
        config.pluginmanager.register(Recorder(os.environ[SOURCE_VARIABLE], record))
