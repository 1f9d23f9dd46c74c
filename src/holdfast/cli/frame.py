"""One frame of `top`: lines of a terminal, drawn from what there is and what the operator has chosen. Pure.

Everything that others have written goes through `cell`: nothing in it can steer the terminal. An id is whole or is its
last letters behind an ellipsis, never broken in two.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
from rich.cells import cell_len, set_cell_size
from rich.text import Text

from holdfast.cli.house import House, known_hosts, worker_label
from holdfast.cli.output import cell
from holdfast.core.states import JobState
from holdfast.views import BoundedCount, Change, JobFilter, JobRow, QueueView

LEAST_WIDTH, LEAST_HEIGHT = 80, 16
WHOLE_ID, SHORT_ID = 26, 7
WIDE = 120
"""Columns from which on ids are shown whole."""
MOST_QUEUES = 8
MOST_SLOTS = 20
CHANGES_SHOWN = 4
BAR = 12
SPARKS = "▁▂▃▄▅▆▇█"
SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000
MARKS = {
    JobState.RUNNING: ("▶", "blue"),
    JobState.PENDING: ("○", "default"),
    JobState.SUCCEEDED: ("✓", "green"),
    JobState.FAILED: ("✗", "red"),
    JobState.QUARANTINED: ("◆", "magenta"),
}
KEYS = " j k move  Enter explain  / filter  f failing  s state  p pause  ? keys  q quit"
HELP = (
    "j k, ↓ ↑        move                      g G    first, last",
    "Enter           why the job is where it is, and what it waits for",
    "/               filter: flow:NAME queue:NAME step:NAME error:TEXT key:BEGINNING; a word alone is a key",
    "s               running, pending, failed, quarantined, succeeded, all",
    "f               failed and quarantined jobs; again: what is running",
    "Esc             no filter",
    "p               hold the screen still; again: go on",
    "q, Ctrl-C       quit",
)


class Choice(msgspec.Struct, kw_only=True):
    """What the operator has chosen to see."""

    wanted: JobFilter = JobFilter(states=(JobState.RUNNING,))
    selected: str | None = None
    explains: bool = True
    helps: bool = False
    paused: bool = False
    typed: str | None = None
    """The filter that is being typed."""
    told: str = ""
    """What is wrong with it, until the next key."""
    away: str = ""
    """Why there is no answer; what is shown is what there was before."""


def frame(house: House, choice: Choice, width: int, height: int) -> list[Text]:
    """The lines; of a terminal of that size, or of none if the height is 0."""
    width = max(width, LEAST_WIDTH)
    top = [_head(house, choice, width), _rule(width), *_figures(house, width), Text()]
    below = [_rule(width), _foot(choice)]
    if choice.helps:
        return _fitted([*top, *(Text(f"  {line}") for line in HELP), *below], width, height)
    why = list(_why(house, choice, width)) if choice.explains else []
    changes = list(_changes(house.changes[-CHANGES_SHOWN:]))
    queues = list(_queues(house, width))
    room = height - len(top) - len(below) if height else len(queues) + len(house.jobs.rows) + 40
    # What is left out first is what is told elsewhere, too.
    if len(queues) + len(why) + len(changes) + 4 > room:
        changes = []
    if len(queues) + len(why) + 4 > room:
        queues = queues[: max(0, room - len(why) - 6)]
    rows = list(_jobs(house, choice, width, room - len(queues) - len(why) - len(changes)))
    body = [*queues, *rows, *why, *changes]
    body += [Text()] * (room - len(body)) if height else []
    return _fitted([*top, *body[:room], *below], width, height)


def _fitted(lines: Sequence[Text], width: int, height: int) -> list[Text]:
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return list(lines[:height] if height else lines)


def _head(house: House, choice: Choice, width: int) -> Text:
    state = "no answer" if choice.away else "paused" if choice.paused else "live"
    clock = f"{house.at // SECOND // 3600 % 24:02}:{house.at // SECOND // 60 % 60:02}:{house.at // SECOND % 60:02} UTC"
    right = f"{clipped(state, 30)}   {clock}"
    left = clipped(f"holdfast top   {cell(house.place)}", width - len(right) - 2)
    return Text(padded(left, width - cell_len(right)) + right, "bold")


def _rule(width: int) -> Text:
    return Text("─" * width, "dim")


def _figures(house: House, width: int) -> Iterator[Text]:
    overview = house.overview
    waits = [one.backlog.oldest_at for one in overview.queues if one.backlog.oldest_at is not None]
    line = Text(" ")
    for state in (JobState.RUNNING, JobState.PENDING, JobState.FAILED, JobState.QUARANTINED):
        mark, style = MARKS[state]
        line.append(f"{mark} {state.value} {counted(overview.counts.get(state.value))}  ", style)
    line.append(f"▲ retrying {overview.retrying}", "yellow" if overview.retrying else "default")
    yield line
    oldest = ago(house.at - min(waits)) if waits else "–"
    p95 = ago(overview.p95_ms) if overview.p95_ms is not None else "–"
    ends = f"   {overview.throughput[-1] if overview.throughput else 0}/min   p95 to end {p95}   oldest wait {oldest}"
    room = max(0, min(60, width - 17 - cell_len(ends)))
    yield Text(f" done/min, 1 h  {spark(overview.throughput[-room:])}{ends}")


def _queues(house: House, width: int) -> Iterator[Text]:
    queues = sorted(house.overview.queues, key=lambda one: (-one.queue.running - one.queue.pending, one.queue.name))
    name = width - 50
    hosts = known_hosts(house.overview)
    yield Text(
        f" {padded('QUEUE', name)} {padded('SLOTS', MOST_SLOTS)} {'RUNNING':>9} {'WAITING':>7} {'OLDEST':>8}", "dim"
    )
    for one in queues[:MOST_QUEUES]:
        yield _queue(one, house, name)
    more = len(queues) - MOST_QUEUES
    alive = f"{sum(hosts.values())} workers on {len(hosts)} hosts" if hosts else "no worker is alive"
    yield Text(f"   {f'{more} more queues; ' if more > 0 else ''}{alive}", "dim" if hosts else "yellow")
    yield Text()


def _queue(one: QueueView, house: House, name: int) -> Text:
    queue, limit = one.queue, one.queue.max_running
    slots = "no limit"
    if queue.paused_at is not None:
        slots = f"paused by {cell(queue.paused_by)}: {cell(queue.paused_reason)}"
    elif limit is not None and limit <= MOST_SLOTS:
        slots = ("■" * queue.running + "□" * limit)[: max(limit, queue.running)]
    elif limit is not None:
        filled = min(MOST_SLOTS, round(MOST_SLOTS * queue.running / limit))
        slots = "■" * filled + "□" * (MOST_SLOTS - filled)
    running = f"{queue.running} / {limit}" if limit is not None else f"{queue.running}"
    oldest = ago(house.at - one.backlog.oldest_at) if one.backlog.oldest_at is not None else "–"
    waiting = f"{queue.pending}{'+' if one.looked else ''}"
    label = cell(queue.name) if queue.name else "– no name"
    style = "yellow" if queue.paused_at is not None else "default"
    return Text(f" {clipped(label, name)} {clipped(slots, MOST_SLOTS)} {running:>9} {waiting:>7} {oldest:>8}", style)


def _jobs(house: House, choice: Choice, width: int, room: int) -> Iterator[Text]:
    wide = width >= WIDE
    ids = WHOLE_ID if wide else SHORT_ID
    left = width - ids - BAR - 5 - 12 - 7
    flow, step, worker = left * 4 // 10, left * 3 // 10, left - left * 4 // 10 - left * 3 // 10
    heads = f"{padded('JOB', ids)} {padded('FLOW', flow)} {padded('STEP', step)} {padded('PROGRESS', BAR + 6)}"
    yield Text(f"   {heads} {'AGE':>8} TRY {clipped('WORKER', worker - 2)}", "dim")
    rows = house.jobs.rows
    fit = max(1, room - 3)
    index = next((number for number, row in enumerate(rows) if row.job.job_id == choice.selected), 0)
    first = max(0, min(index - fit // 2, len(rows) - fit))
    for row in rows[first : first + fit]:
        mark, style = MARKS.get(row.job.state, ("?", "default"))
        chosen = "▸" if row.job.job_id == choice.selected else " "
        job = short_id(row.job.job_id, ids)
        doing = row.step or (row.error.type if row.error else row.job.state.value)
        line = f"{chosen}{mark} {job} {clipped(cell(row.job.flow), flow)} {clipped(cell(doing), step)} {_progress(row)}"
        line += f" {ago(house.at - row.job.updated_at):>8} {row.tries + 1 if row.step else '':>3} "
        yield Text(line + clipped(cell(worker_label(row.worker)) if row.worker else "", worker - 2), _style(row, style))
    hidden = len(rows) - min(len(rows), fit)
    told = f"   {hidden} more" if hidden else "   no job" if not rows else ""
    if house.jobs.next is not None and house.jobs.looked is None:
        told += f"{' here,' if hidden else '   '} and older ones"
    if house.jobs.looked is not None:
        told += f"   looked at the newest {house.jobs.looked:,}"
    yield Text(f"{told}   {filter_text(choice.wanted)}", "dim")
    yield Text()


def _style(row: JobRow, style: str) -> str:
    return "yellow" if row.tries else style


def _progress(row: JobRow) -> str:
    progress = row.progress or {}
    done, total = progress.get("done"), progress.get("total")
    if isinstance(done, int | float) and isinstance(total, int | float) and total > 0:
        share = min(1.0, max(0.0, done / total))
        full = int(share * BAR)
        return f"{'█' * full}{'░' * (BAR - full)} {share:>4.0%} "
    return clipped(cell(progress["note"]) if progress.get("note") else "", BAR + 6)


def _why(house: House, choice: Choice, width: int) -> Iterator[Text]:
    row = next((row for row in house.jobs.rows if row.job.job_id == choice.selected), None)
    if row is None:
        return
    mark, style = MARKS.get(row.job.state, ("?", "default"))
    key = f"   key {cell(row.job.key)}" if row.job.key else ""
    yield Text(f" WHY {row.job.job_id}   {mark} {row.job.state.value}{key}", f"bold {style}")
    told = cell(row.explanation)
    if row.error is not None and row.error.message not in row.explanation:
        told += f"  {cell(row.error.type)}: {cell(row.error.message)}"
    yield from (Text(f"   {line}") for line in folded(told, width - 4, 3))
    yield Text()


def _changes(changes: Sequence[Change]) -> Iterator[Text]:
    if not changes:
        return
    yield Text(" LAST CHANGES", "dim")
    for change in reversed(changes):
        entry, at = change.entry, change.entry.at // SECOND
        mark, style = MARKS.get(JobState(entry.job_to), ("?", "default"))
        moved = entry.job_from != entry.job_to
        what = f"{entry.job_from or 'new'} → {entry.job_to}" if moved else entry.exec_to or entry.job_to
        clock = f"{at // 3600 % 24:02}:{at // 60 % 60:02}:{at % 60:02}"
        job, flow = short_id(entry.job_id, SHORT_ID), clipped(cell(change.flow), 20)
        line = f" {clock}  {mark} {job}  {flow}  {clipped(cell(what), 20)}  {cell(entry.reason)}"
        yield Text(line, style if moved else "default")
    yield Text()


def _foot(choice: Choice) -> Text:
    if choice.typed is not None:
        return Text(f" / {cell(choice.typed) if choice.typed else ''}█   Enter: look   Esc: leave", "bold")
    if choice.told or choice.away:
        return Text(f" {cell(choice.told or choice.away)}", "bold red")
    return Text(KEYS, "dim")


# --- words and numbers ---------------------------------------------------------------------------------------


def short_id(job_id: str, width: int) -> str:
    """The whole id, or its last letters."""
    return padded(job_id, width) if width >= len(job_id) else "…" + job_id[1 - width :]


def padded(text: str, width: int) -> str:
    """As wide as that; what is wider is left as it is."""
    return text + " " * (width - cell_len(text))


def clipped(text: str, width: int) -> str:
    """Exactly as wide as that."""
    return padded(text, width) if cell_len(text) <= width else set_cell_size(text, max(0, width - 1)) + "…"


def folded(text: str, width: int, most: int) -> list[str]:
    """At most so many lines, broken at blanks; what has no room ends in an ellipsis."""
    lines = [""]
    for word in text.split():
        wanted = f"{lines[-1]} {word}".strip()
        if cell_len(wanted) <= width or not lines[-1]:
            lines[-1] = wanted
        else:
            lines.append(word)
    if len(lines) > most:
        lines[most - 1 :] = [clipped(" ".join(lines[most - 1 :]), width)]
    return lines


def counted(count: BoundedCount | None) -> str:
    """A number that may have been given up."""
    return "–" if count is None else f"{count.count:,}{'+' if count.capped else ''}"


def ago(milliseconds: int) -> str:
    """How long, in the largest unit that is not too coarse."""
    milliseconds = max(0, milliseconds)
    if milliseconds < 10 * SECOND:
        return f"{milliseconds / SECOND:.1f} s"
    for unit, name, limit in ((SECOND, "s", 2 * MINUTE), (MINUTE, "min", 2 * HOUR), (HOUR, "h", 2 * DAY)):
        if milliseconds < limit:
            return f"{milliseconds // unit} {name}"
    return f"{milliseconds // DAY} d"


def spark(numbers: Sequence[int]) -> str:
    """A line of bars."""
    most = max(numbers, default=0)
    return "".join(SPARKS[min(7, number * 7 // most)] if most else SPARKS[0] for number in numbers)


def filter_text(wanted: JobFilter) -> str:
    """A filter as it is typed."""
    words = [state.value for state in wanted.states] or ["all states"]
    names = {"flow": wanted.flow, "queue": wanted.queue, "step": wanted.step, "error": wanted.error_text}
    words += [f"{name}:{cell(value)}" for name, value in {**names, "key": wanted.key_prefix}.items() if value]
    return " ".join(words)
