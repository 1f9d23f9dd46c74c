"""Where `holdfast serve` listens: a socket that only those can open who may, one server at a time, systemd's socket."""

from __future__ import annotations

import grp
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import Engine
from holdfast.errors import SettingsError
from holdfast.web.sockets import ListenAddress, bound, listen_address
from tests.support.serving import WebProcess, make_token, shown
from tests.support.waiting import PATIENCE, eventually

NOBODY = 65534
GROUP = next(group for group in grp.getgrall() if group.gr_gid not in (0, NOBODY))

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="to be another user")

AS_ANOTHER = """
import http.client, json, os, socket, sys
path, uid, gid, groups = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4])
os.setgroups(groups); os.setgid(gid); os.setuid(uid)
try:
    connection = socket.socket(socket.AF_UNIX); connection.connect(path)
except PermissionError:
    print("refused by the kernel"); sys.exit()
client = http.client.HTTPConnection("holdfast"); client.sock = connection
method, target = sys.argv[5], sys.argv[6]
client.request(method, target, sys.argv[7] or None, json.loads(sys.argv[8]))
response = client.getresponse()
print(response.status, response.read().decode())
"""


def as_another(
    path: str,
    *,
    uid: int = NOBODY,
    gid: int = NOBODY,
    groups: str = "[]",
    request: tuple[str, str, str, str] = ("GET", "/v1/stats", "", "{}"),
) -> str:
    """What a process of another user is answered on the socket."""
    command = [sys.executable, "-c", AS_ANOTHER, path, str(uid), str(gid), groups, *request]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
    return done.stdout + done.stderr


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory that every user can reach, as /run is."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def state_in(tmp_path: Path) -> str:
    state = str(tmp_path / "state")
    with Engine.open(state) as engine:
        engine.queue("q", limit=5)
    return state


# --- the socket itself ---


def test_the_socket_is_for_owner_and_group_and_its_directory_too(tmp_path: Path) -> None:
    path = tmp_path / "run" / "holdfast.sock"
    with bound(ListenAddress(path=path)):
        modes = shown(path), shown(path.parent)

    assert modes == ("0o660", "0o750")
    assert not path.exists()


def test_nobody_else_can_open_it_at_any_moment_while_it_is_made(tmp_path: Path) -> None:
    """A watcher looks at every name in the directory all the time, under a mask that forbids nothing."""
    path, seen, stop = tmp_path / "holdfast.sock", set[int](), threading.Event()

    def watch() -> None:
        while not stop.is_set():
            for name in os.listdir(tmp_path):
                try:
                    seen.add(os.stat(tmp_path / name).st_mode & 0o777)
                except FileNotFoundError:
                    pass

    before = os.umask(0)
    watcher = threading.Thread(target=watch)
    try:
        watcher.start()
        for _ in range(200):
            with bound(ListenAddress(path=path)):
                pass
    finally:
        stop.set()
        watcher.join()
        os.umask(before)

    assert 0o600 in seen
    assert seen <= {0o600, 0o660}


@needs_root
def test_the_group_is_the_one_that_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "holdfast.sock"
    with bound(ListenAddress(path=path), group=GROUP.gr_gid):
        assert path.stat().st_gid == GROUP.gr_gid


def test_the_socket_of_a_dead_server_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "holdfast.sock"
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(path))
    dead.close()

    with bound(ListenAddress(path=path)) as ours, socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        ours.accept()[0].close()
        reached = client.getpeername()

    assert reached


def test_a_socket_that_somebody_listens_on_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "holdfast.sock"
    with bound(ListenAddress(path=path)):
        before = path.stat().st_ino
        with pytest.raises(SettingsError, match="another server listens"), bound(ListenAddress(path=path)):
            pass
        assert path.stat().st_ino == before
    with socket.socket(socket.AF_UNIX) as foreign:
        foreign.bind(str(path))
        foreign.listen()
        with pytest.raises(SettingsError, match="another server listens"), bound(ListenAddress(path=path)):
            pass
        assert path.exists()


def test_a_file_that_is_no_socket_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("precious")
    with pytest.raises(SettingsError, match="no socket"), bound(ListenAddress(path=path)):
        pass

    assert path.read_text() == "precious"


