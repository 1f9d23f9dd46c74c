"""The pictures of the documentation, drawn from the tables of the code: `make diagrams` writes them to docs/images.

Boxes, names and arrows come from the states and their transitions, the layers that the linter checks and the flows as
the command draws them. Written here is only where things stand, and what a walk says.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.core.diagram import EXECUTION_EDGE_LABELS, JOB_EDGE_LABELS
from holdfast.core.states import (
    EXECUTION_TRANSITIONS,
    JOB_TRANSITIONS,
    TERMINAL_EXECUTION_STATUSES,
    TERMINAL_JOB_STATES,
    ExecutionStatus,
    JobState,
)

ROOT = Path(__file__).parents[2]

STYLE = (
    "text{fill:#57606a;font-size:12px}.t{fill:#24292f}.h{fill:#24292f;font-weight:600}.m{text-anchor:middle}.e{text-anchor:end}"
    ".n{fill:#f6f8fa;stroke:#8c959f}.g{fill:#ddf1e8;stroke:#1f7a5c}.p{fill:none;stroke:#c4ccd4}"
    ".l{fill:none;stroke:#57606a}.d{stroke-dasharray:3 4}.f{fill:#57606a}"
    "@media(prefers-color-scheme:dark){text{fill:#9aa4af}.t,.h{fill:#e6edf3}.n{fill:#22272e;stroke:#6b7580}"
    ".g{fill:#1b3a30;stroke:#3fb68b}.p{stroke:#4a525b}.l{stroke:#9aa4af}.f{fill:#9aa4af}}"
)
ARROW = (
    '<defs><marker id="a" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
    '<path class="f" d="M0 0L8 4L0 8z"/></marker></defs>'
)


def picture(width: int, height: int, title: str, parts: Iterable[str]) -> str:
    """A whole file."""
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" font-family="sans-serif">'
    return "\n".join([head, f"<title>{escape(title)}</title>", f"<style>{STYLE}</style>", ARROW, *parts, "</svg>", ""])


def text(x: float, y: float, words: str, kind: str = "") -> str:
    """A line of text."""
    return f'<text class="{kind}" x="{x:g}" y="{y:g}">{escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, kind: str = "n") -> str:
    """A box with round corners."""
    return f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6"/>'


def line(x: float, y: float, to_x: float, to_y: float, kind: str = "l", *, arrow: bool = True) -> str:
    """A line, with an arrow at its end."""
    end = ' marker-end="url(#a)"' if arrow else ""
    return f'<path class="{kind}" d="M{x:g} {y:g}L{to_x:g} {to_y:g}"{end}/>'


# --- state machines --------------------------------------------------------------------------------------

WIDTH, HEIGHT = 112, 36
ACROSS, DOWN = 270, 120
TWO_WAYS = 8
"""How far apart the two arrows between the same states are, from the middle."""


class Machine(NamedTuple):
    """A table of transitions, and where its states stand: column and row."""

    title: str
    transitions: Mapping[str, frozenset[str]]
    labels: Mapping[tuple[str, str], str]
    terminal: frozenset[str]
    places: Mapping[str, tuple[int, int]]


JOB = Machine(
    "The states of a job",
    {state: frozenset(map(str, to)) for state, to in JOB_TRANSITIONS.items()},
    JOB_EDGE_LABELS,
    frozenset(map(str, TERMINAL_JOB_STATES)),
    {
        JobState.PENDING: (0, 0),
        JobState.RUNNING: (1, 0),
        JobState.SUCCEEDED: (2, 0),
        JobState.QUARANTINED: (0, 1),
        JobState.FAILED: (1, 1),
    },
)
EXECUTION = Machine(
    "The states of an execution",
    {state: frozenset(map(str, to)) for state, to in EXECUTION_TRANSITIONS.items()},
    EXECUTION_EDGE_LABELS,
    frozenset(map(str, TERMINAL_EXECUTION_STATUSES)),
    {
        ExecutionStatus.LEASED: (0, 0),
        ExecutionStatus.IN_PROGRESS: (1, 0),
        ExecutionStatus.COMMITTED: (2, 0),
        ExecutionStatus.DONE: (3, 0),
        ExecutionStatus.ABORTED: (1, 1),
    },
)


def machine(drawn: Machine) -> str:
    """A state machine: the first state has a dot before it, a final one a second border."""
    middle = {
        state: (64 + WIDTH / 2 + column * ACROSS, 30 + row * DOWN) for state, (column, row) in drawn.places.items()
    }
    parts = ['<circle class="f" cx="24" cy="30" r="6"/>', line(32, 30, 62, 30)]
    for state, (x, y) in middle.items():
        kind = "g" if state in (JobState.SUCCEEDED, ExecutionStatus.DONE) else "n"
        parts.append(box(x - WIDTH / 2, y - HEIGHT / 2, WIDTH, HEIGHT, kind))
        if state in drawn.terminal:
            parts.append(box(x - WIDTH / 2 + 3, y - HEIGHT / 2 + 3, WIDTH - 6, HEIGHT - 6, kind))
        parts.append(text(x, y + 4, state, "t m"))
    for source in drawn.transitions:
        for target in sorted(drawn.transitions[source] - {source}):
            both = source in drawn.transitions[target]
            parts += edge(middle[source], middle[target], drawn.labels[source, target], both=both)
    columns = 1 + max(column for column, _ in drawn.places.values())
    return picture(64 + (columns - 1) * ACROSS + WIDTH + 16, 60 + DOWN, drawn.title, parts)


def edge(start: tuple[float, float], end: tuple[float, float], label: str, *, both: bool) -> list[str]:
    """An arrow from box to box: along a row, along a column, or from corner to corner."""
    (x, y), (to_x, to_y) = start, end
    side, way = (1 if to_x > x else -1), (1 if to_y > y else -1)
    between = ((x + to_x) / 2, (y + to_y) / 2)
    if y == to_y:
        y += -side * TWO_WAYS if both else 0
        label_y = y - 6 if side > 0 or not both else y + 16
        return [
            line(x + side * WIDTH / 2, y, to_x - side * (WIDTH / 2 + 2), y),
            text(between[0], label_y, label, "m"),
        ]
    if x == to_x:
        return [
            line(x, y + way * HEIGHT / 2, x, to_y - way * (HEIGHT / 2 + 2)),
            text(x + 8, between[1] + 4, label),
        ]
    from_x, until_x = x + side * (WIDTH / 2 - 8), to_x - side * (WIDTH / 2 - 8)
    arrow = line(from_x, y + way * HEIGHT / 2, until_x, to_y - way * (HEIGHT / 2 + 2))
    return [
        arrow,
        text(between[0] + 14, between[1] - 6, label) if way < 0 else text(between[0] - 14, between[1] + 16, label, "e"),
    ]


# --- layers ----------------------------------------------------------------------------------------------

PANEL, ROW = 430, 44


def layers() -> str:
    """The layers of both packages, as the linter checks them: a row may import only what is below it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = [each for each in project["tool"]["importlinter"]["contracts"] if each["type"] == "layers"]
    found = {each["containers"][0]: [_names(row) for row in each["layers"]] for each in contracts}
    packages = {package: [row for row in rows if row] for package, rows in sorted(found.items(), reverse=True)}
    height = 40 + ROW * max(map(len, packages.values()))
    parts = []
    for number, (package, rows) in enumerate(packages.items()):
        left = number * (PANEL + 100)
        parts += [text(left + PANEL / 2, 16, package, "h m"), box(left + 0.5, 26, PANEL - 1, 8 + ROW * len(rows), "p")]
        for position, row in enumerate(rows):
            parts += _row(row, left + 10, 36 + position * ROW)
    parts += [
        line(PANEL + 4, 100, PANEL + 94, 100),
        text(PANEL + 50, 90, "public", "m"),
        text(PANEL + 50, 118, "names only", "m"),
    ]
    return picture(2 * PANEL + 100, height, "The layers: a row imports only what is below it", parts)


