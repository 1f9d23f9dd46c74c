"""What holds for every image command: help, JSON, a quick start; and the engine's own commands beside them."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib

import click
import pytest

from holdfast.cli.reference import commands_of
from holdfast_images.cli.main import EXTENSION
from tests.acceptance.driving import SOURCES
from tests.acceptance.images.driving import ImageHoldfast

COMMANDS = dict(commands_of(EXTENSION))
HEAVY = {"asyncio", "concurrent.futures", "holdfast_images.manager", "msgspec", "rich", "shutil", "sqlite3", "tomllib"}
NEVER = {
    "asyncio",
    "concurrent.futures",
    "ctypes",
    "email",
    "holdfast_images.devices.copy_tree",
    "http.client",
    "importlib.resources",
    "isal",
    "json",
    "logging",
    "multiprocessing",
    "obstore",
    "prometheus_client",
    "psycopg",
    "rich",
    "secrets",
    "shutil",
    "socket",
    "ssl",
    "tempfile",
    "tomllib",
    "zipfile",
    "zstandard",
}
"""What an instant re-run has no use for."""
LIGHT = {
    "holdfast.errors",
    "holdfast.sql_files",
    "holdfast.store",
    "holdfast.store.connection_pool",
    "holdfast.store.place",
    "holdfast.store.sqlite",
    "holdfast.store.sqlite.connection",
    "holdfast.store.sqlite.tables",
    "holdfast.tables",
}
"""All that it uses of the engine: tables in a file, and nothing that runs or knows jobs."""
MOST_MODULES = {"help": 125, "re-run": 198}

MODULES = """
import sys
from holdfast_images.cli.main import main
code = main(sys.argv[1:])
print(*sys.modules, file=sys.stderr)
raise SystemExit(code)
"""


def modules_of(holdfast: ImageHoldfast, *words: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", MODULES, *words],
        env=holdfast.environment,
        cwd=holdfast.directory,
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stderr.splitlines()[-1].split())


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_help_and_takes_json(name: str) -> None:
    command = COMMANDS[name]
    options = {option for parameter in command.params for option in parameter.opts}
    shown = command.get_help(click.Context(command, info_name=name))

    assert {"--json", "--config", "--actor", "--store", "--state", "-v", "-q"} <= options
    assert (command.help or "").splitlines()[0].endswith(".")
    assert "Global options:" in shown


def test_the_lines_of_the_overview_are_those_of_the_commands() -> None:
    for name, entry in EXTENSION.entries.items():
        assert (COMMANDS[f"holdfast {name}"].help or "").splitlines()[0] == entry.short_help


def test_the_commands_of_the_engine_are_there_too(holdfast: ImageHoldfast) -> None:
    shown = holdfast.ok("--help")

    assert shown.index("process-image") < shown.index("worker")
    assert holdfast.ok("--version").startswith("holdfast ")


def test_help_costs_no_heavy_import(holdfast: ImageHoldfast) -> None:
    found = modules_of(holdfast, "--help")

    assert found & HEAVY == set()
    assert len(found) <= MOST_MODULES["help"]


def test_a_rerun_imports_only_what_it_needs(processed: ImageHoldfast) -> None:
    source = processed.source()
    found = modules_of(processed, "process-image", "--source", source, "--image-id", "demo", "--json")

    engine = {name for name in found if name.startswith("holdfast.") and not name.startswith("holdfast.cli")}

    assert "holdfast_images.flows.lookup" in found
    assert found & NEVER == set()
    assert engine == LIGHT
    assert len(found) <= MOST_MODULES["re-run"]


def test_the_flows_are_listed_and_drawn_without_an_app(processed: ImageHoldfast) -> None:
    listed = {flow["flow"] for flow in processed.json("flows", "list")["flows"]}

    assert {"process-image", "download-image", "unpack-image", "activate-image"} <= listed
    assert "extract-layers" in processed.ok("flows", "graph", "unpack-image")


def test_drawing_a_flow_makes_no_state(holdfast: ImageHoldfast) -> None:
    assert "create-snapshot" in holdfast.ok("flows", "graph", "activate-image")
    assert {flow["in_app"] for flow in holdfast.json("flows", "list")["flows"]} == {True}
    assert not holdfast.state.exists()


def test_completion_offers_the_image_commands(holdfast: ImageHoldfast) -> None:
    shown = holdfast(_HOLDFAST_COMPLETE="bash_complete", COMP_WORDS="holdfast proc", COMP_CWORD="1").out

    assert "process-image" in shown


def test_it_is_what_is_installed_as_holdfast() -> None:
    project = tomllib.loads((SOURCES.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]

    assert project["scripts"] == {"holdfast": "holdfast_images.cli.__main__:main"}


def test_an_error_is_one_object_with_json(holdfast: ImageHoldfast) -> None:
    done = holdfast("process-image", "--json")

    assert done.out == ""
    assert json.loads(done.err)["error"]["type"] == "InvalidName"
