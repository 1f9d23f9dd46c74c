"""What a server meets that others can reach: no token, the wrong one, other sites' pages, slow and large requests."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import httpx
import pytest

from holdfast.web import Scope
from holdfast.web.limits import CONTENT_POLICY
from holdfast.web.server import ServerLimits
from tests.integration.conftest import OpenEngine
from tests.support.serving import ServedHere, all_from
from tests.support.waiting import eventually

LIMITS = ServerLimits(header_seconds=1.0, body_seconds=1.0, idle_seconds=1.0, read_seconds=2.0, connections=40)
PAUSE, REASON = "/v1/queues/q/pause", {"reason": "a test"}


@pytest.fixture
def served(open_engine: OpenEngine) -> Iterator[ServedHere]:
    engine = open_engine()
    engine.queue("q", limit=3)
    with ServedHere(engine, limits=LIMITS, hosts=["holdfast.example"]) as served:
        yield served


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def asked(served: ServedHere, *parts: bytes, pause: float = 0.0) -> bytes:
    """What the server says to these bytes until it closes."""
    with served.connected() as connection:
        for part in parts:
            connection.sendall(part)
            time.sleep(pause)
        return all_from(connection)


# --- who ---


def test_without_a_token_nothing_is_shown_but_that_it_lives(served: ServedHere) -> None:
    with served.client() as client:
        found = {path: client.get(path).status_code for path in ("/livez", "/v1/stats", "/v1/jobs", "/v1/events")}
        written = client.post(PAUSE, json=REASON)

    assert found == {"/livez": 200, "/v1/stats": 401, "/v1/jobs": 401, "/v1/events": 401}
    assert written.status_code == 401
    assert written.headers["www-authenticate"].startswith("Bearer")


def test_a_scope_lets_do_what_it_covers_and_no_more(served: ServedHere) -> None:
    with (
        served.client(served.token("r", Scope.READ)) as reader,
        served.client(served.token("o", Scope.OPERATE)) as other,
    ):
        found = [reader.get("/v1/stats").status_code, reader.post(PAUSE, json=REASON).status_code]
        done = other.post(PAUSE, json=REASON)

    assert found == [200, 403]
    assert done.status_code == 200


def test_a_token_that_has_expired_or_was_revoked_is_refused_with_the_next_request(served: ServedHere) -> None:
    short, revoked = served.token("short", lifetime_ms=4000), served.token("revoked")
    with served.client(short) as one, served.client(revoked) as other:
        before = [one.get("/v1/stats").status_code, other.get("/v1/stats").status_code]
        served.tokens.revoke("revoked", actor="operator:test")
        at_once = other.get("/v1/stats").status_code
        later = eventually(lambda: one.get("/v1/stats").status_code == 401)

    assert before == [200, 200]
    assert at_once == 401
    assert later


@pytest.mark.parametrize(
    "header", ["", "Bearer", "Basic {}", "Bearer {}x", "Bearer hft_0_0", "Bearer {} {}", "bearer\t{}", "{}"]
)
def test_what_is_not_quite_the_header_is_nobody(served: ServedHere, header: str) -> None:
    token = served.token()
    with served.client() as client:
        answer = client.get("/v1/stats", headers={"Authorization": header.replace("{}", token)})

    assert answer.status_code == 401


def test_two_headers_are_nobodys(served: ServedHere) -> None:
    token = f"Bearer {served.token()}"
    with served.client() as client:
        answer = client.get("/v1/stats", headers=[("Authorization", token), ("Authorization", token)])

    assert answer.status_code == 401


# --- a browser ---


def logged_in(served: ServedHere, client: httpx.Client, token: str, **form: str) -> httpx.Response:
    return client.post("/login", data={"token": token, **form}, headers={"Sec-Fetch-Site": "same-origin"})


def test_a_token_is_changed_for_a_cookie_that_no_script_and_no_other_site_can_use(served: ServedHere) -> None:
    with served.client() as client:
        answer = logged_in(served, client, served.token(scope=Scope.READ))
        cookie = answer.headers["set-cookie"]
        seen = client.get("/v1/stats")
        served.tokens.revoke("tester", actor="operator:test")
        after = client.get("/v1/stats")

    assert answer.status_code == 303
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(cookie.split("; "))
    assert "Secure" not in cookie
    assert seen.status_code == 200
    assert after.status_code == 401


@pytest.mark.parametrize("other", ['seen={"a":1,"b":[2]}', "word", "a b=c", "a@b=1", 'quoted="x', "Ä=ü", "=", ";;"])
def test_cookies_of_other_programs_on_the_host_do_not_log_out(served: ServedHere, other: str) -> None:
    """A browser sends the cookies of one host to all of its ports."""
    with served.client() as client:
        logged_in(served, client, served.token())
        mine = f"holdfast_session={client.cookies['holdfast_session']}"
        found = [
            httpx.get(f"{served.url}/v1/stats", headers=[(b"Cookie", text.encode())]).status_code
            for text in (f"{other}; {mine}", f"{mine}; {other}", f"xholdfast_session=1; {other}")
        ]

    assert found == [200, 200, 401]


def test_a_cookie_given_by_a_proxy_with_tls_is_for_tls_alone(open_engine: OpenEngine) -> None:
    with ServedHere(open_engine(), trust_scheme=True) as served, served.client() as client:
        client.headers["X-Forwarded-Proto"] = "https"
        cookie = logged_in(served, client, served.token()).headers["set-cookie"]

    assert "Secure" in cookie.split("; ")


def test_logging_out_ends_the_session_for_whoever_has_the_cookie(served: ServedHere) -> None:
    with served.client() as client, served.client() as thief:
        logged_in(served, client, served.token())
        thief.cookies.update(client.cookies)
        before = thief.get("/v1/stats").status_code
        out = client.post("/logout", headers={"Sec-Fetch-Site": "same-origin"})
        after = thief.get("/v1/stats").status_code

    assert (before, after) == (200, 401)
    assert out.headers["location"] == "/login"
    assert "Max-Age=0" in out.headers["set-cookie"]


def test_a_link_logs_in_once(served: ServedHere) -> None:
    link = served.tokens.link("operator:alice", Scope.ADMIN)
    with served.client() as client, served.client() as other:
        looked = client.head(f"/login?link={link}")
        first = client.get(f"/login?link={link}")
        second = other.get(f"/login?link={link}")
        seen = client.get("/v1/stats")

    assert "set-cookie" not in looked.headers
    assert (first.status_code, first.headers["location"]) == (303, "/")
    assert second.status_code == 401
    assert seen.status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "//evil.example",
        "https://evil.example",
        "/\\evil.example",
        "\\\\evil",
        "",
        "/a\r\nSet-Cookie: x=1",
        "javascript:x",
    ],
)
def test_nobody_is_sent_to_another_site_after_logging_in(served: ServedHere, path: str) -> None:
    with served.client() as client:
        answer = logged_in(served, client, served.token(), next=path)

    assert answer.headers["location"] == "/"
    assert answer.headers.get_list("set-cookie") == [answer.headers["set-cookie"]]


def test_a_wrong_token_logs_nobody_in(served: ServedHere) -> None:
    with served.client() as client:
        answer = logged_in(served, client, "hft_<script>alert(1)</script>")

    assert answer.status_code == 401
    assert "set-cookie" not in answer.headers
    assert "<script>alert" not in answer.text


OTHER_SITES = [
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://127.0.0.1:1"},
    {"Sec-Fetch-Site": "cross-site", "Origin": "{own}"},
    {},
]


@pytest.mark.parametrize("headers", OTHER_SITES)
def test_a_page_of_another_site_cannot_write_with_a_browsers_cookie(
    served: ServedHere, headers: dict[str, str]
) -> None:
    with served.client() as client:
        logged_in(served, client, served.token())
        found = {name: value.format(own=served.url) for name, value in headers.items()}
        answer = client.post(PAUSE, json=REASON, headers=found)
        queue = client.get("/v1/queues/q")

    assert answer.status_code == 403
    assert answer.json()["code"] == "cross-site"
    assert '"paused_at":null' in queue.text.replace(" ", "")


@pytest.mark.parametrize("headers", [{"Sec-Fetch-Site": "same-origin"}, {"Origin": "{own}"}])
def test_its_own_page_can(served: ServedHere, headers: dict[str, str]) -> None:
    with served.client() as client:
        logged_in(served, client, served.token())
        found = {name: value.format(own=served.url) for name, value in headers.items()}
        answer = client.post(PAUSE, json=REASON, headers=found)

    assert answer.status_code == 200


def test_another_site_cannot_log_somebody_in(served: ServedHere) -> None:
    with served.client() as client:
        data = {"token": served.token()}
        answer = client.post("/login", data=data, headers={"Sec-Fetch-Site": "cross-site"})

    assert answer.status_code == 403
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "localhost@evil.example", "[::1", "0"])
def test_a_name_that_was_made_to_mean_this_machine_is_refused(served: ServedHere, host: str) -> None:
    token = served.token()
    request = f"GET /v1/stats HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n\r\n"

    assert status_of(asked(served, request.encode())) == 421


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:{port}", "[::1]:80", "HOLDFAST.example"])
def test_its_own_names_are_taken(served: ServedHere, host: str) -> None:
    name = host.format(port=served.address[1])
    request = f"GET /livez HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n"

    assert status_of(asked(served, request.encode())) == 200


def test_every_answer_forbids_what_a_browser_may_not_do(served: ServedHere) -> None:
    with served.client(served.token()) as client:
        requests = [
            client.get("/livez"),
            client.get("/"),
            client.get("/login"),
            client.get("/nothing"),
            client.get("/v1/jobs/x"),
            client.put("/v1/stats"),
            client.post(PAUSE, json=REASON, headers={"Sec-Fetch-Site": "cross-site"}),
            client.get("/livez", headers={"Host": "evil.example"}),
        ]
    raw = asked(served, b"\x00\r\n\r\n")

    assert [one.headers["content-security-policy"] for one in requests] == [CONTENT_POLICY] * len(requests)
    assert {one.headers["x-content-type-options"] for one in requests} == {"nosniff"}
    assert "unsafe" not in CONTENT_POLICY
    assert status_of(raw) == 400
    assert b"content-security-policy" in raw.lower()


# --- large and slow ---


def test_a_body_over_the_limit_is_refused_before_it_is_read(served: ServedHere) -> None:
    token = served.token()
    head = f"POST {PAUSE} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"
    by_length = asked(served, f"{head}Content-Length: 999999999\r\n\r\n".encode(), b"x" * 100_000)

    assert status_of(by_length) == 413


def test_a_body_over_the_limit_in_pieces_is_refused_as_soon_as_it_is(served: ServedHere) -> None:
    token = served.token()
    head = f"POST {PAUSE} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"
    piece = b"10000\r\n" + b"x" * 65536 + b"\r\n"
    with served.connected() as connection:
        connection.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        answer, sent = b"", 0
        connection.settimeout(0.01)
        while not answer and sent < 1000:
            try:
                connection.sendall(piece)
                sent += 1
                answer = connection.recv(4096)
            except TimeoutError:
                continue

    assert status_of(answer) == 413
    assert sent < 100


@pytest.mark.parametrize("first", [b"", b"G", b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX-A: "])
def test_a_header_that_does_not_come_is_cut_off(served: ServedHere, first: bytes) -> None:
    with served.connected() as connection:
        connection.sendall(first)
        answer = all_from(connection)

    assert status_of(answer) == 408


def test_a_header_that_trickles_is_cut_off_however_busy_it_looks(served: ServedHere) -> None:
    with served.connected() as connection:
        connection.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n")
        begun = time.monotonic()
        answer = b""
        while not answer and time.monotonic() - begun < 15:
            connection.sendall(b"X-A: b\r\n")
            connection.settimeout(0.1)
            try:
                answer = connection.recv(4096)
            except TimeoutError:
                continue

    assert status_of(answer) == 408


def test_the_header_of_a_further_request_has_its_time_too(served: ServedHere) -> None:
    with served.connected() as connection:
        connection.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
        first = connection.recv(65536)
        connection.sendall(b"GET /livez HTTP/1.1\r\nHost: loc")
        rest = all_from(connection)

    assert status_of(first) == 200
    assert status_of(rest[rest.index(b"HTTP/1.1 4") :]) == 408


def test_a_connection_that_is_idle_is_closed_without_a_word(served: ServedHere) -> None:
    with served.connected() as connection:
        connection.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = all_from(connection)

    assert answer.count(b"HTTP/1.1") == 1


def test_a_body_that_does_not_come_is_cut_off(served: ServedHere) -> None:
    token = served.token()
    head = f"POST {PAUSE} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\nContent-Length: 10\r\n\r\n{{"
    answer = asked(served, head.encode())

    assert status_of(answer) == 408


def test_a_header_over_the_limit_is_refused(served: ServedHere) -> None:
    answer = asked(served, b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX-A: " + b"a" * 100_000)

    assert status_of(answer) == 431


def test_more_connections_than_there_may_be_are_turned_away_and_the_others_served(served: ServedHere) -> None:
    opened = [served.connected() for _ in range(LIMITS.connections)]
    turned_away = asked(served)
    for one in opened:
        one.close()

    def answered() -> bool:
        with served.connected() as connection:
            connection.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            return status_of(all_from(connection)) == 200

    assert status_of(turned_away) == 503
    assert eventually(answered)


# --- paths ---


@pytest.mark.parametrize(
    "target",
    [
        "/static/../../../../etc/passwd",
        "/static/%2e%2e/%2e%2e/etc/passwd",
        "/static/..%2f..%2f..%2fetc%2fpasswd",
        "/static//etc/passwd",
        "/static/%00",
        "/static/....//etc/passwd",
        "/static/.%5c..%5cpage.py",
        "/v1/jobs/..%2f..%2fstats",
        "//v1/stats",
        "/v1/./stats",
        "/v1/stats/",
        "/v1/stats%00",
        "/V1/STATS",
        "http://evil.example/v1/stats",
        "*",
    ],
)
def test_a_path_that_is_not_one_leads_nowhere(served: ServedHere, target: str) -> None:
    headers = f"Host: localhost\r\nAuthorization: Bearer {served.token()}\r\nConnection: close"
    head = f"GET {target} HTTP/1.1\r\n{headers}\r\n\r\n"
    answer = asked(served, head.encode())

    assert status_of(answer) in (400, 404)
    assert b"root:" not in answer


@pytest.mark.parametrize(
    "request_text",
    [
        "POST /v1/queues/q/pause HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        "GET /livez HTTP/1.1\r\n\r\n",
        "POST /livez HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        "POST /livez HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        "GET /livez HTTP/1.1\r\nHost: localhost\r\n folded: x\r\n\r\n",
        "GET /livez HTTP/1.1\r\nHost: localhost\r\nX : y\r\n\r\n",
        "GET / livez HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
)
def test_what_could_be_read_in_two_ways_is_refused(served: ServedHere, request_text: str) -> None:
    answer = asked(served, request_text.encode())

    assert 400 <= status_of(answer) <= 501
    assert answer.count(b"HTTP/1.1 ") == 1


def test_no_answer_waits_for_an_acknowledgement(served: ServedHere) -> None:
    """The header and the body of an answer are two writes: on a connection that is kept the second one would wait."""
    with served.client() as client:
        client.get("/livez")
        [connection] = served.connections
        its_socket = connection.transport.get_extra_info("socket")  # type: ignore[attr-defined]
        is_at_once = its_socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

    assert is_at_once


def test_a_large_answer_that_nobody_reads_is_cut_off(served: ServedHere) -> None:
    """Pipelined requests for the page, and a receiver that takes almost nothing."""
    token = served.token()
    request = f"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n".encode()
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(30)
        connection.connect(served.address)
        connection.sendall(request * 200)
        eventually(lambda: len(served.connections) == 1)
        eventually(lambda: len(served.connections) == 0, within=60)

        assert served.client(token).get("/v1/stats").status_code == 200