def _names(row: str) -> list[str]:
    return [name for name in (each.strip(" ()") for each in row.split("|")) if name != "__main__"]


def _row(names: list[str], left: float, top: float) -> list[str]:
    width = (PANEL - 20 - 8 * (len(names) - 1)) / len(names)
    parts = []
    for number, name in enumerate(names):
        x = left + number * (width + 8)
        parts += [box(x, top, width, 32), text(x + width / 2, top + 20, name, "t m")]
    return parts


# --- walks -----------------------------------------------------------------------------------------------


class Leg(NamedTuple):
    """A line of a walk: its lanes, what happens, what the database says then, and what a kill before it leaves."""

    start: int
    end: int
    what: str
    job: JobState | None = None
    execution: ExecutionStatus | None = None
    killed: str = ""


LANES = {"your program": 70, "database": 400, "worker": 730}
SUBMIT_TO_DONE = [
    Leg(0, 1, "submit: job, request, journal entry", JobState.PENDING, None, "nothing: the caller has no id"),
    Leg(1, 2, "wakes a worker", killed="a pending job; any worker takes it"),
    Leg(2, 1, "claim: an execution, under a lease", JobState.RUNNING, ExecutionStatus.LEASED, "a pending job"),
    Leg(
        2,
        1,
        "the flow is the one it is pinned to",
        JobState.RUNNING,
        ExecutionStatus.IN_PROGRESS,
        "a dead lease; another takes over",
    ),
    Leg(2, 2, "a step runs"),
    Leg(2, 1, "its row: done, and the response so far", None, None, "this step is entered again"),
    Leg(
        2,
        1,
        "commit step: effect and mark, as one",
        JobState.RUNNING,
        ExecutionStatus.COMMITTED,
        "nothing of the commit step",
    ),
    Leg(2, 1, "finish", JobState.SUCCEEDED, ExecutionStatus.DONE, "the effect; recovery sets the mark"),
    Leg(1, 0, "result()"),
]
LEG = 46


