"""The reference cannot drift: every command, option, variable, exit code, metric and error has its line."""

from __future__ import annotations

import inspect
import re
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from holdfast import errors
from holdfast.cli.command import MEANINGS, ExitCode, code_of
from holdfast.cli.main import holdfast as root
from holdfast.cli.reference import commands, option_lines, reference
from holdfast.core.flow import Flow
from holdfast.store.open import open_store
from holdfast.worker.leases import WorkerSettings
from holdfast.worker.metrics import EngineCollector
from holdfast.worker.telemetry import Telemetry

if TYPE_CHECKING:
    from prometheus_client.core import Metric

DOCS = Path(__file__).parents[2] / "docs" / "reference"
ERRORS = {
    name: each
    for name, each in vars(errors).items()
    if inspect.isclass(each) and issubclass(each, errors.HoldfastError)
}


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def test_the_commands_are_documented_as_they_are() -> None:
    _, _, generated = page("command-line.md").partition("<!-- generated: python -m holdfast.cli.reference -->\n\n")

    assert generated.strip() == reference().strip()


def test_every_global_option_has_its_line() -> None:
    text = page("command-line.md")

    assert [line for line in option_lines(root, shared=True) if line not in text] == []


def test_every_variable_has_its_line() -> None:
    variables = {str(p.envvar) for _, command in commands() for p in command.params if p.envvar}
    described = re.findall(r"^\| `(HOLDFAST_\w+)` \|", page("settings.md"), re.MULTILINE)

    assert sorted(described) == sorted(variables)


def rows_of(section: str) -> dict[str, str]:
    """setting → default, of one section of the page."""
    text = page("settings.md").partition(f"## {section}\n")[2].partition("\n## ")[0]
    return dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", text, re.MULTILINE))


def test_every_setting_of_a_worker_has_its_line_and_its_default() -> None:
    defaults = msgspec.structs.asdict(WorkerSettings())

    assert rows_of("WorkerSettings") == {name: str(value) for name, value in defaults.items()}


def test_every_setting_of_a_flow_has_its_line() -> None:
    parameters = inspect.signature(Flow).parameters.values()
    settings = {each.name: each.default for each in parameters if each.kind is inspect.Parameter.KEYWORD_ONLY}
    numbers = {name: str(value) for name, value in settings.items() if isinstance(value, int | float)}
    described = rows_of("Settings of a flow")

    assert list(described) == list(settings)
    assert {name: described[name] for name in numbers} == numbers


def test_every_exit_code_has_its_line() -> None:
    described = dict(re.findall(r"^\| (\d+) \| ([^|]+) \|$", page("exit-codes.md"), re.MULTILINE))

    assert described == {str(int(code)): MEANINGS[code] for code in ExitCode}


def test_every_error_has_its_line_and_its_code() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\d+) \| ([^|]+) \|$", page("exit-codes.md"), re.MULTILINE)

    assert Counter(name for name, _, _ in rows) == Counter(list(ERRORS))
    assert {name: int(code) for name, code, _ in rows} == {name: int(code_of(each)) for name, each in ERRORS.items()}


def test_the_line_of_an_error_is_its_promise() -> None:
    text = page("exit-codes.md")
    promises = {name: (inspect.getdoc(each) or "").splitlines()[0] for name, each in ERRORS.items()}

    assert [name for name, promise in promises.items() if f"| {promise} |" not in text] == []


def test_every_metric_has_its_line(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    collector = EngineCollector(Telemetry(), store)
    found = {_exposed(metric): metric.documentation for metric in collector.collect()}
    collector.close()
    store.close()
    own, _, _ = page("metrics.md").partition("A worker of images has gauges")
    described = re.findall(r"^\| `(holdfast_\w+)` \| \w+ \| [^|]+ \| ([^|]+) \|$", own, re.MULTILINE)

    assert dict(described) == found


def _exposed(metric: Metric) -> str:
    return f"{metric.name}_total" if metric.type == "counter" else metric.name


def test_the_reference_is_printed_on_request(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import runpy

    monkeypatch.delitem(sys.modules, "holdfast.cli.reference")
    monkeypatch.setattr(sys, "argv", ["reference"])
    runpy.run_module("holdfast.cli.reference", run_name="__main__")

    assert capsys.readouterr().out.strip() == reference().strip()
