"""The state machines and flows as pictures: Mermaid, DOT and text, drawn from the tables themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any, assert_never

from holdfast.core.flow import Flow, Step
from holdfast.core.states import (
    EXECUTION_TRANSITIONS,
    JOB_TRANSITIONS,
    TERMINAL_EXECUTION_STATUSES,
    TERMINAL_JOB_STATES,
    ExecutionStatus,
    JobState,
)


class DiagramFormat(StrEnum):
    """How to draw."""

    MERMAID = "mermaid"
    DOT = "dot"
    TEXT = "text"


_J, _E = JobState, ExecutionStatus

JOB_EDGE_LABELS: Mapping[tuple[str, str], str] = {
    (_J.PENDING, _J.RUNNING): "leased",
    (_J.RUNNING, _J.SUCCEEDED): "committed and done",
    (_J.RUNNING, _J.FAILED): "gave up",
    (_J.RUNNING, _J.PENDING): "lease lost or given back",
    (_J.FAILED, _J.PENDING): "retry",
    (_J.FAILED, _J.QUARANTINED): "no attempts left",
    (_J.QUARANTINED, _J.PENDING): "retry by an operator",
}

EXECUTION_EDGE_LABELS: Mapping[tuple[str, str], str] = {
    (_E.LEASED, _E.IN_PROGRESS): "started",
    (_E.LEASED, _E.ABORTED): "ended before it started",
    (_E.IN_PROGRESS, _E.COMMITTED): "effect applied, once",
    (_E.IN_PROGRESS, _E.ABORTED): "ended without commit",
    (_E.COMMITTED, _E.DONE): "finished",
}


def lifecycle(diagram_format: DiagramFormat) -> str:
    """The life of a job. Staying in a state is always allowed and not drawn."""
    edges = _edges(JOB_TRANSITIONS, JOB_EDGE_LABELS)
    return _machine("job", _J.PENDING, edges, TERMINAL_JOB_STATES, diagram_format)


def executions(diagram_format: DiagramFormat) -> str:
    """The life of an execution."""
    edges = _edges(EXECUTION_TRANSITIONS, EXECUTION_EDGE_LABELS)
    return _machine("execution", _E.LEASED, edges, TERMINAL_EXECUTION_STATUSES, diagram_format)


def flow_graph(flow: Flow[Any, Any], diagram_format: DiagramFormat) -> str:
    """The steps of a flow in order, and the ways out of it."""
    match diagram_format:
        case DiagramFormat.MERMAID:
            lines = _flow_mermaid(flow)
        case DiagramFormat.DOT:
            lines = _flow_dot(flow)
        case DiagramFormat.TEXT:
            lines = _flow_text(flow)
        case unknown:
            assert_never(unknown)
    return "\n".join(lines) + "\n"


# --- state machines --------------------------------------------------------------------------------------

_Edge = tuple[str, str, str]


def _edges(transitions: Mapping[Any, frozenset[Any]], labels: Mapping[tuple[str, str], str]) -> list[_Edge]:
    """Every legal change in the order of the states' definition, so that the same table gives the same picture."""
    order = list(transitions)
    return [
        (source, target, labels[source, target])
        for source in order
        for target in order
        if target in transitions[source] and target != source
    ]


