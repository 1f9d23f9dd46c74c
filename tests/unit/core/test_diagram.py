"""Diagrams show the tables as they are."""

from __future__ import annotations

import re
from typing import Any

import pytest

from holdfast.core.diagram import (
    EXECUTION_EDGE_LABELS,
    JOB_EDGE_LABELS,
    DiagramFormat,
    executions,
    flow_graph,
    lifecycle,
)
from holdfast.core.flow import Flow
from holdfast.core.retry import exponential, fixed, minutes
from holdfast.core.states import EXECUTION_TRANSITIONS, JOB_TRANSITIONS

ARROW = {
    DiagramFormat.MERMAID: r"^    (\w+) --> (\w+): (.+)$",
    DiagramFormat.DOT: r'^    "(\w+)" -> "(\w+)" \[label="(.+)"\];$',
    DiagramFormat.TEXT: r"^  (\w+) +-> (\w+) +(.+)$",
}


def a_flow(**settings: Any) -> Flow[dict[str, str], dict[str, str]]:
    return (
        Flow("download-image", **{"request": dict, "response": dict} | settings)
        .start("check-exists", print, retry=exponential(3))
        .to("download", print, retry=fixed(1), timeout=minutes(5))
        .commit("store-metadata", print)
    )


def drawn(picture: str, diagram_format: DiagramFormat) -> dict[tuple[str, str], str]:
    return {(m[1], m[2]): m[3] for m in re.finditer(ARROW[diagram_format], picture, re.MULTILINE)}


@pytest.mark.parametrize("diagram_format", DiagramFormat)
def test_the_life_of_a_job_is_drawn_from_its_table(diagram_format: DiagramFormat) -> None:
    edges = {(s, t) for s, targets in JOB_TRANSITIONS.items() for t in targets if s != t}

    assert drawn(lifecycle(diagram_format), diagram_format) == {edge: JOB_EDGE_LABELS[edge] for edge in edges}
    assert set(JOB_EDGE_LABELS) == edges


@pytest.mark.parametrize("diagram_format", DiagramFormat)
def test_the_life_of_an_execution_is_drawn_from_its_table(diagram_format: DiagramFormat) -> None:
    edges = {(s, t) for s, targets in EXECUTION_TRANSITIONS.items() for t in targets}

    assert drawn(executions(diagram_format), diagram_format) == {edge: EXECUTION_EDGE_LABELS[edge] for edge in edges}
    assert set(EXECUTION_EDGE_LABELS) == edges


def test_beginning_and_end_are_marked() -> None:
    assert "[*] --> pending" in lifecycle(DiagramFormat.MERMAID)
    assert "succeeded --> [*]" in lifecycle(DiagramFormat.MERMAID)
    assert "begins as leased, ends as aborted or done" in executions(DiagramFormat.TEXT)
    assert '"succeeded" [peripheries=2];' in lifecycle(DiagramFormat.DOT)


@pytest.mark.parametrize("diagram_format", DiagramFormat)
def test_the_same_flow_gives_the_same_picture(diagram_format: DiagramFormat) -> None:
    assert flow_graph(a_flow(), diagram_format) == flow_graph(a_flow(), diagram_format)
    assert flow_graph(a_flow(), diagram_format).endswith("\n")


@pytest.mark.parametrize("diagram_format", DiagramFormat)
def test_the_steps_of_a_flow_are_drawn_in_order(diagram_format: DiagramFormat) -> None:
    picture = flow_graph(a_flow(), diagram_format)
    names = re.findall(r"check-exists|download(?!-)|store-metadata", picture)

    assert names == ["check-exists", "download", "store-metadata"]
    assert all(word in picture for word in ("3 retries", "1 retry", "timeout 300 s", "commit"))


def test_the_text_of_a_flow_is_a_list_a_person_can_read() -> None:
    assert flow_graph(a_flow(queue="downloads", cleanup=print), DiagramFormat.TEXT) == (
        "download-image (version 1, queue downloads)\n"
        "   1. check-exists    3 retries\n"
        "   2. download        1 retry, timeout 300 s\n"
        "   3. store-metadata  commit\n"
        "  the last step's end -> succeeded\n"
        "  Handoff -> succeeded\n"
        "  Abort, after cleanup -> failed\n"
        "  Unrecoverable or all tries used up, after cleanup -> quarantined\n"
    )


def test_the_commit_step_is_marked_in_pictures() -> None:
    assert 's2[["store-metadata<br/>commit"]]' in flow_graph(a_flow(), DiagramFormat.MERMAID)
    assert 's2 [label="store-metadata\\ncommit", peripheries=2];' in flow_graph(a_flow(), DiagramFormat.DOT)


@pytest.mark.parametrize("diagram_format", DiagramFormat)
def test_the_ways_out_are_drawn(diagram_format: DiagramFormat) -> None:
    picture = flow_graph(a_flow(), diagram_format)

    assert all(word in picture for word in ("Handoff", "Abort", "Unrecoverable"))


@pytest.mark.parametrize("diagram_format", DiagramFormat)
def test_a_flow_without_steps_can_be_drawn_too(diagram_format: DiagramFormat) -> None:
    empty: Flow[dict[str, str], dict[str, str]] = Flow("empty", request=dict, response=dict)

    assert "empty" in flow_graph(empty, diagram_format)


def test_the_dot_of_a_flow_begins_with_how_it_is_drawn() -> None:
    assert flow_graph(a_flow(), DiagramFormat.DOT).splitlines()[:5] == [
        'digraph "download-image" {',
        "    compound=true;",
        "    node [shape=box];",
        "    subgraph cluster_steps {",
        '        label="download-image";',
    ]