@pytest.mark.parametrize("text", ["", "unix:", "8118", "host", "127.0.0.1:99999", ":80", "unix:/" + "x" * 120])
def test_what_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(SettingsError):
        listen_address(text)


def test_a_port_in_use_is_a_clear_error() -> None:
    with bound(listen_address("127.0.0.1:0")) as one:
        port = one.getsockname()[1]
        with pytest.raises(SettingsError, match="in use"), bound(listen_address(f"127.0.0.1:{port}")):
            pass


# --- who is at the other end ---


@needs_root
def test_the_servers_own_user_and_root_may_do_everything_and_are_named(tmp_path: Path) -> None:
    state = state_in(tmp_path)
    with WebProcess(state, "--listen", f"unix:{tmp_path}/h.sock") as server, server.by_socket() as client:
        paused = client.post("/v1/queues/q/pause", json={"reason": "a test"})
    with Engine.open(state) as engine:
        actors = [event.actor for event in engine.store.queue_history("q", limit=10)]

    assert paused.status_code == 200, paused.text
    assert actors[:1] == [f"unix:uid=0,gid={os.getgid()},pid={os.getpid()}"]


@needs_root
def test_another_user_is_refused_by_the_socket_and_behind_it(open_directory: Path) -> None:
    state, path = state_in(open_directory), open_directory / "h.sock"
    with WebProcess(state, "--listen", f"unix:{path}", "--socket-group", str(GROUP.gr_gid)):
        outside = as_another(str(path))
        path.chmod(0o666)
        inside = as_another(str(path))

    assert outside.strip() == "refused by the kernel"
    assert inside.startswith("401 ")


@needs_root
@pytest.mark.parametrize("member", [{"gid": GROUP.gr_gid}, {"groups": f"[{GROUP.gr_gid}]"}])
def test_a_member_of_the_group_may_do_what_its_scope_says(open_directory: Path, member: dict[str, object]) -> None:
    state, path = state_in(open_directory), open_directory / "h.sock"
    group = ("--socket-group", GROUP.gr_name, "--socket-scope", "read")
    pause = ("POST", "/v1/queues/q/pause", '{"reason": "x"}', '{"Content-Type": "application/json"}')
    with WebProcess(state, "--listen", f"unix:{path}", *group):
        read = as_another(str(path), **member)  # type: ignore[arg-type]
        written = as_another(str(path), **member, request=pause)  # type: ignore[arg-type]

    assert read.startswith("200 ")
    assert written.startswith("403 ")


@needs_root
def test_a_member_of_a_group_without_a_scope_needs_a_token(open_directory: Path) -> None:
    state, path = state_in(open_directory), open_directory / "h.sock"
    token = make_token(state, scope="read")
    with WebProcess(state, "--listen", f"unix:{path}", "--socket-group", GROUP.gr_name):
        without = as_another(str(path), gid=GROUP.gr_gid)
        headers = f'{{"Authorization": "Bearer {token}"}}'
        with_one = as_another(str(path), gid=GROUP.gr_gid, request=("GET", "/v1/stats", "", headers))

    assert without.startswith("401 ")
    assert with_one.startswith("200 ")


def test_a_request_that_was_forwarded_is_not_the_proxys_own(tmp_path: Path) -> None:
    state = state_in(tmp_path)
    with WebProcess(state, "--listen", f"unix:{tmp_path}/h.sock") as server, server.by_socket() as client:
        own = client.get("/v1/stats")
        forwarded = client.get("/v1/stats", headers={"X-Forwarded-For": "203.0.113.9"})
        wrong = client.get("/v1/stats", headers={"Authorization": "Bearer hft_x"})

    assert [one.status_code for one in (own, forwarded, wrong)] == [200, 401, 401]


def test_a_trusted_header_names_the_user_of_a_proxy(tmp_path: Path) -> None:
    state = state_in(tmp_path)
    trusting = ("--trust-proxy-header", "X-Remote-User", "--proxy-scope", "operate")
    with WebProcess(state, "--listen", f"unix:{tmp_path}/h.sock", *trusting) as server, server.by_socket() as client:
        headers = {"X-Remote-User": "alice", "X-Forwarded-For": "203.0.113.9"}
        done = client.post("/v1/queues/q/pause", json={"reason": "a test"}, headers=headers)
        twice = client.get(
            "/v1/stats", headers=[("X-Remote-User", "a"), ("X-Remote-User", "b"), ("X-Forwarded-For", "x")]
        )
    with Engine.open(state) as engine:
        actors = [event.actor for event in engine.store.queue_history("q", limit=10)]

    assert done.status_code == 200
    assert actors[:1] == ["proxy:alice"]
    assert twice.status_code == 401


