"""How many jobs a worker works on at once."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest

from holdfast import Flow, Run
from holdfast.store.commands import Finish, Write
from tests.integration.conftest import QUICK, OpenEngine
from tests.support.flows import Answer, Ask

LONG = 20.0


def test_a_job_of_which_only_the_end_is_to_be_written_takes_no_room(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []
    second_began = threading.Event()
    waited: list[bool] = []

    def note(run: Run[Ask, Answer]) -> None:
        begun.append(run.request.name)
        if len(begun) == 2:
            second_began.set()

    flow: Flow[Ask, Answer] = Flow("noted", request=Ask, response=Answer)
    flow.start("note", note)
    engine = open_engine(flow)
    write = engine.store.write

    def hold_back_the_first_end(batch: Sequence[Write], **settings: Any) -> list[Exception | None]:
        if not waited and any(isinstance(one, Finish) for one in batch):
            waited.append(second_began.wait(LONG))
        return write(batch, **settings)

    monkeypatch.setattr(engine.store, "write", hold_back_the_first_end)
    jobs = [engine.submit(flow, Ask(name)) for name in ("first", "second")]
    with engine.worker(concurrency=1, **QUICK):
        for job_id in jobs:
            engine.result(flow, job_id, timeout=LONG)

    assert begun == ["first", "second"]
    assert waited == [True]
