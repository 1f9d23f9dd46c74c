"""The journal, recomputed: hashes, legal transitions, nothing missing, and the counts that follow from it."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence

from tests.histories.evidence import CRASH_CODES, Evidence, Row, Violation, metadata_code

FIELDS = (
    "job_id", "seq", "at", "actor", "exec_id", "job_from", "job_to", "exec_from", "exec_to", "step", "reason",
    "metadata",
)  # fmt: skip
JOB_MOVES = {
    (None, "pending"), ("pending", "running"), ("running", "pending"), ("running", "failed"), ("running", "succeeded"),
    ("failed", "pending"), ("failed", "quarantined"), ("quarantined", "pending"),
}  # fmt: skip
EXECUTION_MOVES = {
    (None, "leased"), ("leased", "in_progress"), ("leased", "aborted"), ("in_progress", "committed"),
    ("in_progress", "aborted"), ("committed", "done"),
}  # fmt: skip
JOB_AFTER = {"leased": {"running"}, "in_progress": {"running"}, "committed": {"running"}, "done": {"succeeded"}}


def hash_of(entry: Row) -> str:
    """As docs/reference/journal.md says: SHA-256 of the JSON array of the hash before and the fields, in order."""
    content = [entry["prev_hash"], *(entry[name] for name in FIELDS)]
    return hashlib.sha256(json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()).hexdigest()


def chain_problems(entries: Sequence[Row]) -> Iterator[str]:
    """What is wrong with one job's chain."""
    previous = ""
    for number, entry in enumerate(entries, start=1):
        if entry["seq"] != number:
            yield f"entry {entry['seq']} stands where {number} should"
        if entry["prev_hash"] != previous:
            yield f"entry {entry['seq']} does not follow the one before"
        if entry["hash"] != hash_of(entry):
            yield f"entry {entry['seq']} has a hash that is not its own"
        previous = entry["hash"]


def journal_is_whole(evidence: Evidence) -> Iterator[Violation]:
    for job_id, job in evidence.jobs.items():
        entries = evidence.journal.get(job_id, [])
        for problem in chain_problems(entries):
            yield Violation("chain", job_id, problem)
        if not entries:
            yield Violation("journal", job_id, "has no journal")
        elif entries[-1]["job_to"] != job["state"]:
            yield Violation("journal", job_id, f"ends with {entries[-1]['job_to']}, the job is {job['state']}")
    for job_id in set(evidence.journal) - set(evidence.jobs):
        yield Violation("journal", job_id, "there is a journal, and no job")


def transitions_are_legal(evidence: Evidence) -> Iterator[Violation]:
    for job_id, entries in evidence.journal.items():
        state: str | None = None
        for entry in entries:
            move = (entry["job_from"], entry["job_to"])
            if entry["job_from"] != state:
                yield Violation(
                    "transition", job_id, f"entry {entry['seq']} begins with {move[0]}, the job was {state}"
                )
            if move not in JOB_MOVES and (move[0] != move[1] or move[0] is None):
                yield Violation("transition", job_id, f"entry {entry['seq']}: {move[0]} to {move[1]}")
            state = entry["job_to"]


def executions_are_journaled(evidence: Evidence) -> Iterator[Violation]:
    """Every status an execution ever had is in the journal, in the order of the table."""
    statuses: dict[str, str | None] = defaultdict(lambda: None)
    for job_id, entries in evidence.journal.items():
        for entry in entries:
            if entry["exec_id"] is None or (entry["exec_from"] is None and entry["exec_to"] is None):
                continue
            before, after = entry["exec_from"], entry["exec_to"]
            known = statuses[entry["exec_id"]]
            if before != known:
                yield Violation("transition", job_id, f"entry {entry['seq']}: execution was {known}, not {before}")
            if before != after and (before, after) not in EXECUTION_MOVES:
                yield Violation("transition", job_id, f"entry {entry['seq']}: execution from {before} to {after}")
            if entry["job_to"] not in JOB_AFTER.get(after, {entry["job_to"]}):
                yield Violation("transition", job_id, f"entry {entry['seq']}: {after}, and the job {entry['job_to']}")
            statuses[entry["exec_id"]] = after
    for job_id, executions in evidence.executions.items():
        for row in executions:
            if statuses[row["exec_id"]] != row["status"]:
                said = statuses[row["exec_id"]]
                yield Violation("journal", job_id, f"{row['exec_id']} is {row['status']}, the journal says {said}")
    known_ids = {row["exec_id"] for rows in evidence.executions.values() for row in rows}
    for exec_id in set(statuses) - known_ids:
        yield Violation("journal", exec_id, "is journaled, and there is no such execution")


def attempts_have_no_gaps(evidence: Evidence) -> Iterator[Violation]:
    for job_id, job in evidence.jobs.items():
        attempts = [row["attempt"] for row in evidence.executions.get(job_id, [])]
        if attempts != list(range(1, job["attempt"] + 1)):
            yield Violation("attempts", job_id, f"has had {job['attempt']} attempts: {attempts}")
        committed = [row for row in evidence.executions.get(job_id, []) if row["status"] in ("committed", "done")]
        if len(committed) != (job["state"] == "succeeded"):
            yield Violation("commit", job_id, f"is {job['state']}, with {len(committed)} committed executions")


def counts_follow_from_the_journal(evidence: Evidence) -> Iterator[Violation]:
    for job_id, job in evidence.jobs.items():
        aborted = [
            (metadata_code(entry), entry["job_to"])
            for entry in evidence.journal.get(job_id, [])
            if entry["exec_to"] == "aborted" and entry["exec_from"] != "aborted"
        ]
        crashes = sum(code in CRASH_CODES for code, _ in aborted)
        failures = sum(code not in CRASH_CODES and state == "failed" for code, state in aborted)
        if job["crashes"] != crashes:
            yield Violation("counts", job_id, f"counts {job['crashes']} crashes, the journal {crashes}")
        if job["failures"] != failures:
            yield Violation("counts", job_id, f"counts {job['failures']} failures, the journal {failures}")


RULES = (
    journal_is_whole,
    transitions_are_legal,
    executions_are_journaled,
    attempts_have_no_gaps,
    counts_follow_from_the_journal,
)
