"""The stream of events over HTTP: nothing lost whatever dies, ended at once with the token, cheap for a thousand."""

from __future__ import annotations

import asyncio
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from holdfast import Engine
from holdfast.errors import StoreError
from holdfast.web.server import ServerLimits
from holdfast.web.tokens import TABLES, TokenStore
from tests.integration.conftest import OpenEngine
from tests.support.backends import Backend
from tests.support.flows import Answer, Ask, flow_of
from tests.support.serving import EventClient, ServedHere, WebProcess, make_token
from tests.support.waiting import PATIENCE, eventually

CLIENTS = 1_000
MOST_PER_CLIENT = 64 << 10
"""Bytes of the server's memory for an idle client: what docs/how-to/serve.md says."""
KILLS = 3

FLOW = flow_of(lambda _run: Answer(total=1), "watched")


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextmanager
def submitting(engine: Engine) -> Iterator[Callable[[], int]]:
    """Somebody who submits all the time, in another thread; asked how many that were."""
    stop, count = threading.Event(), [0]

    def submit() -> None:
        while not stop.wait(0.002):
            try:
                engine.submit(FLOW, Ask("x", count[0]))
                count[0] += 1
            except StoreError:
                continue

    thread = threading.Thread(target=submit)
    thread.start()
    try:
        yield lambda: count[0]
    finally:
        stop.set()
        thread.join(PATIENCE)


def everything(engine: Engine, after: str) -> list[tuple[str, int]]:
    """All changes that are on record, in their order."""
    found: list[tuple[str, int]] = []
    while page := engine.store.changes_after(after, limit=500):
        found += [(one.entry.job_id, one.entry.seq) for one in page]
        after = page[-1].number
    return found


def test_nothing_is_lost_or_doubled_while_the_server_is_killed_again_and_again(
    open_engine: OpenEngine, home: Backend
) -> None:
    """A worker and a client write all the time; the reader comes back with its last id, as a browser does."""
    engine = open_engine(FLOW)
    start, port, token = engine.store.last_change(), free_port(), make_token(home.place)
    read: list[tuple[object, object]] = []
    last: str | None = start
    names = set()
    listen = ("--listen", f"127.0.0.1:{port}")
    with engine.worker(), submitting(engine) as submitted:
        for _ in range(KILLS):
            with WebProcess(home.place, *listen) as server:
                wanted = len(read) + 150
                with EventClient(server.url, token, last=last) as client:
                    for name, data in client.events():
                        names.add(name)
                        read.append((data["job"], data["seq"]))
                        last = client.last
                        if len(read) >= wanted:
                            break
                server.process.kill()
                server.ended()
            before = submitted()
            eventually(lambda before=before: submitted() > before + 20)  # type: ignore[misc]
    whole = eventually(lambda: everything(engine, start) if not engine.store.under_way() else [])
    with WebProcess(home.place, *listen) as server, EventClient(server.url, token, last=last) as client:
        for name, data in client.events():
            names.add(name)
            read.append((data["job"], data["seq"]))
            if len(read) >= len(whole):
                break

    assert names == {"change"}
    assert len(read) == len(set(read))
    assert read == everything(engine, start)


def test_a_stream_ends_when_its_token_is_revoked_by_another_process(open_engine: OpenEngine, home: Backend) -> None:
    engine = open_engine(FLOW)
    with ServedHere(engine) as served:
        token, other = served.token("a"), served.token("b")
        with EventClient(served.url, token) as ended, EventClient(served.url, other) as lasting:
            with Engine.open(home.place) as elsewhere:
                TokenStore(elsewhere.tables(TABLES)).revoke("a", actor="operator:test")
            events = list(ended.events())
            engine.submit(FLOW, Ask())
            [name, data] = next(lasting.events())

    assert events == [("end", {"reason": "unauthenticated"})]
    assert (name, data["kind"]) == ("change", "submitted")


def test_streams_end_at_once_when_the_server_stops(open_engine: OpenEngine) -> None:
    with ExitStack() as stack:
        served = ServedHere(open_engine(FLOW))
        with served:
            token = served.token()
            clients = [stack.enter_context(EventClient(served.url, token)) for _ in range(20)]
            eventually(lambda: served.feed.streams == 20)
            begun = time.monotonic()
        took = time.monotonic() - begun
        rest = [list(client.events()) for client in clients]

    assert rest == [[]] * 20
    assert took < served.stop_seconds