def _machine(
    name: str, initial: str, edges: list[_Edge], terminal: frozenset[Any], diagram_format: DiagramFormat
) -> str:
    ends = sorted(terminal)
    match diagram_format:
        case DiagramFormat.MERMAID:
            lines = ["stateDiagram-v2", f"    [*] --> {initial}"]
            lines += [f"    {source} --> {target}: {label}" for source, target, label in edges]
            lines += [f"    {end} --> [*]" for end in ends]
        case DiagramFormat.DOT:
            lines = [f"digraph {name} {{", "    rankdir=LR;", "    node [shape=box, style=rounded];"]
            lines += [f'    "{initial}" [penwidth=2];']
            lines += [f'    "{end}" [peripheries=2];' for end in ends]
            lines += [f'    "{source}" -> "{target}" [label="{label}"];' for source, target, label in edges]
            lines += ["}"]
        case DiagramFormat.TEXT:
            width = max(len(source) for source, _, _ in edges)
            reach = max(len(target) for _, target, _ in edges)
            lines = [f"{name}: begins as {initial}, ends as {' or '.join(ends)}"]
            lines += [f"  {source:<{width}} -> {target:<{reach}}  {label}" for source, target, label in edges]
        case unknown:
            assert_never(unknown)
    return "\n".join(lines) + "\n"


# --- flows -----------------------------------------------------------------------------------------------


def _ways_out(flow: Flow[Any, Any]) -> list[tuple[str, JobState]]:
    """(label, final state) of what any step may do instead of returning."""
    after = ", after cleanup" if flow.cleanup else ""
    return [
        ("Handoff", JobState.SUCCEEDED),
        (f"Abort{after}", JobState.FAILED),
        (f"Unrecoverable or all tries used up{after}", JobState.QUARANTINED),
    ]


def _remarks(step: Step) -> Iterator[str]:
    if step.is_commit:
        yield "commit"
    if step.retry.retries:
        yield f"{step.retry.retries} {'retry' if step.retry.retries == 1 else 'retries'}"
    if step.timeout is not None:
        yield f"timeout {step.timeout:g} s"


def _flow_mermaid(flow: Flow[Any, Any]) -> Iterator[str]:
    yield "flowchart TD"
    yield f'    subgraph steps["{flow.name}"]'
    for position, step in enumerate(flow.steps):
        label = "<br/>".join([step.name, *_remarks(step)])
        yield f'        s{position}[["{label}"]]' if step.is_commit else f'        s{position}["{label}"]'
    for position in range(1, len(flow.steps)):
        yield f"        s{position - 1} --> s{position}"
    yield "    end"
    if flow.steps:
        yield f"    s{len(flow.steps) - 1} ==>|commit| {JobState.SUCCEEDED}"
    for label, state in _ways_out(flow):
        yield f'    steps -.->|"{label}"| {state}'


def _flow_dot(flow: Flow[Any, Any]) -> Iterator[str]:
    yield f'digraph "{flow.name}" {{'
    yield "    compound=true;"
    yield "    node [shape=box];"
    yield "    subgraph cluster_steps {"
    yield f'        label="{flow.name}";'
    for position, step in enumerate(flow.steps):
        label = "\\n".join([step.name, *_remarks(step)])
        shape = ", peripheries=2" if step.is_commit else ""
        yield f'        s{position} [label="{label}"{shape}];'
    for position in range(1, len(flow.steps)):
        yield f"        s{position - 1} -> s{position};"
    yield "    }"
    for state in (JobState.SUCCEEDED, JobState.FAILED, JobState.QUARANTINED):
        yield f"    {state} [style=rounded];"
    if flow.steps:
        last = len(flow.steps) - 1
        yield f'    s{last} -> {JobState.SUCCEEDED} [label="commit", penwidth=2];'
        for label, state in _ways_out(flow):
            yield f'    s0 -> {state} [label="{label}", style=dashed, ltail=cluster_steps];'
    yield "}"


def _flow_text(flow: Flow[Any, Any]) -> Iterator[str]:
    queue = f", queue {flow.queue}" if flow.queue else ""
    yield f"{flow.name} (version {flow.version}{queue})"
    width = max((len(step.name) for step in flow.steps), default=0)
    for position, step in enumerate(flow.steps):
        yield f"  {position + 1:>2}. {step.name:<{width}}  {', '.join(_remarks(step))}".rstrip()
    yield f"  the last step's end -> {JobState.SUCCEEDED}"
    for label, state in _ways_out(flow):
        yield f"  {label} -> {state}"
