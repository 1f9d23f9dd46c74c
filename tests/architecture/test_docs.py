"""The documentation is proven: its programs run, its links lead somewhere, what it lists is what the code has."""

from __future__ import annotations

import ast
import inspect
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, get_args

import click
import msgspec
import pytest

import holdfast
from holdfast import Client, Engine, Flow, Pipeline, Run, Tables, Transaction, WorkerSettings, errors, testing
from holdfast.core import diagram, invariants, repair
from holdfast.core import invariants as agreement
from holdfast.core.diagram import DiagramFormat
from holdfast.core.explain import ReasonCode
from holdfast.core.records import JournalEntry
from holdfast.core.step import EndCode
from holdfast.store import commands as messages
from holdfast.store.sqlite.database import expected_schema
from holdfast.tables import OpenTables, TableSession
from holdfast_images import ImageManager
from holdfast_images import messages as image_messages
from holdfast_images.administration import ImageLocks, ImagePool
from holdfast_images.detached import DetachedJobs
from holdfast_images.fleet import ImageFleet

ROOT = Path(__file__).parents[2]
SOURCE = Path(holdfast.__file__).parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
DOCS = ROOT / "docs"

FENCE = re.compile(r"^```(?P<info>[^`\n]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")
FRAGMENTS_ALLOWED = 8
PATIENCE = 300
"""Seconds for one program: those with crashes in them sync hundreds of times, and the disk may be busy."""


class Block(NamedTuple):
    """A fenced block of a page."""

    info: str
    body: str
    line: int


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path, info: str | None = None) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = [Block(m["info"].strip(), m["body"], text[: m.start()].count("\n") + 2) for m in FENCE.finditer(text)]
    return [block for block in found if info is None or block.info == info]


def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def listed(page: Path, heading: str) -> list[str]:
    """The names, in `code`, of the first column of the table under a heading."""
    section = re.search(rf"^#+ {re.escape(heading)}$\n(.*?)(?=^#|\Z)", prose(page), re.MULTILINE | re.DOTALL)
    assert section, f"{name_of(page)} has no heading {heading!r}"
    return re.findall(r"^\| `([^`(]+)(?:\([^`]*\))?`", section[1], re.MULTILINE)


# --- programs --------------------------------------------------------------------------------------------


