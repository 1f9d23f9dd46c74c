"""A small shop that lives: flows for the browser's tests, and the processes that serve them and work on them."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import msgspec

from holdfast import Abort, Engine, Flow, Handoff, Pipeline, Run, Transaction, fixed


class Order(msgspec.Struct):
    number: int = 0
    mood: str = "well"
    """What becomes: well, done, flaky, declined, broken, crash, slow; gated until a file named `text` is there."""
    seconds: float = 0.0
    text: str = ""


class Packed(msgspec.Struct):
    reserved: int = 0
    charged: bool = False
    boxes: list[str] = []


class CardError(Exception):
    """The bank did not answer."""

    hint = "may pass; the step is tried again"


OrderRun = Run[Order, Packed]


def check(run: OrderRun) -> Packed:
    if run.request.mood == "done":
        raise Handoff(run.response)
    return run.response


def reserve(run: OrderRun) -> Packed:
    run.response.reserved = run.request.number + 1
    return run.response


def charge(run: OrderRun) -> Packed:
    mood = run.request.mood
    if mood == "declined":
        raise Abort(run.request.text or "the card was declined")
    if mood == "broken" or (mood == "flaky" and run.tries == 0):
        raise CardError(run.request.text or "503 from the bank")
    run.response.charged = True
    return run.response


def pack(run: OrderRun) -> Packed:
    if run.request.mood == "crash" and run.job.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    while run.request.mood == "gated" and not os.path.exists(run.request.text):
        run.progress(1, 3, "boxes")
        run.check()
        time.sleep(0.05)
    until = time.monotonic() + run.request.seconds
    while (left := until - time.monotonic()) > 0:
        total = max(1, round(run.request.seconds * 10))
        run.progress(max(0, total - round(left * 10)), total, "boxes")
        run.check()
        time.sleep(0.05)
    run.response.boxes = ["books", "<b>fragile</b>"]
    return run.response


def ship(run: OrderRun, _tx: Transaction) -> Packed:
    return run.response


def give_back(_run: OrderRun) -> None:
    """What was reserved is free again."""


take_order = (
    Flow("take-order", request=Order, response=Packed, queue="orders", cleanup=give_back, version="2", crash_limit=5)
    .start("check", check)
    .to("reserve", reserve)
    .to("charge", charge, retry=fixed(2, delay=0.3))
    .to("pack", pack, timeout=600)
    .commit("ship", ship)
)

old_order = (
    Flow("take-order", request=Order, response=Packed, queue="orders", version="1")
    .start("check", check)
    .to("charge", charge)
    .commit("ship", ship)
)


def look_away(run: OrderRun) -> Packed:
    while not os.path.exists(run.request.text):
        run.check()
        time.sleep(0.05)
    return run.response


no_progress = (
    Flow("no-progress", request=Order, response=Packed, stall_after=0.5)
    .start("look-away", look_away)
    .commit("ship", ship)
)


class Day(msgspec.Struct):
    number: int = 0
    seconds: float = 0.0


close_day: Pipeline[Day] = Pipeline("close-day", request=Day).then(
    take_order, name="last-order", request=lambda view: Order(number=view.request.number, seconds=view.request.seconds)
)

FLOWS: list[Flow[Any, Any]] = [take_order, close_day, no_progress]


def serve(place: str, port: str) -> None:
    """The server, on TCP, with two tokens that are told on stdout the first time."""
    from holdfast.bulk import Bulk
    from holdfast.web import Scope, app
    from holdfast.web.credentials import BySession, ByToken, CombinedAuthenticator
    from holdfast.web.limits import Guarded
    from holdfast.web.login import Login
    from holdfast.web.server import WebServer
    from holdfast.web.sockets import bound, listen_address
    from holdfast.web.tokens import TABLES, TokenStore

    with Engine.open(place, flows=FLOWS, actor="operator") as engine:
        Bulk(engine)
        tokens = TokenStore(engine.tables(TABLES))
        told: dict[str, str] = {}
        if not tokens.has_valid():
            for name, scope in (("nina", Scope.ADMIN), ("rita", Scope.READ)):
                told[name] = tokens.create(name, scope, lifetime_ms=None, actor="operator")[1]
        who = CombinedAuthenticator(token=ByToken(tokens), session=BySession(tokens))
        application = app(engine, authenticate=who, extensions=[Login(tokens).extension])
        read, write = os.pipe()
        signal.signal(signal.SIGTERM, lambda *_: os.write(write, b"."))
        with bound(listen_address(f"127.0.0.1:{port}")) as listening:
            told["port"] = str(listening.getsockname()[1])
            server = WebServer(Guarded(application), on_started=lambda: print(json.dumps(told), flush=True))
            server.run_on([listening], stop_on=read)


def work(place: str) -> None:
    """A worker, until it is told to stop."""
    from holdfast.bulk import Bulk

    with Engine.open(place, flows=FLOWS, actor="operator") as engine:
        Bulk(engine)
        with engine.worker(concurrency=4, lease=5.0, recovery_interval=0.3, stall="approval") as worker:
            print(json.dumps({"worker": worker.worker_id}), flush=True)
            signal.sigwait({signal.SIGTERM, signal.SIGINT})


if __name__ == "__main__":
    if sys.argv[1] == "work":
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    commands: dict[str, Callable[..., None]] = {"serve": serve, "work": work}
    commands[sys.argv[1]](*sys.argv[2:])
