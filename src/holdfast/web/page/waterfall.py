"""What happened when: the executions, steps and tries of a job as bars over time, with what lay between them.

Long idle stretches are drawn shorter than they were, and say so: a job that waited for a day has run for a second.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from holdfast.core.hash_chain import ENDING_PLANNED, evidence_in
from holdfast.core.progress import CLEANUP, step_at
from holdfast.core.records import JournalEntry, StepRecord
from holdfast.core.states import LIVE_STATUSES, JobState
from holdfast.core.step import CRASH_CODES, EndCode
from holdfast.core.values import label_of
from holdfast.views import ExecutionView, JobView
from holdfast.web.page import words

MOST_EXECUTIONS = 40
"""The last so many are drawn; the list of those before them is in the journal."""
SQUEEZED = 0.12
"""The share of a long idle stretch."""
LONG, LONG_MS = 0.3, 10_000
"""Of all the time, and at least: what is shorter is not squeezed."""
FUTURE = 0.06
LEAST = 0.22
"""Per cent: what is shorter is drawn as long as this."""
IDLE = ("queue", "job", "ended", "back")
NICE = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 60_000, 120_000, 300_000, 600_000,
        1_200_000, 3_600_000, 7_200_000, 21_600_000, 86_400_000, 7 * 86_400_000, 30 * 86_400_000)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Stretch:
    """Something that lasted."""

    kind: str
    """queue, job, lease, run, done, cut, back, ended"""
    start: int
    end: int
    title: str


@dataclass(slots=True)
class WaterfallRow:
    """A line of the waterfall."""

    kind: str
    """life, ex, s (a step), ghost (one that was not reached)"""
    name: str
    note: str = ""
    tags: tuple[str, ...] = ()
    said: str = ""
    """The last column."""
    tone: str = ""
    stretches: list[Stretch] = field(default_factory=list)
    failed_at: list[int] = field(default_factory=list)
    running_since: int | None = None

    @property
    def label(self) -> str:
        """The same in words."""
        return "; ".join(one.title for one in self.stretches) or "not reached"


@dataclass(frozen=True, slots=True)
class Mark:
    """A crash, or who took over."""

    kind: str
    at: int
    text: str


class Axis:
    """Where a time is, in per cent; long idle stretches are squeezed."""

    def __init__(self, start: int, end: int, idle: Sequence[Stretch], now: int | None) -> None:
        end = max(end, start + 1)
        self._knots: list[tuple[int, float]] = []
        long_ones = [one for one in idle if one.end - one.start > max(LONG_MS, LONG * (end - start))]
        # What is left over is shared by all the rest, as long as it was.
        busy = (end - start) - sum(one.end - one.start for one in long_ones)
        room = 100 * (1 - (FUTURE if now is not None else 0.01)) - 100 * SQUEEZED * len(long_ones)
        at, x = start, 0.0
        self.squeezed = long_ones if busy > 0 else []
        for one in self.squeezed:
            x += room * (one.start - at) / busy
            self._knots += [(one.start, x), (one.end, x + 100 * SQUEEZED)]
            at, x = one.end, x + 100 * SQUEEZED
        x += room * (end - at) / busy if busy > 0 else room + 100 * SQUEEZED * len(long_ones)
        self._knots = [(start, 0.0), *self._knots, (end, x)]
        self.start, self.end, self.now = start, end, now

    def x(self, time: int) -> float:
        """Per cent from the left."""
        for (t0, x0), (t1, x1) in zip(self._knots, self._knots[1:], strict=False):
            if time <= t1 and t1 > t0:
                return round(x0 + (x1 - x0) * max(0, time - t0) / (t1 - t0), 2)
        return round(self._knots[-1][1], 2)

    def width(self, one: Stretch) -> float:
        """Per cent; nothing is too short to be seen."""
        return round(max(LEAST, self.x(one.end) - self.x(one.start)), 2)

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """Times that are written below each other, never too close."""
        span = self.end - self.start - sum(one.end - one.start for one in self.squeezed)
        step = next((each for each in NICE if span / each <= 7), NICE[-1])
        ticks: list[tuple[float, str]] = []
        at = -(-self.start // step) * step
        while at < self.end and len(ticks) < 40:
            inside = next((one for one in self.squeezed if one.start < at < one.end), None)
            if inside is not None:
                at = -(-inside.end // step) * step
                continue
            x = self.x(at)
            if (
                x > 3
                and x < 96
                and (self.now is None or abs(x - self.x(self.now)) > 5)
                and (not ticks or x - ticks[-1][0] > 6)
            ):
                ticks.append((x, _tick(at, step)))
            at += step
        return ticks


def _tick(at: int, step: int) -> str:
    if step >= words.DAY:
        return words.full(at)[5:10]
    return (
        words.precise(at)[6:]
        if step < words.SECOND
        else words.precise(at)[:8]
        if step < words.MINUTE
        else words.precise(at)[:5]
    )


class Waterfall:
    """The whole of it."""

    def __init__(self, view: JobView, journal: Sequence[JournalEntry], steps: Sequence[str], now: int) -> None:
        self._view, self._journal, self._names, self._now = view, journal, steps, now
        self._is_open = view.job.state in (JobState.PENDING, JobState.RUNNING)
        self._ends = {
            entry.exec_id: entry for entry in journal if entry.exec_id and entry.exec_to in ("aborted", "done")
        }
        self._endings = {
            entry.exec_id: entry for entry in journal if entry.exec_id and entry.reason.startswith(ENDING_PLANNED)
        }
        executions = view.executions
        self.left_out = max(0, len(executions) - MOST_EXECUTIONS)
        self._executions = executions[self.left_out :]
        self.marks = list(self._marks())
        self.life = self._life()
        self.rows = [self.life, *self._all_rows()]
        stretches = [one for row in self.rows for one in row.stretches]
        start = self.life.stretches[0].start if self.life.stretches else view.job.created_at
        end = max([one.end for one in stretches], default=start + 1)
        end = max(end, now) if self._is_open else end
        idle = [one for one in self.life.stretches if one.kind in IDLE]
        self.axis = Axis(start, end, idle, now if self._is_open else None)

    # --- what lies between the executions ---

    def _life(self) -> WaterfallRow:
        job, executions = self._view.job, self._executions
        row = WaterfallRow("life", "The whole job", running_since=job.created_at if self._is_open else None)
        at = job.created_at if not self.left_out else executions[0].execution.started_at
        before: ExecutionView | None = None
        for one in executions:
            row.stretches += self._between(before, at, one.execution.started_at)
            end = self._end_of(one)
            row.stretches.append(Stretch("run", one.execution.started_at, end, f"execution {one.execution.attempt}"))
            at, before = end, one
        if self._is_open and job.state is JobState.PENDING:
            row.stretches += self._between(before, at, max(self._now, at))
            if job.not_before > self._now:
                row.stretches.append(
                    Stretch("back", self._now, job.not_before, f"not before {words.precise(job.not_before)[:8]}")
                )
        last = executions[-1].execution if executions else None
        ended = (last.finished_at or 0) if last else job.updated_at
        row.said = words.duration(max(0, (self._now if self._is_open else ended) - job.created_at))
        return row

    def _between(self, before: ExecutionView | None, start: int, end: int) -> Iterator[Stretch]:
        """From the end of one execution to the begin of the next."""
        if end <= start:
            return
        entry = (
            self._ends.get(before.execution.exec_id)
            if before is not None
            else self._journal[0]
            if self._journal
            else None
        )
        evidence = evidence_in(entry.metadata) if entry is not None else None
        until = min(max(start, evidence.not_before if evidence else 0), end)
        waits_for = (evidence.wait_for or evidence.run_after) if evidence is not None else None
        if waits_for:
            yield Stretch(
                "job",
                start,
                end,
                f"waiting for job {words.short(waits_for)}, then in queue: {words.duration(end - start)}",
            )
            return
        if before is not None and before.execution.disposition in ("failed", "quarantined"):
            yield Stretch("ended", start, end, f"{before.execution.disposition} for {words.duration(end - start)}")
            return
        if until > start:
            what = "backing off" if before is not None else "scheduled for later"
            yield Stretch("back", start, until, f"{what} {words.duration(until - start)}")
        if end > until:
            yield Stretch("queue", until, end, f"waiting in queue {words.duration(end - until)}")

    def _end_of(self, one: ExecutionView) -> int:
        return max(
            one.execution.started_at, one.execution.finished_at if one.execution.finished_at is not None else self._now
        )

    # --- the executions and their steps ---

    def _all_rows(self) -> Iterator[WaterfallRow]:
        for one in self._executions:
            yield self._execution(one)
            yield from self._steps(one)
        if self._view.job.state is not JobState.SUCCEEDED and self._names:
            for name in self._names[self._reached() :]:
                yield WaterfallRow("ghost", name, said="not reached")

    def _reached(self) -> int:
        """How many steps have been begun by the last execution, or before it."""
        last = self._executions[-1].execution if self._executions else None
        ending = self._endings.get(last.exec_id) if last is not None else None
        if (
            ending is not None and ending.step is not None and ending.step in self._names
        ):  # its cleanup may have taken back what was finished
            return list(self._names).index(ending.step) + 1
        return len(self._view.steps) + (
            1 if last is not None and self._open_step(self._executions[-1], last.started_at) else 0
        )

    def _execution(self, one: ExecutionView) -> WaterfallRow:
        execution = one.execution
        end, code = self._end_of(one), execution.code or ""
        is_live = execution.finished_at is None
        tone = (
            "failed"
            if code in (*CRASH_CODES, EndCode.ERROR, EndCode.UNRECOVERABLE, EndCode.ABORT, EndCode.TIMEOUT)
            else "dim"
        )
        row = WaterfallRow("ex", f"Execution {execution.attempt}", note=label_of(execution.lease_owner), tone=tone)
        row.said = "" if is_live else f"{code} {words.duration(end - execution.started_at)}"
        row.running_since = execution.started_at if is_live else None
        held = "leased" if is_live else f"leased for {words.duration(end - execution.started_at)}, ended: {code}"
        row.stretches.append(Stretch("lease", execution.started_at, end, held))
        return row

    def _steps(self, one: ExecutionView) -> Iterator[WaterfallRow]:
        execution = one.execution
        at = execution.started_at
        for step in one.steps:
            took = step.finished_at - step.started_at
            tags = (f"{step.tries} tries",) if step.tries > 1 else ()
            row = WaterfallRow("s", step.step, tags=tags, said=words.duration(took))
            row.stretches.append(Stretch("done", step.started_at, step.finished_at, f"{words.duration(took)}, done"))
            at = step.finished_at
            yield row
        ending = self._endings.get(execution.exec_id)
        if ending is not None and ending.step:
            evidence = evidence_in(ending.metadata)
            failure = evidence.failure if evidence is not None else None
            tags = (f"{failure.tries} tries",) if failure is not None and failure.tries > 1 else ()
            _, said, tone = _ENDINGS.get(evidence.code or "" if evidence is not None else "", ("run", "ended", ""))
            row = WaterfallRow(
                "s", ending.step, tags=tags, said=said, tone=tone, failed_at=[ending.at] if tone == "failed" else []
            )
            row.stretches.append(
                Stretch("run", at, max(at, ending.at), f"{words.duration(max(0, ending.at - at))}, {said}")
            )
            at = max(at, ending.at)
            yield row
        row_of_open = self._open_step(one, at)
        if row_of_open is not None:
            yield row_of_open

    def _open_step(self, one: ExecutionView, at: int) -> WaterfallRow | None:
        """The step that the execution was in when it ended, or is in."""
        execution, current = one.execution, self._view.current
        is_live = execution.finished_at is None and execution.status in LIVE_STATUSES
        if is_live and current is not None:
            name = current.step
        else:
            entry = self._ends.get(execution.exec_id)
            name = (
                entry.step
                if entry is not None and entry.step
                else step_at(tuple(self._names), _next(one.steps, self._view.steps))
            )
        if name is None or (not is_live and execution.code in (EndCode.COMPLETED, EndCode.HANDOFF)):
            return None
        end = self._end_of(one)
        tags = tuple(
            tag
            for tag, there in (
                ("interrupted", execution.interrupted),
                (f"{execution.tries} tries", execution.tries > 1),
            )
            if there
        )
        row = WaterfallRow("s", name, tags=tags)
        if is_live:
            self._add_live(row, one, at, end)
            return row
        kind, said, tone = _ENDINGS.get(execution.code or "", ("run", execution.code or "ended", ""))
        if name == CLEANUP and execution.code != EndCode.CLEANUP_FAILED:
            kind, said, tone = "done", "gave all back", ""
        row.stretches.append(Stretch(kind, at, end, f"{words.duration(end - at)}, {said}"))
        row.said, row.tone = said, tone
        if tone == "failed" and kind == "run":
            row.failed_at.append(end)
        return row

    def _add_live(self, row: WaterfallRow, one: ExecutionView, at: int, end: int) -> None:
        execution = one.execution
        if execution.retry_at is not None and execution.retry_at > self._now and execution.tries:
            failed = max(at, min(execution.progressed_at, end))
            row.stretches.append(Stretch("run", at, failed, f"failed after {words.duration(failed - at)}"))
            due = words.precise(execution.retry_at)[:8]
            row.stretches.append(Stretch("back", failed, execution.retry_at, f"backing off, next try at {due}"))
            row.failed_at.append(failed)
            row.said = f"try {execution.tries} failed"
            row.tone = "warn"
        else:
            row.stretches.append(Stretch("run", at, end, f"running for {words.duration(end - at)}"))
            row.running_since = at

    # --- crashes and takeovers ---

    def _marks(self) -> Iterator[Mark]:
        crashed: ExecutionView | None = None
        for one in self._executions:
            execution = one.execution
            if crashed is not None:
                after = execution.started_at - (crashed.execution.finished_at or execution.started_at)
                yield Mark(
                    "take",
                    execution.started_at,
                    f"{label_of(execution.lease_owner)} took over after {words.duration(max(0, after))}",
                )
            crashed = one if execution.code in CRASH_CODES else None
            if crashed is not None:
                entry = self._ends.get(execution.exec_id)
                where = f" in {entry.step}" if entry is not None and entry.step else ""
                yield Mark(
                    "crash", execution.finished_at or 0, f"{label_of(execution.lease_owner)}: {execution.code}{where}"
                )


_ENDINGS: Mapping[str, tuple[str, str, str]] = {
    EndCode.CRASHED: ("cut", "died", "failed"),
    EndCode.STALLED: ("cut", "stalled", "failed"),
    EndCode.ABANDONED: ("cut", "given up", "failed"),
    EndCode.TIMEOUT: ("cut", "timed out", "failed"),
    EndCode.RELEASED: ("cut", "given back", ""),
    EndCode.WAITING: ("run", "waits for a job", ""),
    EndCode.BACKING_OFF: ("run", "backs off", "warn"),
    EndCode.CANCELLED: ("cut", "cancelled", ""),
    EndCode.FORCED: ("cut", "forced", ""),
    EndCode.ERROR: ("run", "failed", "failed"),
    EndCode.ABORT: ("run", "aborted", "failed"),
    EndCode.UNRECOVERABLE: ("run", "unrecoverable", "failed"),
    EndCode.CLEANUP_FAILED: ("run", "cleanup failed", "failed"),
}


def _next(own: Sequence[StepRecord], every: Sequence[StepRecord]) -> int:
    """The position behind the last step that was finished when this execution ended."""
    return (own[-1].position if own else max((one.position for one in every), default=-1)) + 1
