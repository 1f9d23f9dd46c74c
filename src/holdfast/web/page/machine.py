"""The machine: where in a flow are jobs, where do they fail, which step is slow, who is still on an old definition?"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from math import log10
from typing import Any

from holdfast.bulk import NAME
from holdfast.core.flow import Flow
from holdfast.core.states import JobState
from holdfast.errors import UnknownFlowError
from holdfast.views import BoundedCount, FlowView, JobFilter, StepStatistics, Views
from holdfast.views.figures import BINS, BINS_PER_DECADE
from holdfast.web.page import flow_layout, words
from holdfast.web.page.flow_layout import FlowLayout
from holdfast.web.page.frame import Frame, Page
from holdfast.web.page.shared import SharedReadings
from holdfast.web.principal import Scope
from holdfast.web.routes import Reply

AXIS = (
    (0, "1 ms"),
    (1, "10"),
    (2, "100 ms"),
    (3, "1 s"),
    (4, "10 s"),
    (4.778, "1 min"),
    (5.778, "10 min"),
    (6.545, "1 h"),
)


class Machine:
    """One flow, drawn."""

    def __init__(self, view: FlowView, flow: Flow[Any, Any] | None, flows: Sequence[tuple[str, BoundedCount]]) -> None:
        self.view = view
        self.flow = flow
        self.flows = flows

    @cached_property
    def _notes(self) -> dict[str, str]:
        if self.flow is None:
            return {}
        notes = {}
        for step in self.flow.steps:
            parts = ["commit"] if step.is_commit else []
            parts.append(
                words.some(step.retry.most_tries - 1, "retry", "retries") if step.retry.most_tries > 1 else "one try"
            )
            if step.timeout:
                parts.append(words.duration(step.timeout * words.SECOND))
            notes[step.name] = " · ".join(parts)
        return notes

    @cached_property
    def wide(self) -> FlowLayout:
        """For wide screens."""
        return flow_layout.wide(self.view, self._notes)

    @cached_property
    def tall(self) -> FlowLayout:
        """For narrow ones."""
        return flow_layout.tall(self.view, self._notes)

    @cached_property
    def strip(self) -> FlowLayout:
        """The steps alone."""
        return flow_layout.thin(self.names, f"s-{self.view.name}", commit=self.commit)

    def older(self, at: int, *, upright: bool) -> FlowLayout:
        """An older definition, thin."""
        return flow_layout.thin(self.view.older[at].steps, f"o{at}{'t' if upright else 'w'}", upright=upright)

    @property
    def names(self) -> list[str]:
        """The steps."""
        return [node.name for node in self.view.steps if node.kind != "cleanup"]

    @property
    def commit(self) -> str | None:
        """The commit step."""
        return next((node.name for node in self.view.steps if node.kind == "commit"), None)

    def difference(self, at: int) -> str:
        """What an older definition has and has not, beside the present one."""
        old, new = self.view.older[at].steps, self.names
        lost = [name for name in new if name not in old]
        had = [name for name in old if name not in new]
        parts = [f"it has no {', '.join(lost)}"] if lost else []
        parts += [f"it has {', '.join(had)}"] if had else []
        return "; ".join(parts) or "the same steps, in another version or order"

    @cached_property
    def running(self) -> int:
        """Jobs that are in a step now."""
        return sum(one.running for one in self.view.statistics)

    @cached_property
    def busiest(self) -> StepStatistics | None:
        """The step that most of them are in."""
        busiest = max(self.view.statistics, key=lambda one: one.running, default=None)
        return busiest if busiest is not None and busiest.running else None

    @property
    def timed(self) -> list[StepStatistics]:
        """The steps that have taken some time."""
        return [one for one in self.view.statistics if one.step in self.names]

    def timeout(self, step: str) -> float | None:
        """Where the limit of a step is on the axis, as a percentage."""
        found = next((one for one in self.flow.steps if one.name == step), None) if self.flow else None
        return place(found.timeout * words.SECOND) if found is not None and found.timeout else None

    def bars(self, statistics: StepStatistics) -> str:
        """The histogram as a path in a box of 100 by 40."""
        most = max(*statistics.histogram, 1)
        each = 100 / BINS
        return "".join(
            f"M{at * each:.2f} 40V{40 - 32 * number / most:.1f}h{each * 0.86:.2f}V40Z"
            for at, number in enumerate(statistics.histogram)
            if number
        )


def place(milliseconds: float) -> float:
    """Where a duration is on the logarithmic axis, as a percentage."""
    return round(min(100.0, log10(max(1.0, milliseconds)) * BINS_PER_DECADE / BINS * 100), 2)


def _known(frame: Frame) -> list[str]:
    """The flows that are known here or in the store, without the engine's own if it was never used."""
    return frame.call.service(SharedReadings).get("flows", frame.views.flow_names)


def _count(views: Views, name: str) -> BoundedCount:
    return views.count(JobFilter(flow=name, states=(JobState.PENDING, JobState.RUNNING)))


def _machine(frame: Frame, name: str, flows: Sequence[tuple[str, BoundedCount]] = ()) -> Machine:
    shared = frame.call.service(SharedReadings)
    view = shared.get(f"flow {name}", lambda: frame.views.flow(name))
    return Machine(view, frame.engine.flows.get(name), flows)


def show_all(frame: Frame) -> Reply:
    """Every flow."""
    machines = [_machine(frame, name) for name in _known(frame)]
    return frame.reply("flows.html", [one for one in machines if one.view.name != NAME or one.view.entered])


def show(frame: Frame) -> Reply:
    """One flow."""
    name = frame.call.path["name"]
    known = _known(frame)
    if name not in known:
        raise UnknownFlowError(f"flow {name!r} is not known here", hint=f"known: {', '.join(known) or 'none'}")
    flows = [(one, _count(frame.views, one)) for one in known if one != NAME or one == name]
    return frame.reply(
        "flow.html", _machine(frame, name, flows), axis=[(place(10**at), text) for at, text in AXIS], place=place
    )


PAGES: Sequence[Page] = (
    ("GET", "/flows", show_all, Scope.READ, None),
    ("GET", "/flows/{name}", show, Scope.READ, None),
)
