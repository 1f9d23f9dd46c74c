"""Wheel and sdist are whole, and the wheel works alone; a command that needs an extra says which."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from email import message_from_string
from email.message import Message
from importlib.metadata import distribution
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).parents[2]
NEEDED = ("click", "msgspec")
APP = 'from holdfast import Flow; flows = Flow("idle", request=str, response=str).start("rest", lambda run: "")'
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both, the wheel made from the sdist, by the backend that is installed here."""
    place = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(place), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    return place


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    """The wheel."""
    return next(built.glob("*.whl"))


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    """What an index knows of it."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
        return message_from_string(archive.read(name).decode())


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with the wheel and what it needs, taken from here and not from an index; its programs."""
    place = tmp_path_factory.mktemp("fresh")
    venv.create(place, symlinks=True)
    pip = [sys.executable, "-m", "pip", "--python", str(place / "bin" / "python"), "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--quiet", "--no-index", "--no-deps", str(wheel)], check=True)
    packages = next(place.glob("lib/python*/site-packages"))
    for name in NEEDED:
        for folder in {
            PurePosixPath(file).parts[0] for file in distribution(name).files or [] if ".." not in file.parts
        }:
            (packages / folder).symlink_to(str(distribution(name).locate_file(folder)))
    return place / "bin"


def files_of(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def sources(pattern: str) -> set[str]:
    return {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src").rglob(pattern)}


def test_the_wheel_has_all_of_the_packages_and_nothing_else(wheel: Path) -> None:
    found = {name for name in files_of(wheel) if ".dist-info/" not in name}

    assert {"holdfast/py.typed", "holdfast_images/py.typed"} <= found
    assert any(name.endswith("/migrations/0001_engine.sql") for name in found)
    pages = {name for suffix in ("html", "css", "js", "svg") for name in sources(f"*.{suffix}")}
    assert found == sources("*.py") | sources("*.sql") | sources("py.typed") | pages


def test_the_sdist_has_what_it_takes_to_work_on_it(built: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        found = {name.partition("/")[2] for name in archive.getnames()}
    expected = {"Makefile", "pyproject.toml", "LICENSE", ".ci/run", "docs/site/conf.py", "docs/images/job.svg"}
    expected |= {str(path.relative_to(ROOT)) for path in ROOT.glob("*.md")}
    expected |= {
        "benchmarks/results.json",
        "examples/orders.py",
        "tests/conftest.py",
        "tests/architecture/test_docs.py",
    }

    assert expected - found == set()


def test_an_index_is_told_everything_it_asks_for(metadata: Message) -> None:
    assert metadata["Summary"] == PROJECT["description"]
    assert len(metadata["Summary"]) <= 120
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    assert set(metadata["Keywords"].split(",")) == set(PROJECT["keywords"])
    assert {"Typing :: Typed", "Operating System :: POSIX :: Linux"} <= set(metadata.get_all("Classifier", []))
    assert {"images", "metrics", "postgres", "all"} <= set(metadata.get_all("Provides-Extra", []))


def test_the_description_has_no_link_that_only_a_checkout_can_follow(metadata: Message) -> None:
    text = str(metadata.get_payload())

    assert metadata["Description-Content-Type"] == "text/markdown"
    assert text.startswith("# Holdfast")
    assert re.findall(r"\]\((?!https?:)[^)]*\)", text) == []
    assert "source distribution" in text


def test_without_extras_it_needs_click_and_msgspec(metadata: Message) -> None:
    needed = [each for each in metadata.get_all("Requires-Dist", []) if "extra ==" not in each]

    assert sorted(re.split(r"[<>=!~;\[ ]", each)[0] for each in needed) == list(NEEDED)


def run(installed: Path, where: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "HOLDFAST"))}
    # A home of its own: what this machine's user keeps has nothing to do with it.
    environment |= {
        "HOME": str(where),
        "XDG_STATE_HOME": str(where / "state"),
        "XDG_CONFIG_HOME": str(where / "config"),
    }
    command = [str(installed / "holdfast"), *words]
    return subprocess.run(command, cwd=where, env=environment, capture_output=True, text=True, check=False)


def test_the_installed_command_shows_its_help_and_opens_a_store(installed: Path, tmp_path: Path) -> None:
    shown = run(installed, tmp_path)
    submitted = run(installed, tmp_path, "flows", "graph")
    program = "from holdfast import Engine; Engine.open('state', flows=[]).close()"
    opened = subprocess.run([installed / "python", "-I", "-c", program], cwd=tmp_path, capture_output=True, check=False)

    assert shown.returncode == 0, shown.stderr
    assert all(f"\n{section}:\n" in shown.stdout for section in ("Images", "Jobs", "Operations"))
    assert "pending" in submitted.stdout
    # The migrations are in the wheel.
    assert opened.returncode == 0, opened.stderr


@pytest.mark.parametrize(
    "words, extra",
    [
        (("inspect", "image.tar"), "images"),
        (("process-image", "--source", "file:///image.tar"), "images"),
        (("jobs", "--store", "postgresql://nowhere/x"), "postgres"),
        (("worker", "--app", "app:flows", "--metrics-port", "0"), "metrics"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_needs_more_says_which_extra(installed: Path, tmp_path: Path, words: tuple[str, ...], extra: str) -> None:
    (tmp_path / "image.tar").write_bytes(bytes(10240))
    (tmp_path / "app.py").write_text(APP)
    ended = run(installed, tmp_path, *words)

    assert ended.returncode != 0
    assert f"pip install 'holdfast[{extra}]'" in ended.stderr
    assert "Traceback" not in ended.stderr
