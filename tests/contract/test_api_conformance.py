"""The API answers as its OpenAPI document says: whatever the document allows is sent, and what it does not."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from schemathesis.config import SchemathesisConfig
from schemathesis.engine import events, from_schema

from holdfast import Engine
from holdfast.web.application import Application, app
from holdfast.web.openapi import PATH_PARAMETERS
from tests.support.backends import Backend
from tests.support.web import FLOW, a_flow, by_token

ADMIN = {"Authorization": "Bearer admin"}
# What a schema cannot say: the head that a job has now, a cursor that was given out, a key that was used, a job that
# is gone, the request of another flow. Which of these it was is in the code: see REASONS.
BY_STATE = ["400", "410", "412", "422"]
REASONS = {
    "changes-lost",
    "idempotency-key-reused",
    "invalid-cursor",
    "invalid-key",
    "job-moved-on",
    "job-pruned",
    "plan-changed",
    "reason-required",
}
PHASES = {"coverage", "fuzzing", "stateful"}


@pytest.fixture
def application(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> Iterator[Application]:
    # Nobody runs the jobs here.
    monkeypatch.setattr("holdfast.web.conditions.LONGEST_WAIT", 0.01)
    with Engine.open(backend.place, flows=[a_flow(), a_flow("another.one")]) as engine:
        for state in ("pending", "failed", "quarantined"):
            engine.force(engine.submit(FLOW, {"name": state}), state, reason="as an example")
        application = app(engine, authenticate=by_token, page=False)
        yield application
        application.close()


def fits(name: str, value: object) -> bool:
    return re.fullmatch(PATH_PARAMETERS[name]["pattern"], str(value)) is not None


def rejected_by_the_state_alone(_context: Any, response: Any, case: Any) -> bool | None:
    """What fits the document is refused only for what the document cannot know."""
    if (
        case.meta is None
        or not case.meta.generation.mode.is_positive
        or response.status_code not in (400, 410, 412, 422)
    ):
        return None
    if not all(fits(name, value) for name, value in (case.path_parameters or {}).items()):
        return None  # taken from another answer by its name, where it means something else
    code = response.json()["code"]
    if code == "request-invalid" and case.operation.path == "/v1/flows/{flow}/jobs":
        return None  # each flow has its own type of request, and its own path
    assert code in REASONS, f"{case.method} {case.path}: {response.text}"
    return None


schemathesis.check(rejected_by_the_state_alone)


def run(
    application: Application, seed: int, *, examples: int, steps: int, share: float
) -> tuple[Counter[str], list[str]]:
    """How many cases each phase has sent, and every failure."""
    config = SchemathesisConfig.from_dict(
        {
            "seed": seed,
            "headers": ADMIN,
            "generation": {"max-examples": examples, "database": "none"},
            "phases": {"stateful": {"generation": {"max-examples": steps}}},
            "checks": {
                "positive_data_acceptance": {"expected-statuses": ["2xx", "401", "403", "404", "409", *BY_STATE]},
                "missing_required_header": {"expected-statuses": ["400", "401", "428"]},
            },
        }
    )
    schema = schemathesis.openapi.from_asgi("/openapi.json", application, config=config, headers=ADMIN)
    names = [operation["operationId"] for path in schema.raw_schema["paths"].values() for operation in path.values()]
    drawn = random.Random(seed).sample(names, round(len(names) * share))
    sent: Counter[str] = Counter()
    failures: list[str] = []
    for event in from_schema(schema.include(operation_id=drawn)).execute():
        if isinstance(event, events.NonFatalError | events.FatalError):
            failures.append(str(getattr(event, "info", None) or getattr(event, "exception", event)))
        if isinstance(event, events.ScenarioFinished):
            sent[event.phase.value] += len(event.recorder.cases)
            for checks in event.recorder.checks.values():
                failures += [
                    f"{c.failure_info.failure}\n{c.failure_info.code_sample}" for c in checks if c.failure_info
                ]
    return sent, failures


@pytest.mark.timeout(300)
def test_the_api_answers_as_its_document_says(application: Application, seed: int) -> None:
    sent, failures = run(application, seed, examples=2, steps=3, share=0.3)

    assert failures == []
    assert set(sent) >= PHASES, sent


@pytest.mark.exhaustive
@pytest.mark.timeout(7200)
def test_the_whole_api_answers_as_its_document_says(application: Application, seed: int) -> None:
    sent, failures = run(application, seed, examples=60, steps=200, share=1)

    assert failures == []
    assert set(sent) >= PHASES, sent
    print(dict(sent))
