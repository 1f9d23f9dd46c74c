"""One job: why is it there, when does it go on, do I have to do anything? Then: what happened, and can I prove it?"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import msgspec

from holdfast.core.explain import ReasonCode
from holdfast.core.flow import Flow
from holdfast.core.records import ErrorRecord, ExecutionRecord, JobRecord, JournalEntry
from holdfast.core.states import JobState
from holdfast.core.values import label_of
from holdfast.errors import JobNotFoundError
from holdfast.views import JobRow, JobView, Views
from holdfast.web.page.frame import Frame, Notice, Page, ViewQuery
from holdfast.web.page.jobs import progress_text
from holdfast.web.page.waterfall import Waterfall
from holdfast.web.principal import Scope
from holdfast.web.routes import JSON, Reply

ENTRIES_SHOWN = 200
"""The last so many of a long journal; all of them are verified."""
CHILDREN_SHOWN = 30
TEXT_LIMIT = 20_000
"""Characters of a request or a response that are shown."""
WANTS_A_LOOK = (
    ReasonCode.BACKING_OFF,
    ReasonCode.QUEUE_PAUSED,
    ReasonCode.NO_WORKER,
    ReasonCode.LEASE_EXPIRED,
    ReasonCode.WORKER_GONE,
    ReasonCode.CANCELLING,
    ReasonCode.INCONSISTENT,
)
DONE = {
    "retry": "It is pending again.",
    "release": "It is let go on.",
    "cancel": "Cancel is requested: what runs stops at its next safe point, then its cleanup runs.",
    "force": "It is where you wanted it.",
    "reschedule": "It has another start, queue or priority.",
    "recover": "It is stopped, and tries again.",
    "bulk": "The action is a job: it goes on by itself, survives crashes, and can be cancelled here.",
}


class JobQuery(ViewQuery, frozen=True, kw_only=True):
    """How much of a long journal."""

    entries: str = ""


class Response(NamedTuple):
    """The response after a step, and what is new in it."""

    step: str
    note: str
    lines: list[tuple[str, str]]


class Relative(NamedTuple):
    """A job of the family."""

    level: int
    row: JobRow
    name: str
    here: bool


class OneJob:
    """All that is shown of a job; each part is read when it is first asked for."""

    def __init__(self, job_id: str, views: Views, flow_of: dict[str, Flow[Any, Any]], now: int, *, every: bool) -> None:
        self.job_id = job_id
        self._views = views
        self._flows = flow_of
        self._now = now
        self._every = every

    @cached_property
    def view(self) -> JobView:
        """The job."""
        return self._views.job(self.job_id)

    @property
    def job(self) -> JobRecord:
        """Its row."""
        return self.view.job

    @property
    def flow(self) -> Flow[Any, Any] | None:
        """Its flow, if that is known here."""
        return self._flows.get(self.job.flow)

    @property
    def is_open(self) -> bool:
        """May it still change by itself?"""
        return self.job.state in (JobState.PENDING, JobState.RUNNING)

    @property
    def tone(self) -> str:
        """What kind of answer it is."""
        if self.is_open and self.view.explanation.code in WANTS_A_LOOK:
            return "warn"
        return self.job.state.value

    @property
    def sentence(self) -> str:
        """Why it is there, without commands of a shell: what they do is a button here, and the hint has its line."""
        text = re.sub(rf"; [a-z ]+: holdfast job [a-z]+ {self.job_id}", "", self.view.explanation.sentence)
        hint = self.view.explanation.details.get("hint")
        return text.removesuffix(f" Hint: {hint}.").removesuffix(f" Hint: {hint}") if hint else text

    @cached_property
    def progress(self) -> str | None:
        """What the step that it is in says of itself."""
        current = self.view.current
        return progress_text(current.progress) if current is not None and current.progress else None

    @property
    def actions(self) -> list[tuple[str, str, str]]:
        """What can be done about it: the action, its label, its looks."""
        state = self.job.state
        offered = []
        if state is JobState.FAILED:
            offered.append(("retry", "Retry…", "primary"))
        if state is JobState.QUARANTINED:
            offered.append(("release", "Release…", "primary"))
        if self.is_open and self.job.cancel_reason is None:
            offered.append(("cancel", "Cancel job…", "danger"))
        if state is JobState.PENDING:
            offered.append(("reschedule", "Reschedule…", ""))
        if state is not JobState.SUCCEEDED:
            offered.append(("force", "Force…", "quiet"))
        return offered

    # --- what happened ---

    @cached_property
    def waterfall(self) -> Waterfall:
        """What happened when."""
        names = self.flow.definition.steps if self.flow else [step.step for step in self.view.steps]
        return Waterfall(self.view, self.journal, names, self._now)

    @property
    def last(self) -> ExecutionRecord | None:
        """The latest execution."""
        return self.view.executions[-1].execution if self.view.executions else None

    @cached_property
    def error(self) -> tuple[ErrorRecord, ExecutionRecord] | None:
        """The last error, if it still matters."""
        if self.job.state is JobState.SUCCEEDED:
            return None
        found = [(one.error, one.execution) for one in self.view.executions if one.error is not None]
        return found[-1] if found else None

    @cached_property
    def alike(self) -> int:
        """So many executions, one after the other, have ended with the same error as the last one."""
        number = 0
        for one in reversed(self.view.executions):
            if (
                one.error is None
                or self.error is None
                or (one.error.type, one.error.step) != (self.error[0].type, self.error[0].step)
            ):
                break
            number += 1
        return number

    @cached_property
    def request(self) -> str:
        """What was asked."""
        return pretty(self.view.request)

    @cached_property
    def responses(self) -> list[Response]:
        """The response after each finished step, and what is new in it."""
        found = []
        before: list[str] = []
        numbers = {one.execution.exec_id: one.execution.attempt for one in self.view.executions}
        for step in self.view.steps:
            lines = pretty(step.response).split("\n")
            known = set(before)
            marked = [("" if line in known or line in "{}[]" else "add", line) for line in lines]
            new = sum(kind == "add" for kind, _ in marked)
            changed = "no change" if not new or lines == before else f"{new} new or changed"
            found.append(Response(step.step, f"{changed} · execution {numbers.get(step.exec_id, '?')}", marked))
            before = lines
        return found

    # --- who belongs to it ---

    @cached_property
    def family(self) -> list[Relative]:
        """The parent, its children, and those of this job."""
        parent, own = self.view.parent, self.view.children
        siblings = self._views.children(parent.job_id)[:CHILDREN_SHOWN] if parent is not None else []
        ids = [one.job_id for one in (*siblings, *own[:CHILDREN_SHOWN])]
        rows = {
            row.job.job_id: row
            for row in self._views.rows(list(dict.fromkeys([*ids, self.job_id, *([parent.job_id] if parent else [])])))
        }
        found = (
            [Relative(0, rows[parent.job_id], "", here=False)] if parent is not None and parent.job_id in rows else []
        )
        level = len(found)
        around = [(one.job_id, one.name) for one in siblings] or [(self.job_id, "")]
        if self.job_id not in {job_id for job_id, _ in around}:
            around.append((self.job_id, ""))
        for job_id, name in around:
            if job_id not in rows:
                continue
            found.append(Relative(level, rows[job_id], name, here=job_id == self.job_id))
            if job_id == self.job_id:
                found += [
                    Relative(level + 1, rows[one.job_id], one.name, here=False)
                    for one in own[:CHILDREN_SHOWN]
                    if one.job_id in rows
                ]
        return found

    @property
    def related(self) -> str:
        """The jobs whose changes are seen here, for the events."""
        return " ".join([self.job_id, *(one.row.job.job_id for one in self.family)])

    # --- proof ---

    @cached_property
    def journal(self) -> list[JournalEntry]:
        """All of it."""
        return self._views.journal(self.job_id)

    @property
    def entries(self) -> list[JournalEntry]:
        """As much of it as is shown."""
        return self.journal if self._every else self.journal[-ENTRIES_SHOWN:]

    def code_of(self, entry: JournalEntry) -> str:
        """Why the execution ended, if the entry says so."""
        try:
            found = msgspec.json.decode(entry.metadata)
        except msgspec.MsgspecError:
            return ""
        code = found.get("code") if isinstance(found, dict) else None
        return code if isinstance(code, str) else ""

    def who(self, actor: str) -> str:
        """An actor for people."""
        return label_of(actor)


def pretty(text: str) -> str:
    """JSON over several lines, cut where it is very long."""
    try:
        shown = json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        shown = text
    return shown if len(shown) <= TEXT_LIMIT else f"{shown[:TEXT_LIMIT]}\n… {len(shown) - TEXT_LIMIT:,} characters more"


def one_job(frame: Frame, *, every: bool = False) -> OneJob:
    """The job that the path names."""
    return OneJob(frame.call.path["job_id"], frame.views, dict(frame.engine.flows), frame.now, every=every)


def show(frame: Frame) -> Reply:
    """One job."""
    query: JobQuery = frame.call.query
    done = DONE.get(query.done)
    notice = Notice("succeeded", "Done.", done) if done else None
    job = one_job(frame, every=query.entries == "all")
    _ = job.view  # a job that is not there is a problem of its own, and not one of the template
    return frame.reply("job.html", job, notice=notice)


def journal(frame: Frame) -> Reply:
    """The journal as it is hashed, for whoever recomputes it."""
    entries = frame.views.journal(frame.call.path["job_id"])
    if not entries:
        raise JobNotFoundError(frame.call.path["job_id"])
    return Reply(body=entries, media_type=JSON)


PAGES: Sequence[Page] = (
    ("GET", "/jobs/{job_id}", show, Scope.READ, JobQuery),
    ("GET", "/jobs/{job_id}/journal.json", journal, Scope.READ, None),
)
