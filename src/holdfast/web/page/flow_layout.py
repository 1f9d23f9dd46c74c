"""Where each node and each edge of a flow is drawn: wide, tall, and thin for an older definition."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import sqrt

from holdfast.views import FlowView, StepStatistics
from holdfast.web.page import words

ROW = 6
"""So many steps stand beside each other."""
BOX, BOX_HEIGHT = 188, 108
CLEANUP_NOTE = "undoes what was begun"
PILL, PILL_HEIGHT = 92, 46


@dataclass(frozen=True, slots=True)
class Box:
    """A step, with its figures."""

    x: float
    y: float
    width: float
    height: float
    name: str
    kind: str
    statistics: StepStatistics
    note: str = ""

    @property
    def shown(self) -> str:
        """As much of the name as there is room for."""
        room = int((self.width - 66) / 7)
        return self.name if len(self.name) <= room else f"{self.name[: room - 1]}…"

    @property
    def middle(self) -> float:
        """Of its height."""
        return self.y + self.height / 2


@dataclass(frozen=True, slots=True)
class Pill:
    """A state that jobs come from, or end in."""

    x: float
    y: float
    width: float
    state: str
    count: str
    note: str


@dataclass(frozen=True, slots=True)
class DrawnEdge:
    """An edge: its kind, its path, how many took it, and where that is written."""

    kind: str
    path: str
    count: int | None = None
    x: float = 0
    y: float = 0
    anchor: str = "start"
    text: str = ""
    width: float = 1.2
    head: bool = True


@dataclass(slots=True)
class FlowLayout:
    """All of it, in a box of this size."""

    mark: str
    width: float = 0
    height: float = 0
    boxes: list[Box] = field(default_factory=list)
    pills: list[Pill] = field(default_factory=list)
    lines: list[DrawnEdge] = field(default_factory=list)


class _Figures:
    """What a layout is made from."""

    def __init__(self, flow: FlowView, notes: dict[str, str]) -> None:
        self.flow = flow
        self.notes = notes
        self.of = {one.step: one for one in flow.statistics}
        self.steps = [node for node in flow.steps if node.kind != "cleanup"]
        self.cleanup = next((node for node in flow.steps if node.kind == "cleanup"), None)
        self.early = sum(edge.count for edge in flow.handoffs)
        counts = [flow.entered, *(edge.count for edge in flow.edges), *(edge.count for edge in flow.handoffs)]
        self._most = max(*counts, 1)
        self.through = [flow.entered, *(edge.count for edge in flow.edges)]
        self.at_end = max(0, flow.ways_out.succeeded - self.early)

    def width(self, count: int) -> float:
        """How wide an edge is: its area grows with what goes through."""
        return round(1.2 + 7.6 * sqrt(min(1.0, count / self._most)), 1) if count else 1.2

    def box(self, position: int, x: float, y: float, width: float, height: float) -> Box:
        """The box of a step."""
        node = self.steps[position]
        return Box(x, y, width, height, node.name, node.kind, self.of[node.name], self.notes.get(node.name, ""))

    def failed(self, step: str) -> int:
        """Jobs that have ended there without success."""
        return self.of[step].failed_last_hour


def wide(flow: FlowView, notes: dict[str, str]) -> FlowLayout:
    """From left to right, in as many rows as it takes."""
    figures, layout = _Figures(flow, notes), FlowLayout("w")
    steps = figures.steps
    rows = [steps[at : at + ROW] for at in range(0, len(steps), ROW)]
    columns = len(rows[0])
    gap = min(120.0, max(46.0, (1170 - columns * BOX) / max(1, columns - 1)))
    left = PILL + 46
    right = left + columns * BOX + (columns - 1) * gap
    layout.width = right + 46 + 116
    top = 26 + 16 * len(flow.handoffs) + 34 if flow.handoffs else 30
    pitch = BOX_HEIGHT + 76
    for position in range(len(steps)):
        row, column = divmod(position, ROW)
        x, y = left + column * (BOX + gap), top + row * pitch
        layout.boxes.append(figures.box(position, x, y, BOX, BOX_HEIGHT))
    first, last = layout.boxes[0], layout.boxes[-1]
    state = Pill(0, first.middle - PILL_HEIGHT / 2, PILL, "pending", words.bounded(flow.pending), "wait")
    end_x = last.x + BOX + 46
    layout.pills += [
        state,
        Pill(end_x, last.middle - PILL_HEIGHT / 2, 116, "succeeded", f"{flow.ways_out.succeeded:,}", ""),
    ]
    layout.lines += _handoffs_above(figures, layout, end_x + 58, last.middle - PILL_HEIGHT / 2)
    layout.lines += _main_lines(figures, layout.boxes, end_x)
    _ways_out_below(figures, layout, single=len(rows) == 1)
    return layout


def _main_lines(figures: _Figures, boxes: Sequence[Box], end_x: float) -> Iterator[DrawnEdge]:
    before: Box | None = None
    for box, count in zip(boxes, figures.through, strict=True):
        width = figures.width(count)
        if before is None or before.y == box.y:
            start = PILL if before is None else before.x + BOX
            middle = (start + box.x) / 2
            yield DrawnEdge(
                "main", f"M{start} {box.middle}H{box.x - 2}", count, middle, box.middle - 13, "middle", width=width
            )
        else:  # on to the next row
            down = before.y + BOX_HEIGHT + 38
            x = before.x + BOX
            path = f"M{x} {before.middle}H{x + 20}V{down}H{box.x - 24}V{box.middle}H{box.x - 2}"
            yield DrawnEdge("main", path, count, (x + box.x) / 2, down - 9, "middle", width=width)
        before = box
    assert before is not None
    x = before.x + BOX
    width = figures.width(figures.at_end)
    middle = (x + end_x) / 2
    yield DrawnEdge(
        "main", f"M{x} {before.middle}H{end_x - 2}", figures.at_end, middle, before.middle - 13, "middle", width=width
    )


def _handoffs_above(figures: _Figures, layout: FlowLayout, end_x: float, end_y: float) -> Iterator[DrawnEdge]:
    boxes = {box.name: box for box in layout.boxes}
    for at, edge in enumerate(sorted(figures.flow.handoffs, key=lambda one: boxes[one.source].x)):
        box = boxes[edge.source]
        x, y, end = box.x + BOX / 2 + 8 * at, 18 + 16 * at, end_x - 8 * at
        up = f"M{x} {box.y}V{y + 16}Q{x} {y} {x + 16} {y}"
        path = f"{up}H{end - 16}Q{end} {y} {end} {y + 16}V{end_y - 2}"
        width = figures.width(edge.count)
        yield DrawnEdge("hand", path, edge.count, x + 26, y + 21, text="done already", width=width)


def _ways_out_below(figures: _Figures, layout: FlowLayout, *, single: bool) -> None:
    """What ends without success: through the cleanup, if there is one, to its state."""
    last = layout.boxes[-1]
    level = last.y + BOX_HEIGHT + 82
    failed_y, pills_x = level + 20, layout.width - 132
    if figures.flow.crashes:
        layout.lines.append(_lost(figures.flow.crashes, layout.boxes, single=single))
    target, source = (last.x + BOX / 2, failed_y), last.x + BOX / 2
    steps = list(layout.boxes)
    if figures.cleanup is not None:
        x = last.x - (BOX + 60) if len(steps) > 1 else last.x
        layout.boxes.append(Box(x, level, BOX, 62, "cleanup", "cleanup", figures.of["cleanup"], CLEANUP_NOTE))
        target, source = (x + BOX / 2, level - 2), x + BOX
    layout.lines += _falls(figures, steps, target, level - 24, single=single)
    out = figures.flow.ways_out
    down = f"M{source + 60} {failed_y}V{failed_y + 52}Q{source + 60} {failed_y + 60} {source + 68} {failed_y + 60}"
    layout.lines += [
        DrawnEdge(_kind("out", out.failed), f"M{source} {failed_y}H{pills_x - 2}", width=figures.width(out.failed)),
        DrawnEdge(_kind("quar", out.quarantined), f"{down}H{pills_x - 2}", width=figures.width(out.quarantined)),
    ]
    layout.pills += [
        Pill(pills_x, failed_y - 23, 130, "failed", f"{out.failed:,}", "of the hour"),
        Pill(pills_x, failed_y + 37, 130, "quarantined", f"{out.quarantined:,}", "of the hour"),
    ]
    layout.height = failed_y + 37 + PILL_HEIGHT + 4


def _lost(crashes: int, boxes: Sequence[Box], *, single: bool) -> DrawnEdge:
    """From the steps back to the beginning."""
    first, last = boxes[0], boxes[-1]
    x = last.x + BOX / 2 + 30 if single else first.x + 30
    start = first.y + BOX_HEIGHT
    below = start + (32 if single else 26)
    path = f"M{x} {start}V{below - 8}Q{x} {below} {x - 8} {below}H54Q46 {below} 46 {below - 8}V{first.middle + 25}"
    return DrawnEdge("lost", path, crashes, 64, below - 6, text="lost with a worker, begun again", width=1.6)


def _falls(
    figures: _Figures, steps: Sequence[Box], target: tuple[float, float], turn: float, *, single: bool
) -> Iterator[DrawnEdge]:
    """From each step down to where it fails; in more than one row, the beginnings of those that were taken."""
    shown = steps if single else [box for box in steps if figures.failed(box.name)]
    for at, box in enumerate(shown):
        count = figures.failed(box.name)
        x, y, to = box.x + BOX / 2 - 12, box.y + BOX_HEIGHT, target[0] + (at - len(shown) / 2) * 14
        sign = 8 if to > x else -8
        path = f"M{x} {y}V{y + 24}"
        if single:
            around = f"V{turn - 8}Q{x} {turn} {x + sign} {turn}H{to - sign}Q{to} {turn} {to} {turn + 8}"
            path = f"M{x} {y}{around}V{target[1]}"
        yield DrawnEdge(_kind("out", count), path, count or None, x + 7, y + 18, width=figures.width(count))


def _kind(kind: str, count: int) -> str:
    """Of an edge that nobody took: there is the way, and that is all."""
    return kind if count else "none"


TALL, TALL_HEIGHT, TALL_PITCH = 240, 104, 144


def tall(flow: FlowView, notes: dict[str, str]) -> FlowLayout:
    """From top to bottom, for what is narrow."""
    figures, layout = _Figures(flow, notes), FlowLayout("t", width=372)
    for position in range(len(figures.steps)):
        layout.boxes.append(figures.box(position, 62, 66 + position * TALL_PITCH, TALL, TALL_HEIGHT))
    layout.pills.append(Pill(62, 1, TALL, "pending", words.bounded(flow.pending), "wait"))
    y = 46.0
    for box, count in zip(layout.boxes, figures.through, strict=True):
        layout.lines.append(
            DrawnEdge("main", f"M212 {y}V{box.y - 1}", count, 225, (y + box.y) / 2 + 4, width=figures.width(count))
        )
        y = box.y + TALL_HEIGHT
    end = y + 36
    layout.lines.append(
        DrawnEdge("main", f"M212 {y}V{end - 1}", figures.at_end, 225, y + 21, width=figures.width(figures.at_end))
    )
    layout.pills.append(Pill(116, end, 186, "succeeded", f"{flow.ways_out.succeeded:,}", "of the hour"))
    if flow.handoffs:
        first = next(box for box in layout.boxes if box.name == flow.handoffs[0].source)
        path = (
            f"M62 {first.middle}H38Q20 {first.middle} 20 {first.middle + 18}V{end + 5}Q20 {end + 23} 38 {end + 23}H114"
        )
        layout.lines.append(
            DrawnEdge("hand", path, figures.early, 6, end - 12, text="done already", width=figures.width(figures.early))
        )
    below = end + 86
    _ways_out_beside(figures, layout, below)
    layout.height = below + 86 + PILL_HEIGHT + 10
    return layout


def _ways_out_beside(figures: _Figures, layout: FlowLayout, below: float) -> None:
    """From each step to the right and down, to the cleanup and to where jobs end that did not succeed."""
    has_failed = [box for box in layout.boxes if figures.failed(box.name)]
    for box in layout.boxes:
        count = figures.failed(box.name)
        kind = "out" if count else "none"
        path = f"M302 {box.middle + 8}H316Q326 {box.middle + 8} 326 {box.middle + 18}V{below + 10}"
        layout.lines.append(
            DrawnEdge(kind, path, count or None, 308, box.middle, width=figures.width(count), head=False)
        )
    kind = "out" if has_failed else "none"
    layout.lines.append(
        DrawnEdge(
            kind,
            f"M326 {below + 4}V{below + 12}Q326 {below + 22} 316 {below + 22}H304",
            head=figures.cleanup is not None,
            width=1.6,
        )
    )
    if figures.cleanup is not None:
        layout.boxes.append(Box(62, below, TALL, 50, "cleanup", "cleanup", figures.of["cleanup"], CLEANUP_NOTE))
    else:
        layout.lines.append(DrawnEdge(kind, f"M304 {below + 22}H122V{below + 50}", head=False, width=1.6))
    out = figures.flow.ways_out
    layout.lines += [
        DrawnEdge("out" if out.failed else "none", f"M122 {below + 50}V{below + 84}", width=figures.width(out.failed)),
        DrawnEdge(
            "quar" if out.quarantined else "none",
            f"M242 {below + (50 if figures.cleanup else 22)}V{below + 84}",
            width=figures.width(out.quarantined),
        ),
    ]
    layout.pills += [
        Pill(38, below + 86, 130, "failed", f"{out.failed:,}", "of the hour"),
        Pill(186, below + 86, 140, "quarantined", f"{out.quarantined:,}", "of the hour"),
    ]


def thin(steps: Sequence[str], mark: str, *, upright: bool = False, commit: str | None = None) -> FlowLayout:
    """The steps alone."""
    layout = FlowLayout(mark)
    none = StepStatistics(step="")
    before: Box | None = None
    for at, name in enumerate(steps):
        kind = "commit" if name == commit else "step"
        row, column = divmod(at, ROW)
        box = (
            Box(62, 2 + 42 * at, TALL, 28, name, kind, none)
            if upright
            else Box(138 + column * 234, 4 + row * 50, BOX, 34, name, kind, none)
        )
        if before is not None:
            if upright:
                path = f"M182 {before.y + 28}V{box.y - 2}"
            elif before.y == box.y:
                path = f"M{before.x + BOX} {box.middle}H{box.x - 2}"
            else:
                path = f"M{before.x + BOX / 2} {before.y + 34}V{before.y + 42}H{box.x + BOX / 2}V{box.y - 2}"
            layout.lines.append(DrawnEdge("lost", path))
        layout.boxes.append(box)
        before = box
    layout.width = 372 if upright else max((box.x + BOX for box in layout.boxes), default=138) + 10
    layout.height = max((box.y + box.height for box in layout.boxes), default=20) + 6
    return layout
