"""What can be done on the page: an action is a form with a preview and a reason; a dialog by script, a page without.

All of them are refused if the job has moved on since it was looked at, and all are journaled as whoever asks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import msgspec

from holdfast import guard
from holdfast.bulk import ACTED_ON, Action
from holdfast.client import given
from holdfast.core.states import UNFINISHED_STATES, JobState
from holdfast.core.values import checked_name
from holdfast.errors import BadInput, QueueNotFoundError, StateError
from holdfast.views import JobFilter, JobView, QueueView
from holdfast.web.page import words
from holdfast.web.page.frame import Frame, Notice, Page, ViewQuery
from holdfast.web.page.house import LastCheck
from holdfast.web.page.jobs import Wanted
from holdfast.web.page.shared import SharedReadings
from holdfast.web.principal import Scope
from holdfast.web.routes import Reply

PER_SECOND = 50.0


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """The form of an action on one job."""

    reason: str = ""
    head: str = ""
    """What the journal ended with when the form was made."""
    to: str = ""
    delay: str = ""
    priority: str = ""
    queue: str = ""


def _looked_at(frame: Frame) -> JobView:
    return frame.views.job(frame.call.path["job_id"])


def _form(frame: Frame, action: str, **values: Any) -> Reply:
    view = _looked_at(frame)
    label = f"{view.job.flow} {words.short(view.job.job_id)}"
    defaults = {"targets": [], "children": 0, "path": ()}
    return frame.reply(
        "act.html",
        view,
        action=action,
        label=label,
        back=frame.url(f"/jobs/{view.job.job_id}"),
        **{**defaults, **values},
    )


def ask_retry(frame: Frame) -> Reply:
    """Try a failed job again?"""
    job_id = frame.call.path["job_id"]
    frame.call.client().retry(job_id, reason="preview", dry_run=True)
    return _form(frame, "retry", path=("failed", "pending"))


def ask_release(frame: Frame) -> Reply:
    """Let a quarantined job go on?"""
    job_id = frame.call.path["job_id"]
    frame.call.client().release(job_id, reason="preview", dry_run=True)
    return _form(frame, "release", path=("quarantined", "pending"))


def ask_cancel(frame: Frame) -> Reply:
    """End a job, and its children?"""
    view = _looked_at(frame)
    frame.call.client().cancel(view.job.job_id, reason="preview", dry_run=True)
    children = sum(child.state in UNFINISHED_STATES for child in view.children)
    return _form(frame, "cancel", path=(view.job.state.value, "failed"), children=children)


def ask_force(frame: Frame) -> Reply:
    """Put a job into another state?"""
    client, job_id = frame.call.client(), frame.call.path["job_id"]
    targets = []
    for state in (JobState.PENDING, JobState.FAILED, JobState.QUARANTINED):
        try:
            path = client.force(job_id, state, reason="preview", dry_run=True)
        except StateError:
            continue
        if len(path) > 1:
            targets.append((state.value, [each.value for each in path]))
    if not targets:
        client.force(job_id, JobState.FAILED, reason="preview", dry_run=True)  # says why not
    return _form(frame, "force", targets=targets)


def ask_reschedule(frame: Frame) -> Reply:
    """Give a pending job another start, queue or priority?"""
    view = _looked_at(frame)
    if view.job.state is not JobState.PENDING:
        raise StateError(f"job {view.job.job_id} is {view.job.state}", hint="only a pending job has a start to change")
    return _form(frame, "reschedule")


def _done(frame: Frame, action: str) -> Reply:
    frame.call.service(SharedReadings).forget()
    return frame.to(f"/jobs/{frame.call.path['job_id']}", done=action)


def _reason_and_head(frame: Frame) -> dict[str, Any]:
    asked: Asked = frame.call.body
    if not asked.head:
        raise BadInput("the form says not which state of the job it is about", hint="begin from the job's page")
    return {"reason": asked.reason, "expected_head": asked.head}


def retry(frame: Frame) -> Reply:
    """Try a failed job again."""
    frame.call.client().retry(frame.call.path["job_id"], **_reason_and_head(frame))
    return _done(frame, "retry")


def release(frame: Frame) -> Reply:
    """Let a quarantined job go on."""
    frame.call.client().release(frame.call.path["job_id"], **_reason_and_head(frame))
    return _done(frame, "release")


def cancel(frame: Frame) -> Reply:
    """End a job, and its children."""
    frame.call.client().cancel(frame.call.path["job_id"], **_reason_and_head(frame))
    return _done(frame, "cancel")


def force(frame: Frame) -> Reply:
    """Put a job into another state."""
    asked: Asked = frame.call.body
    frame.call.client().force(frame.call.path["job_id"], asked.to, **_reason_and_head(frame))
    return _done(frame, "force")


def reschedule(frame: Frame) -> Reply:
    """Give a pending job another start, queue or priority: what is left empty stays as it is."""
    asked: Asked = frame.call.body
    frame.call.client().reschedule(
        frame.call.path["job_id"],
        delay=_number(asked.delay, "delay", float),
        priority=_number(asked.priority, "priority", int),
        queue=asked.queue or None,
        **_reason_and_head(frame),
    )
    return _done(frame, "reschedule")


def _number(text: str, what: str, kind: Callable[[str], Any]) -> Any:
    try:
        return kind(text) if text.strip() else None
    except ValueError:
        raise BadInput(f"{what} is not a number", hint="a number, or nothing at all") from None


# --- many jobs at once -----------------------------------------------------------------------------------


class BulkQuery(Wanted, frozen=True, kw_only=True):
    """Which jobs, and what is to be done about them."""

    job: tuple[str, ...] = ()
    """Those that were selected; none for all that match."""
    action: str = ""
    reason: str = ""

    def meant(self, now: int) -> JobFilter:
        """The jobs as the store takes it."""
        return JobFilter(job_ids=self.job) if self.job else self.filter(now)

    @property
    def parameters(self) -> list[tuple[str, str]]:
        """What goes along with the form."""
        return [("job", job_id) for job_id in self.job] if self.job else self.pairs

    @property
    def checked_action(self) -> Action:
        """One that there is."""
        if self.action not in ACTED_ON:
            raise BadInput("there is no such action", hint=f"one of {', '.join(ACTED_ON)}")
        return cast(Action, self.action)


def ask_bulk(frame: Frame) -> Reply:
    """What would it do?"""
    query: BulkQuery = frame.call.query
    preview = frame.call.bulk.preview(query.meant(frame.now), query.checked_action)
    going = [(state, preview.counts[state]) for state in ACTED_ON[query.checked_action] if preview.counts.get(state)]
    back = frame.call.link("/jobs")
    return frame.reply("bulk.html", preview, wanted=query, action=query.action, going=going, back=back)


def bulk(frame: Frame) -> Reply:
    """Do it, as a durable job."""
    asked: BulkQuery = frame.call.body
    job_id = frame.call.bulk.submit(
        asked.meant(frame.now), asked.checked_action, reason=asked.reason, actor=frame.call.actor, per_second=PER_SECOND
    )
    return frame.to(f"/jobs/{job_id}", done="bulk")


# --- the house -------------------------------------------------------------------------------------------


class QueueQuery(ViewQuery, frozen=True, kw_only=True):
    """Which queue; the one without a name is empty."""

    queue: str = ""


class QueueForm(msgspec.Struct, frozen=True, kw_only=True):
    """Which queue, and why."""

    queue: str = ""
    reason: str = ""


class LimitForm(QueueForm, frozen=True, kw_only=True):
    """How many of its jobs may run at once; empty is no limit."""

    limit: str = ""
    was: str = ""
    """The limit when the form was made."""


def _queue(name: str) -> str:
    return checked_name(name, "queue") if name else ""


def ask_pause(frame: Frame) -> Reply:
    """Start nothing more from this queue?"""
    return _queue_form(frame, "pause")


def ask_resume(frame: Frame) -> Reply:
    """Start jobs from this queue again?"""
    return _queue_form(frame, "resume")


def ask_limit(frame: Frame) -> Reply:
    """Let more or fewer jobs of this queue run at once?"""
    return _queue_form(frame, "limit")


def _queue_form(frame: Frame, action: str) -> Reply:
    found = _queue_view(frame, _queue(frame.call.query.queue))
    history = frame.engine.store.queue_history(found.queue.name, limit=5)
    return frame.reply("queue.html", found, action=action, history=history)


def _queue_view(frame: Frame, name: str) -> QueueView:
    found = next((one for one in frame.views.queues() if one.queue.name == name), None)
    if found is None:
        raise QueueNotFoundError(name)
    return found


def pause(frame: Frame) -> Reply:
    """Start nothing more from this queue."""
    asked: QueueForm = frame.call.body
    frame.engine.store.pause_queue(_queue(asked.queue), actor=frame.call.actor, reason=given(asked.reason))
    return _home(frame)


def resume(frame: Frame) -> Reply:
    """Start jobs from this queue again."""
    asked: QueueForm = frame.call.body
    frame.engine.store.resume_queue(_queue(asked.queue), actor=frame.call.actor, reason=given(asked.reason))
    return _home(frame)


def limit(frame: Frame) -> Reply:
    """Let so many jobs of this queue run at once, if its limit is still the one that was looked at."""
    asked: LimitForm = frame.call.body
    reason, wanted = given(asked.reason), _number(asked.limit, "the limit", int)
    queue = _queue_view(frame, _queue(asked.queue)).queue
    now = "" if queue.max_running is None else str(queue.max_running)
    if asked.was != now:
        raise StateError(f"the limit is {now or 'none'} by now", hint="look again, and decide anew")
    frame.engine.store.set_queue(queue.name, max_running=wanted, actor=frame.call.actor, reason=reason)
    return _home(frame)


def _home(frame: Frame) -> Reply:
    frame.call.service(SharedReadings).forget()
    return frame.to("/")


def check(frame: Frame) -> Reply:
    """Look at everything now."""
    last = frame.call.service(LastCheck)
    last.findings = frame.engine.check()
    last.at = frame.engine.store.now()
    return frame.to("/")


def ask_repair(frame: Frame) -> Reply:
    """What would a repair do?"""
    return frame.reply("repair.html", guard.plan(frame.engine.store))


class ReasonForm(msgspec.Struct, frozen=True, kw_only=True):
    """Why, and for the recovery of a stalled job, which one."""

    reason: str = ""
    job: str = ""


def repair(frame: Frame) -> Reply:
    """Carry out the plan, as it is now."""
    asked: ReasonForm = frame.call.body
    store, reason = frame.engine.store, given(asked.reason)
    done = guard.apply(store, guard.plan(store), actor=frame.call.actor, reason=reason)
    last = frame.call.service(LastCheck)
    last.findings, last.at = frame.engine.check(), frame.engine.store.now()
    kind = "succeeded" if all(one.is_done for one in done) else "warn"
    notice = Notice(
        cast(Any, kind), f"{words.some(len(done), 'action')}.", " ".join(f"{one.line}." for one in done[:10])
    )
    return frame.reply("repair.html", guard.plan(frame.engine.store), notice=notice)


class StalledQuery(ViewQuery, frozen=True, kw_only=True):
    """Which job."""

    job: str = ""


def ask_recover(frame: Frame) -> Reply:
    """Stop a stalled job, and let it try again?"""
    job_id = frame.engine.store.job(frame.call.query.job).job_id
    return frame.reply("recover.html", job_id)


def recover(frame: Frame) -> Reply:
    """Stop a stalled job, and let it try again."""
    asked: ReasonForm = frame.call.body
    job_id = frame.engine.store.job(asked.job).job_id
    store, actor = frame.engine.store, frame.call.actor
    if not guard.stop_stalled(store, actor=actor, reason=given(asked.reason), only=[job_id]):
        raise StateError(f"job {job_id} is not stalled any more", hint="look again: it has moved on by itself")
    frame.call.service(SharedReadings).forget()
    return frame.to(f"/jobs/{job_id}", done="recover")


_O = Scope.OPERATE
PAGES: Sequence[Page] = (
    ("GET", "/jobs/{job_id}/retry", ask_retry, _O, None),
    ("POST", "/jobs/{job_id}/retry", retry, _O, None, Asked),
    ("GET", "/jobs/{job_id}/release", ask_release, _O, None),
    ("POST", "/jobs/{job_id}/release", release, _O, None, Asked),
    ("GET", "/jobs/{job_id}/cancel", ask_cancel, _O, None),
    ("POST", "/jobs/{job_id}/cancel", cancel, _O, None, Asked),
    ("GET", "/jobs/{job_id}/force", ask_force, _O, None),
    ("POST", "/jobs/{job_id}/force", force, _O, None, Asked),
    ("GET", "/jobs/{job_id}/reschedule", ask_reschedule, _O, None),
    ("POST", "/jobs/{job_id}/reschedule", reschedule, _O, None, Asked),
    ("GET", "/bulk", ask_bulk, _O, BulkQuery),
    ("POST", "/bulk", bulk, _O, None, BulkQuery),
    ("GET", "/queue/pause", ask_pause, _O, QueueQuery),
    ("POST", "/queue/pause", pause, _O, None, QueueForm),
    ("GET", "/queue/resume", ask_resume, _O, QueueQuery),
    ("POST", "/queue/resume", resume, _O, None, QueueForm),
    ("GET", "/queue/limit", ask_limit, _O, QueueQuery),
    ("POST", "/queue/limit", limit, _O, None, LimitForm),
    ("POST", "/check", check, _O, None, ReasonForm),
    ("GET", "/repair", ask_repair, Scope.READ, None),
    ("POST", "/repair", repair, Scope.ADMIN, None, ReasonForm),
    ("GET", "/stalled/recover", ask_recover, _O, StalledQuery),
    ("POST", "/stalled/recover", recover, _O, None, ReasonForm),
)
