"""Holds what is left of a history against every promise. Reads rows and events, and no code of the engine."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.histories import check_jobs, check_journal, check_steps
from tests.histories.check_journal import chain_problems
from tests.histories.evidence import Evidence, Row, Violation
from tests.histories.places import sqlite_rows

RULES = (*check_jobs.RULES, *check_journal.RULES, *check_steps.RULES)


def check(evidence: Evidence) -> list[Violation]:
    """Every promise that was not kept."""
    return [violation for rule in RULES for violation in rule(evidence)]


def check_backups(evidence: Evidence) -> Iterator[Violation]:
    """Each copy is sound, and has everything that was acknowledged before it was asked for."""
    asked = {(event["pid"], event["number"]): event["t"] for event in evidence.of("order")}
    for event in evidence.of("order-done"):
        if event["verb"] == "backup":
            since = asked[event["pid"], event["number"]]
            acknowledged = {job for ack in evidence.of("ack") if ack["t"] < since for job in ack["jobs"]}
            for problem in _problems_of_copy(Path(event["file"]), acknowledged):
                yield Violation("backup", Path(event["file"]).name, problem)


def _problems_of_copy(path: Path, acknowledged: set[str]) -> Iterator[str]:
    try:
        damage = sqlite_rows(path, "PRAGMA integrity_check")
        known = {row["job_id"] for row in sqlite_rows(path, "SELECT job_id FROM jobs UNION SELECT job_id FROM pruned")}
        journal: dict[str, list[Row]] = defaultdict(list)
        for row in sqlite_rows(path, "SELECT * FROM journal ORDER BY job_id, seq"):
            journal[row["job_id"]].append(row)
    except sqlite3.Error as error:
        yield f"cannot be read: {error}"
        return
    if [list(row.values()) for row in damage] != [["ok"]]:
        yield f"is damaged: {damage}"
    for job_id in sorted(acknowledged - known):
        yield f"{job_id} was acknowledged before, and is not in it"
    for job_id, entries in journal.items():
        for problem in chain_problems(entries):
            yield f"{job_id}: {problem}"