def submit_to_done() -> str:
    """The walk of a job through program, database and worker, and what a kill on the way leaves."""
    _check_legal([leg.job for leg in SUBMIT_TO_DONE if leg.job], JOB_TRANSITIONS)
    _check_legal([leg.execution for leg in SUBMIT_TO_DONE if leg.execution], EXECUTION_TRANSITIONS)
    at, height = list(LANES.values()), 60 + LEG * len(SUBMIT_TO_DONE)
    parts = [text(830, 20, "killed before it, it leaves", "h")]
    for name, x in LANES.items():
        parts += [line(x, 32, x, height - 6, "p", arrow=False), text(x, 20, name, "h m")]
    for number, leg in enumerate(SUBMIT_TO_DONE):
        parts += _leg(leg, 64 + number * LEG, at)
    return picture(1060, height, "From submit to done", parts)


def _leg(leg: Leg, y: float, at: list[int]) -> list[str]:
    parts = []
    state = " / ".join(filter(None, [leg.job and f"job {leg.job}", leg.execution]))
    # Where the database has something to say, its words stand on its line.
    reach = {lane: (100 if state and lane == 1 else 0) for lane in range(len(at))}
    if leg.start == leg.end:
        parts += [box(at[leg.start] - 55, y - 18, 110, 30), text(at[leg.start], y + 1, leg.what, "t m")]
    else:
        side = 1 if leg.end > leg.start else -1
        start, end = at[leg.start] + side * (4 + reach[leg.start]), at[leg.end] - side * (4 + reach[leg.end])
        parts += [line(start, y, end, y), text((start + end) / 2, y - 7, leg.what, "t m")]
    if state:
        is_final = leg.job in TERMINAL_JOB_STATES or leg.execution is ExecutionStatus.COMMITTED
        parts += [box(at[1] - 96, y - 13, 192, 26, "g" if is_final else "n"), text(at[1], y + 4, state, "t m")]
    return [*parts, text(830, y + 4, leg.killed)] if leg.killed else parts


def _check_legal(states: list[JobState] | list[ExecutionStatus], transitions: Mapping[Any, frozenset[Any]]) -> None:
    for before, after in pairwise(states):
        if before != after and after not in transitions[before]:
            raise SystemExit(f"the walk goes from {before} to {after}, and the table does not")


STAGES = {"download": "download-image", "unpack": "unpack-image", "activate": "activate-image"}
STEP_MEANINGS = {
    "check-exists": "the file is here: hand it on",
    "download": "in ranges of one ETag, hashed",
    "validate": "every header, before anything is made",
    "store-metadata": "the file is an image's",
    "check-unpacked": "the device is here: hand it on",
    "create-device": "empty, under an id reserved first",
    "extract-layers": "by a confined child process",
    "verify-layout": "it is a root file system; sealed",
    "update-db": "the device is the image's",
    "check-snapshot": "it is here and in use: hand it on",
    "create-snapshot": "of the sealed device",
    "register": "the snapshot is in use",
}


def process_image() -> str:
    """process-image: its stages, each a job of its own, with their steps as the command draws them."""
    steps = {stage: graph(flow) for stage, flow in STAGES.items()}
    stages = list(graph("process-image")[1])
    if stages != list(STAGES):
        raise SystemExit(f"process-image has the stages {stages}")
    height = 58 + 58 * max(len(found) for _, found in steps.values())
    parts = []
    for number, (stage, (heading, found)) in enumerate(steps.items()):
        left = number * 320
        parts += [
            box(left + 0.5, 0.5, 260, 58 + 58 * len(found), "p"),
            text(left + 130, 24, STAGES[stage], "h m"),
            text(left + 130, 42, heading, "m"),
        ]
        for position, (step, remarks) in enumerate(found.items()):
            top = 58 + position * 58
            parts += [box(left + 14, top, 232, 44, "g" if "commit" in remarks else "n")]
            parts += [text(left + 130, top + 18, step, "t m"), text(left + 130, top + 34, STEP_MEANINGS[step], "m")]
            if position:
                parts.append(line(left + 130, top - 14, left + 130, top - 2))
        if number:
            parts.append(line(left - 58, 30, left - 2, 30))
    parts += [
        text(
            0, height + 22, "Green: the commit step. Its rows, and the mark that they are written, are one transaction."
        )
    ]
    return picture(901, height + 30, "process-image: three jobs, each done once", parts)


def graph(flow: str) -> tuple[str, dict[str, str]]:
    """What `holdfast flows graph` says of a flow: its queue, and its steps with their remarks."""
    command = [sys.executable, "-m", "holdfast_images.cli", "flows", "graph", flow]
    drawn = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    queue = re.search(r", queue ([\w-]+)\)", drawn)
    return f"queue {queue[1]}" if queue else "no queue", dict(
        re.findall(r"^ +\d+\. ([\w-]+) *(.*)$", drawn, re.MULTILINE)
    )


PICTURES = {
    "job.svg": lambda: machine(JOB),
    "execution.svg": lambda: machine(EXECUTION),
    "layers.svg": layers,
    "submit-to-done.svg": submit_to_done,
    "process-image.svg": process_image,
}


def main() -> None:
    """Write all of them into a folder."""
    folder = Path(sys.argv[1])
    for name, draw in PICTURES.items():
        (folder / name).write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main()
