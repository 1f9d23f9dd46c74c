"""The reference of the image manager cannot drift: commands, JSON, settings, reasons, errors and findings."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path

import msgspec
import pytest

import holdfast_images
from holdfast.cli.command import code_of
from holdfast.cli.reference import commands_of, reference
from holdfast_images import errors
from holdfast_images.administration import PoolReport
from holdfast_images.archive.entry import ArchiveFinding, InspectionReport, Limits, Reason
from holdfast_images.cli.main import CODES, EXTENSION
from holdfast_images.devices.protocol import PoolHealth
from holdfast_images.gc import Action, Leftover
from holdfast_images.messages import Processed, Stage
from holdfast_images.settings import Settings, variables_of_settings

SOURCE = Path(holdfast_images.__file__).parent
DOCS = Path(__file__).parents[3] / "docs" / "reference"
ERRORS = {
    name: each for name, each in vars(errors).items() if inspect.isclass(each) and issubclass(each, errors.ImageError)
}


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def section(name: str, heading: str) -> str:
    """The text below a heading, up to the next one."""
    found = re.search(rf"^#+ {re.escape(heading)}$\n(.*?)(?=^#|\Z)", page(name), re.MULTILINE | re.DOTALL)
    assert found, heading
    return found[1]


def first_column(text: str) -> list[str]:
    return re.findall(r"^\| `([^`]+)`", text, re.MULTILINE)


def test_the_commands_are_documented_as_they_are() -> None:
    mark = "<!-- generated: python -m holdfast.cli.reference holdfast_images.cli.main:EXTENSION -->\n\n"
    _, found, generated = page("image-commands.md").partition(mark)

    assert found
    assert generated.strip() == reference(commands_of(EXTENSION)).strip()


def test_the_reference_is_printed_on_request(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import runpy

    monkeypatch.delitem(sys.modules, "holdfast.cli.reference")
    monkeypatch.setattr(sys, "argv", ["reference", "holdfast_images.cli.main:EXTENSION"])
    runpy.run_module("holdfast.cli.reference", run_name="__main__")

    assert capsys.readouterr().out.strip() == reference(commands_of(EXTENSION)).strip()


def test_every_field_of_process_image_has_its_line() -> None:
    described = first_column(section("image-commands.md", "process-image"))

    assert described == [*Processed.__struct_fields__, *Stage.__struct_fields__]


def test_every_field_of_inspect_and_gc_is_named() -> None:
    told = section("image-commands.md", "inspect") + section("image-commands.md", "The others")
    fields = [*InspectionReport.__struct_fields__, *ArchiveFinding.__struct_fields__, *Action.__struct_fields__]

    assert [name for name in fields if f"`{name}`" not in told and f'"{name}"' not in told] == []


def test_every_field_of_a_pool_is_named() -> None:
    told = section("image-commands.md", "The others")
    fields = [*PoolReport.__struct_fields__, *PoolHealth]

    assert [name for name in fields if f"`{name}`" not in told] == []


def rows(heading: str | None) -> dict[str, tuple[list[str], str]]:
    text = section("image-settings.md", heading) if heading else page("image-settings.md").partition("\n## ")[0]
    found = re.findall(r"^\| `(\w+)` \| ([^|]+) \| ([^|]+) \|", text, re.MULTILINE)
    return {name: (re.findall(r"`(\w+)`", variables), default) for name, variables, default in found}


def shown(value: object) -> str:
    if value is None or value == "":
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


def test_every_setting_has_its_line_its_variables_and_its_default() -> None:
    defaults = msgspec.structs.asdict(Settings())
    expected = {
        name: (list(variables), shown(defaults[name]))
        for name, variables in variables_of_settings()
        if not name.startswith("limits.")
    }

    assert rows(None) == expected


def test_every_limit_has_its_line_its_variable_and_its_default() -> None:
    defaults = msgspec.structs.asdict(Limits())
    expected = {
        name.removeprefix("limits."): (list(variables), shown(defaults[name.removeprefix("limits.")]))
        for name, variables in variables_of_settings()
        if name.startswith("limits.")
    }

    assert rows("Limits") == expected


def test_every_reason_has_its_line() -> None:
    described = dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", section("image-reasons.md", "Archives"), re.MULTILINE))

    assert described == {str(reason): reason.explanation for reason in Reason}


def test_every_reason_given_elsewhere_has_its_line_too() -> None:
    texts = [path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py")]
    given = {code for text in texts for code in re.findall(r'ImageRefused\(\s*"([A-Z0-9_]+)"', text)}
    known = {str(reason) for reason in Reason}

    assert set(first_column(section("image-reasons.md", "Before and after the archive is read"))) == given - known


def test_every_error_has_its_line_and_its_code() -> None:
    found = re.findall(r"^\| `(\w+)` \| (\d+) \| (.+) \|$", page("image-errors.md"), re.MULTILINE)
    expected = [
        (name, str(int(code_of(each, CODES))), (inspect.getdoc(each) or "").splitlines()[0])
        for name, each in ERRORS.items()
    ]

    assert found == expected


def test_the_tree_of_errors_is_the_one_of_the_module() -> None:
    assert (errors.__doc__ or "").partition("\n\n")[2].strip() in page("image-errors.md")


def test_every_finding_has_its_line() -> None:
    text = (SOURCE / "administration.py").read_text(encoding="utf-8")
    codes = set(re.findall(r'(?:error|warning|told)\(\s*"([a-z-]+)"', text))

    assert set(first_column(section("image-findings.md", "Findings"))) == {*codes, "left-over-…"}


def test_every_disagreement_between_the_parts_of_a_backend_has_its_line() -> None:
    texts = [(SOURCE / "devices" / name).read_text(encoding="utf-8") for name in ("consistency.py", "pool_record.py")]
    codes = {code for text in texts for code in re.findall(r'(?:_difference|WrongFile)\(\s*"([a-z-]+)"', text)}

    assert set(first_column(section("image-findings.md", "Between the parts of a backend"))) == codes


def test_every_kind_of_leftover_has_its_line() -> None:
    assert first_column(section("image-findings.md", "Leftovers")) == [str(kind) for kind in Leftover]