def test_a_client_that_leaves_is_forgotten(open_engine: OpenEngine) -> None:
    with ServedHere(open_engine(FLOW)) as served:
        token = served.token()
        for _ in range(5):
            with EventClient(served.url, token):
                eventually(lambda: served.feed.streams == 1)
            eventually(lambda: served.feed.streams == 0)

        assert served.feed.streams == 0


def test_one_client_cannot_have_more_streams_than_its_share(open_engine: OpenEngine) -> None:
    with ServedHere(open_engine(FLOW)) as served, ExitStack() as stack:
        served.feed.streams_per_client = 3
        token, other = served.token("a"), served.token("b")
        for _ in range(3):
            stack.enter_context(EventClient(served.url, token))
        eventually(lambda: served.feed.streams == 3)
        with served.client(token) as client:
            refused = client.get("/v1/events")
        allowed = stack.enter_context(EventClient(served.url, other)).response.status_code

    assert (refused.status_code, refused.json()["code"]) == (429, "too-many-streams")
    assert allowed == 200


@pytest.mark.only_sqlite
def test_a_reader_that_takes_nothing_is_told_to_look_again(
    open_engine: OpenEngine,
) -> None:
    """Its socket takes a few kilobytes; the ring is made so small that what is written runs over it."""
    engine = open_engine(FLOW)
    served = ServedHere(engine, limits=ServerLimits(read_seconds=600.0))
    served.feed.ring_events = 50
    with served, socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        slow.connect(served.address)
        slow.settimeout(PATIENCE * 2)
        head = f"GET /v1/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {served.token()}\r\n\r\n"
        slow.sendall(head.encode())
        eventually(lambda: served.feed.streams == 1)
        for _ in range(40):
            engine.submit_many([engine.prepare(FLOW, Ask("x", number)) for number in range(100)])
        text = b""
        while b"event: resync" not in text:
            part = slow.recv(65536)
            assert part, "it was cut off without a word, though it read in the end"
            text += part
        eventually(lambda: served.feed.streams == 0)

    assert b'{"reason": "slow"}' in text
    assert text.count(b"event: change") < 4000


# --- a thousand ---


def memory_of(pid: int) -> int:
    """Bytes that a process has in memory."""
    text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return int(text.partition("VmRSS:")[2].split()[0]) * 1024


@pytest.mark.only_sqlite
@pytest.mark.timeout(300)
def test_a_thousand_idle_clients_cost_what_is_said(tmp_path: Path) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    state = str(tmp_path / "state")
    with Engine.open(state, flows=[FLOW]) as engine:
        token = make_token(state)
        with WebProcess(state, "--listen", "127.0.0.1:0", "--streams-per-client", str(CLIENTS)) as server:
            with EventClient(server.url, token):
                before = memory_of(server.process.pid)
                grown, heard = asyncio.run(_listen(server, token, engine, before))
            code = server.stop()

    print(f"{grown / CLIENTS / 1024:.1f} kB for each of {CLIENTS} clients")
    assert heard == CLIENTS
    assert grown < CLIENTS * MOST_PER_CLIENT
    assert code == 0


async def _listen(server: WebProcess, token: str, engine: Engine, before: int) -> tuple[int, int]:
    """How much the server grew with all of them, and how many heard of a change after that."""
    host, port = server.address
    head = f"GET /v1/events HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n\r\n".encode()

    async def connect() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(host, port, limit=16384)
        writer.write(head)
        assert b" 200 " in await reader.readline()
        await reader.readuntil(b"id: ")
        return reader, writer

    # All at the same moment, as after a restart.
    clients = await asyncio.gather(*(connect() for _ in range(CLIENTS)))
    await asyncio.sleep(2)
    grown = memory_of(server.process.pid) - before
    await asyncio.to_thread(engine.submit, FLOW, Ask())
    found = await asyncio.gather(*(reader.readuntil(b"event: change") for reader, _ in clients))
    for _, writer in clients:
        writer.close()
    return grown, sum(one.endswith(b"event: change") for one in found)