def write_programs(page: Path, directory: Path) -> list[str]:
    """The programs of a page as files: those that begin with `# name.py` under that name, the others as one.

    Each line keeps its number, so that a traceback points into the page.
    """
    files: dict[str, list[str]] = {"page.py": []}
    for block in blocks(page, "python"):
        named = re.match(r"# (\w+\.py)\n", block.body)
        lines = files.setdefault(named[1] if named else "page.py", [])
        lines += [""] * (block.line - 1 - len(lines))
        lines += block.body.splitlines()
    for name, lines in files.items():
        (directory / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return list(files)


def run_python(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=directory,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


@pytest.mark.timeout(2 * PATIENCE)
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=name_of)
def test_the_programs_of_a_page_run_and_print_what_it_says(page: Path, tmp_path: Path) -> None:
    names = write_programs(page, tmp_path)
    finished = run_python(tmp_path, "page.py")
    again = run_python(tmp_path, "page.py")
    tests = [name for name in names if name.startswith("test_")]
    tested = run_python(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests) if tests else None
    shown = [line for block in blocks(page, "text output") for line in block.body.splitlines()]

    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.splitlines() == shown
    # A reader runs it again, on the state that is there now.
    assert (again.returncode, again.stdout.splitlines()) == (0, shown), again.stderr
    assert tested is None or tested.returncode == 0, tested.stdout


def test_fragments_are_few_and_are_python() -> None:
    fragments = [block for page in PAGES for block in blocks(page, "python no-run")]
    for fragment in fragments:
        ast.parse(fragment.body)

    assert len(fragments) <= FRAGMENTS_ALLOWED


def test_every_block_says_what_it_is() -> None:
    programs, data = {"python", "python no-run", "sh", "sql"}, {"ini", "json", "nginx", "toml", "yaml"}
    known = {*programs, *data, "text", "text output", ""}

    assert [(name_of(page), block.line) for page in PAGES for block in blocks(page) if block.info not in known] == []


# --- commands --------------------------------------------------------------------------------------------


def commands(page: Path) -> Iterator[str]:
    for block in blocks(page, "sh"):
        for line in block.body.replace("\\\n", " ").splitlines():
            if line.startswith("holdfast "):
                yield line


def faults_of(command: str) -> list[str]:
    """What of a command line does not exist: a command, or an option."""
    from holdfast.cli.main import extended
    from holdfast_images.cli.main import EXTENSION

    holdfast = extended(EXTENSION)
    words = shlex.split(command, comments=True)[1:]
    words = words[: words.index("|")] if "|" in words else words
    found: click.Command = holdfast
    context = click.Context(holdfast)
    faults = []
    for word in words:
        if word.startswith("-") and word != "-":
            known = {option for parameter in found.params for option in parameter.opts} | {"--help", "-h"}
            if word.partition("=")[0] not in known:
                faults.append(f"{command}: no option {word}")
        elif isinstance(found, click.Group):
            inner = found.get_command(context, word)
            if inner is not None:
                found = inner
    if isinstance(found, click.Group) and "--help" not in words and "--version" not in words:
        faults.append(f"{command}: no command")
    return faults


def test_the_commands_of_the_pages_exist() -> None:
    shown = [(name_of(page), command) for page in PAGES for command in commands(page)]

    assert len(shown) > 40
    assert [(page, fault) for page, command in shown for fault in faults_of(command)] == []


def test_a_command_that_does_not_exist_would_be_found() -> None:
    assert faults_of("holdfast job explode 01H")
    assert faults_of("holdfast check --shallow")
    assert faults_of("holdfast --state DIR queues pause downloads --reason 'why not' # as usual") == []


# --- links -----------------------------------------------------------------------------------------------


def anchors(page: Path) -> set[str]:
    """As GitHub makes them: lower case, punctuation dropped, spaces to hyphens."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def leads_nowhere(page: Path, link: str) -> bool:
    target, _, anchor = link.partition("#")
    if re.match(r"[a-z]+:", target):
        return False
    file = (page.parent / target).resolve() if target else page
    return not file.exists() or (anchor != "" and anchor not in anchors(file))


def test_links_lead_somewhere() -> None:
    links = [(page, match["target"]) for page in PAGES for match in LINK.finditer(prose(page))]

    assert len(links) > 100
    assert [(name_of(page), link) for page, link in links if leads_nowhere(page, link)] == []


def test_every_page_is_in_the_index() -> None:
    index = DOCS / "README.md"
    linked = {(DOCS / match["target"]).resolve() for match in LINK.finditer(prose(index))}
    missing = [name_of(page) for page in DOCS.rglob("*.md") if page != index and page not in linked]

    assert missing == []


# --- ARCHITECTURE.md and decisions -----------------------------------------------------------------------


def test_the_way_through_the_code_is_short_and_names_files_that_exist() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([\w./-]+(?:\.py|\.sql|\.md|/))`", text))
    missing = [name for name in sorted(named) if not ((SOURCE / name).exists() or (ROOT / name).exists())]

    assert len(text.splitlines()) < 150
    assert named
    assert missing == []


def test_decisions_are_numbered_without_gaps_and_have_one_form() -> None:
    files = sorted((DOCS / "decisions").glob("*.md"))
    headings = {path.name: re.findall(r"^## (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE) for path in files}

    assert [path.name[:4] for path in files] == [f"{number:04}" for number in range(1, len(files) + 1)]
    assert all(found == ["Problem", "Decision", "Consequences"] for found in headings.values()), headings


# --- the reference against the code ----------------------------------------------------------------------


def test_diagrams_are_drawn_from_the_tables() -> None:
    shown = [block.body for block in blocks(DOCS / "reference" / "states.md", "text")]
    machines = [diagram.lifecycle, diagram.executions]

    assert [each.__name__ for each in machines if each(DiagramFormat.TEXT) not in shown] == []


def test_every_error_has_its_line_with_its_promise() -> None:
    page = prose(DOCS / "reference" / "errors.md")
    rows = dict(re.findall(r"^\| `(\w+)` \| `?\w+`? \| (.+?) \|", page, re.MULTILINE))
    bases = dict(re.findall(r"^\| `(\w+)` \| `?(\w+)`? \|", page, re.MULTILINE))
    classes = [each for each in vars(errors).values() if inspect.isclass(each) and issubclass(each, Exception)]
    promises = {each.__name__: (each.__doc__ or "").splitlines()[0] for each in classes}

    assert rows == promises
    assert bases == {each.__name__: each.__base__.__name__ for each in classes if each.__base__}


def test_the_tree_of_errors_is_the_one_of_the_module() -> None:
    tree = (errors.__doc__ or "").partition("\n\n")[2]

    assert tree.strip() in [block.body.strip() for block in blocks(DOCS / "reference" / "errors.md", "text")]


def parameters(function: Callable[..., Any]) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name not in ("self", "cls")]


def public(kind: type) -> set[str]:
    return {name for name in {**vars(kind), **getattr(kind, "__annotations__", {})} if not name.startswith("_")}


def structs_of(module: ModuleType) -> list[str]:
    """The records that a module defines itself."""
    classes = [each for each in vars(module).values() if inspect.isclass(each) and issubclass(each, msgspec.Struct)]
    return [each.__name__ for each in classes if each.__module__ == module.__name__]


MANAGER_PAGE = DOCS / "reference" / "image-manager.md"
FLOW_PAGE = DOCS / "reference" / "flow-definition.md"
TABLES: Sequence[tuple[Path, str, Callable[[], Iterable[str]]]] = [
    (FLOW_PAGE, "Flow", lambda: parameters(Flow.__init__)),
    (FLOW_PAGE, "Steps", lambda: parameters(Flow.to)),
    (FLOW_PAGE, "Pipeline", lambda: parameters(Pipeline.then)),
    (DOCS / "reference" / "run.md", "Run", lambda: public(Run)),
    (DOCS / "reference" / "run.md", "Transaction", lambda: public(Transaction)),
    (DOCS / "reference" / "tables.md", "Tables", lambda: {*public(Tables), "name", "ledger", "known_by"}),
    (DOCS / "reference" / "tables.md", "TableSession", lambda: public(TableSession)),
    (DOCS / "reference" / "tables.md", "OpenTables", lambda: {*public(OpenTables), "tables", "database"}),
    (DOCS / "reference" / "client.md", "Client", lambda: public(Client)),
    (DOCS / "reference" / "client.md", "Engine", lambda: public(Engine)),
    (DOCS / "reference" / "client.md", "Options of submit", lambda: parameters(Client.submit)),
    (DOCS / "reference" / "client.md", "Options of open", lambda: parameters(Engine.open)),
    (MANAGER_PAGE, "ImageManager", lambda: public(ImageManager)),
    (MANAGER_PAGE, "Options of open", lambda: parameters(ImageManager.open)),
    (MANAGER_PAGE, "Options of request", lambda: parameters(ImageManager.request)),
    (MANAGER_PAGE, "Pool", lambda: public(ImagePool)),
    (MANAGER_PAGE, "Locks", lambda: public(ImageLocks)),
    (MANAGER_PAGE, "Detached", lambda: public(DetachedJobs)),
    (MANAGER_PAGE, "Fleet", lambda: public(ImageFleet)),
    (MANAGER_PAGE, "Answers", lambda: structs_of(image_messages)),
    (DOCS / "how-to" / "tune.md", "Settings of a worker", lambda: WorkerSettings.__struct_fields__),
    (DOCS / "reference" / "outcomes.md", "End codes", lambda: [code.value for code in EndCode]),
    (DOCS / "reference" / "states.md", "Reasons given by explain", lambda: [code.value for code in ReasonCode]),
    (DOCS / "reference" / "journal.md", "Fields", lambda: JournalEntry.__struct_fields__),
    (DOCS / "reference" / "testing.md", "Names", lambda: testing.__all__),
    (DOCS / "reference" / "crash-points.md", "Writes", lambda: [kind.__name__ for kind in get_args(messages.Write)]),
]


def test_the_tables_list_what_the_code_has() -> None:
    in_the_pages = {(name_of(page), heading): sorted(listed(page, heading)) for page, heading, _ in TABLES}

    assert in_the_pages == {(name_of(page), heading): sorted(names()) for page, heading, names in TABLES}


def test_every_verb_of_the_store_is_a_listed_crash_point() -> None:
    source = "".join(path.read_text(encoding="utf-8") for path in (SOURCE / "store").rglob("*.py"))
    verbs = set(re.findall(r"""(?:writing|transaction)\("([a-z][a-z-]+)"\)""", source))

    assert set(listed(DOCS / "reference" / "crash-points.md", "Verbs")) == verbs


def test_every_table_index_and_trigger_is_described() -> None:
    page = DOCS / "reference" / "store-schema.md"
    kinds = {
        heading: set(listed(page, heading)) for heading in ("Tables", "Unique indexes and checks", "Triggers", "Views")
    }
    made = {
        kind: {name for name, (_, _, sql) in expected_schema().items() if sql.upper().startswith(f"CREATE {kind}")}
        for kind in ("TABLE", "UNIQUE INDEX", "TRIGGER", "VIEW")
    }

    assert kinds["Tables"] == made["TABLE"]
    assert made["UNIQUE INDEX"] <= kinds["Unique indexes and checks"]
    assert kinds["Triggers"] == made["TRIGGER"]
    assert kinds["Views"] == made["VIEW"]


def test_every_finding_has_its_line() -> None:
    texts = [inspect.getsource(module) for module in (invariants, agreement)]
    texts += [path.read_text(encoding="utf-8") for path in (SOURCE / "store").rglob("*.py")]
    raised = re.compile(r"""\b_?(?:error|warning|fault|say)\(\s*"([a-z-]+)\"""")
    codes = {code for text in texts for code in raised.findall(text)}

    assert set(listed(DOCS / "reference" / "findings.md", "Findings")) == codes
    assert set(listed(DOCS / "reference" / "findings.md", "Repairs")) == {kind.value for kind in repair.RepairKind}


def test_the_fields_of_a_job_are_described() -> None:
    from holdfast.core.records import ExecutionRecord, JobRecord

    page = DOCS / "reference" / "store-schema.md"

    assert set(listed(page, "jobs")) == set(JobRecord.__struct_fields__)
    assert set(listed(page, "executions")) == set(ExecutionRecord.__struct_fields__)
