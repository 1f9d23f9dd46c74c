"""All that the checker looks at: rows read by plain SQL, and what processes noted outside of the database."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tests.histories.shapes import EFFECTS_TABLE

Row = dict[str, Any]

SURE_CODES = frozenset(
    {"completed", "handoff", "error", "abort", "unrecoverable", "released", "waiting", "backing-off", "cleanup-failed"}
)
"""An execution that ended so has held its lease until its last step was over."""
CRASH_CODES = frozenset({"crashed", "stalled"})
ENDED_STATES = frozenset({"succeeded", "failed", "quarantined"})


class Violation(NamedTuple):
    """A promise that was not kept."""

    rule: str
    subject: str
    message: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.subject}: {self.message}"


class Span(NamedTuple):
    """Microseconds of the monotonic clock."""

    start: int
    end: int


@dataclass
class Evidence:
    """What is left of a history."""

    store: str = "sqlite"
    lease_ms: int = 4000
    now_ms: int = 0
    """The time of the database's clock at the end."""
    wall_offset_us: int = 0
    """What has to be added to the monotonic clock to get the real time; of no use after a jump."""
    jobs: dict[str, Row] = field(default_factory=dict)
    executions: dict[str, list[Row]] = field(default_factory=dict)
    steps: dict[str, list[Row]] = field(default_factory=dict)
    journal: dict[str, list[Row]] = field(default_factory=dict)
    children: list[Row] = field(default_factory=list)
    queues: dict[str, Row] = field(default_factory=dict)
    pruned: dict[str, Row] = field(default_factory=dict)
    effects: list[Row] = field(default_factory=list)
    events: list[Row] = field(default_factory=list)

    def of(self, *kinds: str) -> list[Row]:
        """The events of these kinds, in the order of time."""
        return [event for event in self.events if event["e"] in kinds]

    @property
    def jumped(self) -> bool:
        """Was the clock set in this history?"""
        return any(event["e"] == "jump" for event in self.events)

    def state_of(self, job: str) -> str | None:
        """How the job stands, or stood when it was pruned."""
        row = self.jobs.get(job) or self.pruned.get(job)
        return row["state"] if row else None

    def execution(self, exec_id: str) -> Row | None:
        return self._by_exec_id().get(exec_id)

    def _by_exec_id(self) -> dict[str, Row]:
        if not hasattr(self, "_index"):
            self._index = {row["exec_id"]: row for rows in self.executions.values() for row in rows}
        return self._index

    def visits(self) -> dict[str, list[Row]]:
        """What each execution's steps have logged, by its id."""
        if not hasattr(self, "_visits"):
            self._visits: dict[str, list[Row]] = defaultdict(list)
            for event in self.of("begin", "end"):
                self._visits[event["exec"]].append(event)
        return self._visits

    def held(self, execution: Row) -> Span | None:
        """When this execution was live for sure: its lease reached from its first step to its last."""
        logged = self.visits().get(execution["exec_id"])
        if execution["code"] not in SURE_CODES or not logged:
            return None
        return Span(logged[0]["t"], logged[-1]["t"])

    def monotonic_of(self, wall_ms: int) -> int:
        """A time of the database on the monotonic clock."""
        return wall_ms * 1000 - self.wall_offset_us


def collect(
    query: Callable[[str], list[Row]], events: Sequence[Row], *, store: str, lease: float, now_ms: int, offset_us: int
) -> Evidence:
    """Read everything."""

    def grouped(table: str, order: str) -> dict[str, list[Row]]:
        found: dict[str, list[Row]] = defaultdict(list)
        for row in query(f"SELECT * FROM {table} ORDER BY job_id, {order}"):
            found[row["job_id"]].append(row)
        return dict(found)

    return Evidence(
        store=store,
        lease_ms=round(lease * 1000),
        now_ms=now_ms,
        wall_offset_us=offset_us,
        jobs={row["job_id"]: row for row in query("SELECT * FROM jobs")},
        executions=grouped("executions", "attempt"),
        steps=grouped("steps", "position"),
        journal=grouped("journal", "seq"),
        children=query("SELECT * FROM children"),
        queues={row["name"]: row for row in query("SELECT * FROM queues")},
        pruned={row["job_id"]: row for row in query("SELECT * FROM pruned")},
        effects=query(f"SELECT * FROM {EFFECTS_TABLE}"),
        events=list(events),
    )


def keep(evidence: Evidence, path: Path) -> None:
    """Write all of it to a file: of a server that a history has started nothing else is left."""
    parts = ("jobs", "executions", "steps", "journal", "children", "queues", "pruned", "effects")
    path.write_text(json.dumps({part: getattr(evidence, part) for part in parts}, indent=1), encoding="utf-8")


def unexplained(
    jobs: Mapping[str, Row], queues: Mapping[str, Row], states: Callable[[str], str | None], now_ms: int
) -> dict[str, str]:
    """The unfinished jobs that wait for nothing, and what is said of them."""
    found = {}
    for job_id, job in jobs.items():
        if job["state"] in ENDED_STATES:
            continue
        problem = _problem(job, queues.get(job["queue"]), states, now_ms)
        if problem:
            found[job_id] = problem
    return found


def _problem(job: Row, queue: Row | None, states: Callable[[str], str | None], now_ms: int) -> str:
    if job["state"] == "running":
        return "is running, though nobody works"
    match job["hold"]:
        case "until":
            return "" if job["not_before"] > now_ms else "was due and did not start"
        case "after":
            if states(job["waits_for"]) in ("pending", "running"):
                return ""
            return f"waits for {job['waits_for']}, which is {states(job['waits_for'])}"
        case "child":
            if states(job["waits_for"]) in ("pending", "running"):
                return ""
            return f"waits for the end of {job['waits_for']}, which is {states(job['waits_for'])}"
    if queue is not None and (queue["paused_at"] is not None or queue["max_running"] == 0):
        return ""
    return "could run and does not"


def script_of(event: Row) -> Row:
    """The script that a job was asked for with."""
    script: Row = event.get("script") or {}
    return script


def metadata_code(entry: Row) -> str | None:
    """The end code in a journal entry."""
    code: str | None = json.loads(entry["metadata"] or "{}").get("code")
    return code