def test_a_header_that_nobody_has_asked_to_trust_names_nobody(tmp_path: Path) -> None:
    state = state_in(tmp_path)
    token = make_token(state)
    with WebProcess(state, "--listen", "127.0.0.1:0") as server, server.by_tcp() as client:
        answer = client.get("/v1/stats", headers={"X-Remote-User": "alice", "X-Forwarded-User": "alice"})

    assert token
    assert answer.status_code == 401


# --- the process ---


def test_one_server_at_a_time_and_the_next_after_a_kill(tmp_path: Path) -> None:
    state, where = state_in(tmp_path), f"unix:{tmp_path}/h.sock"
    with WebProcess(state, "--listen", where) as first:
        second = WebProcess(state, "--listen", where)
        with pytest.raises(AssertionError, match="another server listens"):
            second.ready()
        first.process.kill()
        first.ended()
        with WebProcess(state, "--listen", where) as third, third.by_socket() as client:
            answer = client.get("/livez")
            code = third.stop()

    assert second.ended() == 2
    assert answer.status_code == 200
    assert code == 0
    assert not (tmp_path / "h.sock").exists()


ACTIVATED = """
import os, socket, sys
listening = socket.socket(socket.AF_UNIX); listening.bind(sys.argv[1]); listening.listen()
os.dup2(os.dup(listening.fileno()), 3, inheritable=True)
os.set_inheritable(3, True)
os.environ.update(LISTEN_FDS="1", LISTEN_PID=str(os.getpid()))
os.execv(sys.executable, [sys.executable, "-m", "holdfast.cli", *sys.argv[2:]])
"""


def test_the_socket_of_the_service_manager_is_served_and_left_to_it(tmp_path: Path) -> None:
    state, path = state_in(tmp_path), tmp_path / "activated.sock"
    told = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    told.bind(str(tmp_path / "notify"))
    told.settimeout(PATIENCE)
    command = [sys.executable, "-c", ACTIVATED, str(path), "--state", state, "--json", "serve"]
    environment = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "3000000"}
    with told, WebProcess(state, command=command, **environment) as server:
        server.listen = [f"unix:{path}"]
        heard = [told.recv(100)]
        with server.by_socket() as client:
            answer = client.get("/v1/stats")
        heard.append(told.recv(100))
        code = server.stop()
        while heard[-1] == b"WATCHDOG=1":
            heard.append(told.recv(100))

    assert answer.status_code == 200
    assert (heard[0], heard[1], heard[-1]) == (b"READY=1", b"WATCHDOG=1", b"STOPPING=1")
    assert code == 0
    assert path.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_cleanly(tmp_path: Path, number: int) -> None:
    with WebProcess(state_in(tmp_path), "--listen", f"unix:{tmp_path}/h.sock") as server:
        code = server.stop(number)

    assert code == 0
    assert "stopped" in server.log[-1]


def test_a_second_signal_ends_it_now(tmp_path: Path) -> None:
    state = state_in(tmp_path)
    with WebProcess(state, "--listen", f"unix:{tmp_path}/h.sock") as server, socket.socket(socket.AF_UNIX) as slow:
        slow.connect(server.path)
        slow.sendall(b"POST /v1/queues/q/pause HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{")
        time.sleep(0.3)
        server.process.send_signal(signal.SIGTERM)
        eventually(lambda: any("stopping" in line for line in server.log))
        code = server.stop(signal.SIGTERM)

    assert code == 130


def test_by_tcp_it_does_not_start_without_a_token(tmp_path: Path) -> None:
    server = WebProcess(state_in(tmp_path), "--listen", "127.0.0.1:0")
    with pytest.raises(AssertionError, match="holdfast token create"):
        server.ready()

    assert server.ended() == 2
