"""Images over HTTP, in process, on both stores: every use case, and who may name what."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from holdfast_images import ImageManager, Settings
from tests.acceptance.images.driving import HONEST, HOSTILE, Gate
from tests.support.backends import Backend as Home
from tests.support.images.http_images import ImageApi

both_stores = pytest.mark.parametrize("home", ["sqlite", "postgres"], indirect=True)
WAIT = {"Prefer": "wait=60"}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(data=str(tmp_path / "data"), host="alpha", api_sources=f"file://{tmp_path}/allowed/")


@pytest.fixture
def api(home: Home, settings: Settings) -> Iterator[ImageApi]:
    api = ImageApi(home.place, settings)
    yield api
    api.close()


def source_of(tmp_path: Path, content: bytes = HONEST, name: str = "image.tar", folder: str = "allowed") -> str:
    path = tmp_path / folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    return f"file://{path}"


def process(api: ImageApi, source: str, image_id: str = "demo", scope: str = "submit") -> None:
    api.done("POST", "/v1/images", json={"source": source, "image_id": image_id}, scope=scope)


# --- processing ------------------------------------------------------------------------------------------------


@both_stores
def test_an_image_is_processed_once_and_found_then(api: ImageApi, tmp_path: Path) -> None:
    wish = {"source": source_of(tmp_path), "image_id": "demo"}
    begun = api.ask("POST", "/v1/images", json=wish, scope="submit")
    again = api.ask("POST", "/v1/images", json=wish, scope="submit")
    waiting = api.get("/v1/images/demo")
    with api.worker():
        done = api.ask("POST", "/v1/images", json=wish, scope="submit", headers=WAIT)
    found = api.ask("POST", "/v1/images", json=wish, scope="submit")
    job = api.get(begun.headers["Location"])

    assert (begun.status_code, begun.json()["has_worker"]) == (202, False)
    assert begun.headers["Location"] == f"/v1/jobs/{begun.json()['job_id']}"
    assert again.json()["job_id"] == begun.json()["job_id"] == done.json()["job_id"]
    assert (waiting["image"], waiting["hosts"][0]["status"]) == (None, "waiting")
    assert (done.status_code, done.headers["Preference-Applied"]) == (200, "wait=60")
    assert done.json()["done"]["checksum"] == hashlib.sha256(HONEST).hexdigest()
    assert (found.status_code, found.json()["job_id"]) == (200, None)
    assert found.json()["done"]["snapshot_path"] == done.json()["done"]["snapshot_path"]
    assert job["job"]["state"] == "succeeded"
    assert {entry.actor for entry in api.images.engine.journal(begun.json()["job_id"])} >= {"alice"}


@both_stores
def test_what_ends_an_image_badly_is_the_problem(api: ImageApi, tmp_path: Path) -> None:
    hostile = {"source": source_of(tmp_path, HOSTILE), "image_id": "hostile"}
    with api.worker():
        refused = api.ask("POST", "/v1/images", json=hostile, headers=WAIT)
        missing = {"source": f"file://{tmp_path}/allowed/nothing.tar"}
        not_found = api.problem("POST", "/v1/images", json=missing, headers=WAIT)
    rows = {row["image_id"]: row for row in api.get("/v1/images")["rows"]}

    assert (refused.status_code, refused.json()["code"]) == (422, "image-refused")
    assert refused.json()["facts"]["code"] == "ABSOLUTE_SYMLINK"
    assert not_found == (404, "object-not-found")
    assert (rows["hostile"]["status"], rows["hostile"]["state"], rows["hostile"]["step"]) == (
        "refused",
        "failed",
        "validate",
    )
    assert "ABSOLUTE_SYMLINK" in rows["hostile"]["says"]


def test_an_image_that_is_on_its_way_shows_its_step_and_bytes(api: ImageApi) -> None:
    gate = Gate()
    with gate.server.running(), api.worker():
        begun = api.ask("POST", "/v1/images", json={"source": gate.url, "image_id": "slow"})
        gate.asked.wait(30)
        row = api.get("/v1/images", params={"text": "slo"})["rows"][0]
        detail = api.get("/v1/images/slow")
        gate.open()
        done = api.done("POST", "/v1/images", json={"source": gate.url, "image_id": "slow"})
    after = api.get("/v1/images/slow")

    assert begun.status_code == 202
    assert (row["status"], row["step"], row["number"], row["steps"]) == ("downloading", "download", 2, 12)
    assert (detail["stages"][0]["stage"], detail["stages"][0]["state"]) == ("download", "running")
    assert detail["jobs"][0]["state"] == "running"
    assert done["size_bytes"] == len(HONEST)
    assert [stage["state"] for stage in after["stages"]] == ["succeeded"] * 3
    assert (after["hosts"][0]["status"], after["hosts"][0]["number"]) == ("ready", 12)


# --- snapshots and removal -------------------------------------------------------------------------------------


@both_stores
def test_snapshots_are_made_taken_out_of_use_brought_back_and_removed(api: ImageApi, tmp_path: Path) -> None:
    with api.worker():
        process(api, source_of(tmp_path))
        made = api.done("POST", "/v1/images/demo/snapshots", json={"name": "second#1"}, scope="submit")
        again = api.done("POST", "/v1/images/demo/snapshots", json={"name": "second#1"})
        out = api.done("POST", "/v1/snapshots/second%231/deactivate")
        active = [row["snapshot_name"] for row in api.get("/v1/snapshots?active=true")["rows"]]
        back = api.done("POST", "/v1/snapshots/second%231/activate")
        gone = api.done("DELETE", "/v1/snapshots/second%231")
    left = [row["snapshot_name"] for row in api.get("/v1/snapshots?image_id=demo")["rows"]]

    assert (made["created"], again["created"], out["deactivated"]) == (True, False, True)
    assert "second#1" in Path(made["snapshot_path"]).parts
    assert active == ["snap-demo"]
    assert (back["snapshot_name"], gone["snapshot_name"]) == ("second#1", "second#1")
    assert left == ["snap-demo"]


@both_stores
def test_an_image_is_removed_with_its_snapshots_only_by_force(api: ImageApi, tmp_path: Path) -> None:
    with api.worker():
        process(api, source_of(tmp_path))
        refused = api.problem("DELETE", "/v1/images/demo", headers=WAIT)
        removed = api.done("DELETE", "/v1/images/demo?force=true")
    rows = api.get("/v1/images")["rows"]

    assert refused == (409, "catalog-conflict")
    assert (removed["image_id"], removed["snapshots"]) == ("demo", ["snap-demo"])
    assert [row for row in rows if row["image_id"] == "demo"] == []


def test_a_list_goes_on_behind_its_last_row(api: ImageApi, tmp_path: Path) -> None:
    with api.worker():
        for number in range(5):
            process(api, source_of(tmp_path, name=f"{number}.tar"), f"image-{number}")
    first = api.ask("GET", "/v1/images?limit=2")
    second = api.get(f"/v1/images?limit=2&after={first.json()['next']}")
    third = api.get(f"/v1/images?limit=2&after={second['next']}")
    pages = [[row["image_id"] for row in page["rows"]] for page in (first.json(), second, third)]

    assert pages == [["image-4", "image-3"], ["image-2", "image-1"], ["image-0"]]
    assert third["next"] is None
    assert f'after={first.json()["next"]}>; rel="next"' in first.headers["Link"]
    assert api.problem("GET", "/v1/images?after=f1;drop") == (400, "invalid-parameter")


# --- who may name what -----------------------------------------------------------------------------------------

FORBIDDEN = [
    "file:///etc/passwd",
    "file://{directory}/allowed/../secret/image.tar",
    "file://{directory}/allowed/%2e%2e/secret/image.tar",
    "http://127.0.0.1:1/image.tar",
    "https://169.254.169.254/latest/meta-data/",
    "s3://somebodys-bucket/image.tar",
]


@pytest.mark.parametrize("source", FORBIDDEN)
@pytest.mark.parametrize("scope", ["submit", "operate"])
def test_who_is_no_admin_names_no_source_that_was_not_allowed(
    api: ImageApi, tmp_path: Path, source: str, scope: str
) -> None:
    source_of(tmp_path, folder="secret")
    wish = {"source": source.format(directory=tmp_path)}
    processed = api.problem("POST", "/v1/images", json=wish, scope=scope)
    inspected = api.problem("POST", "/v1/image-inspections", json=wish, scope=scope)

    assert processed == (403, "source-refused")
    assert inspected == (403, "source-refused" if scope == "operate" else "forbidden")
    assert api.get("/v1/jobs")["rows"] == []


@pytest.mark.parametrize("flow", ["process-image", "download-image", "unpack-image", "remove-image"])
def test_no_flow_of_images_is_submitted_past_these_routes(home: Home, tmp_path: Path, flow: str) -> None:
    api = ImageApi(home.place, Settings(data=str(tmp_path / "data")))
    location = {"type": "file", "path": "/etc/passwd"}
    wish = {
        "request": {
            "image_id": "demo",
            "s3_key": "k",
            "location": location,
            "local_path": "/etc/passwd",
            "checksum": "",
        }
    }
    found = [api.problem("POST", f"/v1/flows/{flow}/jobs", json=wish, scope=scope) for scope in ("submit", "admin")]
    described = api.get("/openapi.json")["paths"]
    api.close()

    assert found == [(403, "reserved-flow")] * 2
    assert f"/v1/flows/{flow}/jobs" not in described


def test_a_path_of_the_server_is_no_source_for_anybody(api: ImageApi, tmp_path: Path) -> None:
    source_of(tmp_path)
    for source in (f"{tmp_path}/allowed/image.tar", "/etc/passwd", "", "ftp://host/x"):
        for path in ("/v1/images", "/v1/image-inspections"):
            assert api.problem("POST", path, json={"source": source})[0] == 400


def test_an_admin_may_name_any_file(api: ImageApi, tmp_path: Path) -> None:
    with api.worker():
        process(api, source_of(tmp_path, folder="secret"), scope="admin")

    assert api.get("/v1/images/demo")["image"]["download_status"] == "completed"


def test_the_bucket_of_the_server_is_for_everybody_who_may_submit(home: Home, settings: Settings) -> None:
    api = ImageApi(home.place, msgspec.structs.replace(settings, bucket="golden", endpoint="http://127.0.0.1:1"))
    by_key = api.ask("POST", "/v1/images", json={"key": "debian.tar"}, scope="submit")
    by_url = api.ask("POST", "/v1/images", json={"source": "s3://golden/debian.tar"}, scope="submit")
    other = api.problem("POST", "/v1/images", json={"source": "s3://other/debian.tar"}, scope="submit")
    climbing = api.problem("POST", "/v1/images", json={"key": "../debian.tar"}, scope="submit")
    api.close()

    assert by_key.status_code == by_url.status_code == 202
    assert by_key.json()["job_id"] == by_url.json()["job_id"]
    assert other == (403, "source-refused")
    assert climbing == (400, "invalid-name")


@pytest.mark.parametrize(
    "method, path, scope",
    [
        ("POST", "/v1/images", "read"),
        ("POST", "/v1/images/demo/snapshots", "read"),
        ("DELETE", "/v1/images/demo", "submit"),
        ("POST", "/v1/snapshots/snap-demo/activate", "submit"),
        ("POST", "/v1/snapshots/snap-demo/deactivate", "submit"),
        ("DELETE", "/v1/snapshots/snap-demo", "submit"),
        ("POST", "/v1/image-inspections", "submit"),
        ("POST", "/v1/images/demo/verify", "submit"),
        ("POST", "/v1/image-verification", "submit"),
        ("GET", "/v1/image-gc", "submit"),
        ("POST", "/v1/image-gc", "submit"),
        ("POST", "/v1/image-locks/demo/release", "submit"),
        ("POST", "/v1/image-pool/extend", "operate"),
    ],
)
def test_a_scope_that_is_too_small_is_refused(api: ImageApi, method: str, path: str, scope: str) -> None:
    assert api.problem(method, path, scope=scope) == (403, "forbidden")
    assert api.ask(method, path, scope="", headers={"X-Scope": ""}).status_code == 401


@pytest.mark.parametrize("name", ["..", "%2e%2e%2fetc", "a%00b", "%1b%5b31m", "<script>", "x" * 200, "caf%C3%A9"])
def test_what_cannot_name_an_image_or_a_snapshot_touches_nothing(api: ImageApi, name: str) -> None:
    found = [
        api.ask("GET", f"/v1/images/{name}"),
        api.ask("DELETE", f"/v1/images/{name}"),
        api.ask("POST", f"/v1/images/{name}/snapshots", json={"name": name}),
        api.ask("POST", f"/v1/snapshots/{name}/activate"),
        api.ask("DELETE", f"/v1/snapshots/{name}"),
    ]

    assert {answer.status_code for answer in found} <= {400, 404, 405, 422}
    assert not any("\x1b" in answer.text or "\0" in answer.text for answer in found)
    assert api.get("/v1/jobs")["rows"] == []


# --- maintenance ------------------------------------------------------------------------------------------------------


@both_stores
def test_archives_are_inspected_and_images_verified(api: ImageApi, tmp_path: Path) -> None:
    wish = {"source": source_of(tmp_path, HOSTILE)}
    inspected = api.ask("POST", "/v1/image-inspections", json=wish, scope="operate").json()
    with api.worker():
        process(api, source_of(tmp_path))
    sound = api.ask("POST", "/v1/images/demo/verify", json={"deep": True}, scope="operate").json()
    path = Path(api.get("/v1/images/demo")["image"]["local_path"])
    path.write_bytes(b"?" + path.read_bytes()[1:])
    found = api.ask("POST", "/v1/images/demo/verify", json={"deep": True}, scope="operate").json()
    everything = api.ask("POST", "/v1/image-verification", scope="operate").json()

    assert (inspected["report"]["acceptable"], inspected["fetched_bytes"]) == (False, None)
    assert "PATH_TRAVERSAL" in {each["code"] for each in inspected["report"]["findings"]}
    assert sound == {"findings": []}
    assert len(found["findings"]) >= 1
    assert isinstance(everything["findings"], list)


def test_an_inspection_ends_at_its_limits(api: ImageApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast_images.web.maintenance.INSPECT_BYTES", 1000)
    monkeypatch.setattr("holdfast_images.web.maintenance.INSPECT_SECONDS", 0.5)
    gate = Gate()
    with gate.server.running():
        waited = api.problem("POST", "/v1/image-inspections", json={"source": gate.url})
        gate.open()
        too_large = api.ask("POST", "/v1/image-inspections", json={"source": gate.url})

    assert waited == (422, "extraction-timed-out")
    assert (too_large.status_code, too_large.json()["facts"]["code"]) == (422, "IMAGE_TOO_LARGE")


def test_what_is_too_large_to_be_read_at_once_is_left_to_the_host(
    api: ImageApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with api.worker():
        process(api, source_of(tmp_path))
    monkeypatch.setattr("holdfast_images.web.maintenance.DEEP_BYTES", 1000)
    deep = api.ask("POST", "/v1/images/demo/verify", json={"deep": True})
    shallow = api.ask("POST", "/v1/images/demo/verify", json={})

    assert (deep.status_code, deep.json()["code"]) == (422, "too-large")
    assert "holdfast image verify demo --deep" in deep.json()["hint"]
    assert shallow.json() == {"findings": []}


@both_stores
def test_many_requests_at_once_share_what_is_open(api: ImageApi, tmp_path: Path) -> None:
    with api.worker():
        process(api, source_of(tmp_path))
    paths = ["/v1/images", "/v1/images/demo", "/v1/snapshots", "/v1/image-locks", "/v1/image-counts", "/v1/image-room"]
    answers = api.ask_at_once(*paths * 8)

    assert {answer.status_code for answer in answers} == {200}
    assert {answer.text for answer in answers[:: len(paths)]} == {answers[0].text}


@both_stores
def test_leftovers_go_by_the_plan_that_was_looked_at(api: ImageApi, tmp_path: Path, settings: Settings) -> None:
    with api.worker():
        process(api, source_of(tmp_path))
    data = Path(settings.data or "")
    (data / "images" / "lost.tar").write_bytes(b"x" * 1000)
    plan = api.ask("GET", "/v1/image-gc", scope="operate")
    unconditional = api.problem("POST", "/v1/image-gc", scope="operate")
    (data / "images" / "later.tar").write_bytes(b"x" * 10)
    moved_on = api.problem("POST", "/v1/image-gc", headers={"If-Match": plan.headers["ETag"]})
    now = api.ask("GET", "/v1/image-gc", scope="operate")
    done = api.ask("POST", "/v1/image-gc", headers={"If-Match": now.headers["ETag"]}, scope="operate").json()

    assert [action["kind"] for action in plan.json()["actions"]] == ["file"]
    assert plan.json()["bytes"] == 1000
    assert unconditional == (428, "precondition-required")
    assert moved_on == (412, "plan-changed")
    assert sorted(action["bytes"] for action in done["removed"]) == [10, 1000]
    assert sorted(path.name for path in (data / "images").iterdir()) == ["demo.tar"]


@both_stores
def test_a_lock_is_listed_and_released(api: ImageApi, tmp_path: Path) -> None:
    with api.worker():
        process(api, source_of(tmp_path))
    api.images.prepare()
    api.images._host.catalog.acquire_image_lock("demo", "somebody")
    held = api.get("/v1/image-locks")["locks"]
    released = api.ask("POST", "/v1/image-locks/demo/release", json={}, scope="operate")
    again = api.problem("POST", "/v1/image-locks/demo/release", json={}, scope="operate")

    assert [(lock["image_id"], lock["locked_by"], lock["state"]) for lock in held] == [("demo", "somebody", None)]
    assert released.json()["locked_by"] == "somebody"
    assert again == (404, "unknown-image")
    assert api.get("/v1/image-locks") == {"locks": []}


def test_without_a_pool_the_pool_is_not_usable(api: ImageApi) -> None:
    assert api.problem("GET", "/v1/image-pool") == (409, "pool-unusable")
    assert api.problem("POST", "/v1/image-pool/extend", json={}) == (409, "pool-unusable")


# --- a fleet -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("home", ["postgres"], indirect=True)
def test_a_fleet_is_listed_as_a_whole_and_worked_on_at_home(
    api: ImageApi, home: Home, settings: Settings, tmp_path: Path
) -> None:
    with api.worker():
        process(api, source_of(tmp_path), "both")
    there = msgspec.structs.replace(settings, host="beta", data=str(tmp_path / "beta"))
    with ImageManager.open(home.place, there) as other:
        other.process(other.request(source_of(tmp_path), image_id="both"))
        other.process(other.request(source_of(tmp_path, name="far.tar"), image_id="far", snapshot_name="far-1"))
    rows = api.get("/v1/images")["rows"]
    of_beta = api.get("/v1/images?host=beta")["rows"]
    detail = api.get("/v1/images/far")
    elsewhere = api.ask("DELETE", "/v1/images/far?force=true")
    snapshot = api.problem("POST", "/v1/snapshots/far-1/deactivate")
    hosts = api.get("/v1/image-hosts")

    assert {(row["host"], row["image_id"], row["status"]) for row in rows} == {
        ("alpha", "both", "ready"),
        ("beta", "both", "ready"),
        ("beta", "far", "ready"),
    }
    assert {row["image_id"] for row in of_beta} == {"both", "far"}
    assert (detail["image"], [row["host"] for row in detail["hosts"]]) == (None, ["beta"])
    assert (elsewhere.status_code, elsewhere.json()["code"]) == (409, "image-elsewhere")
    assert elsewhere.json()["facts"]["hosts"] == ["beta"]
    assert "server that runs there" in elsewhere.json()["hint"]
    assert snapshot == (409, "image-elsewhere")
    assert [(each["host"], each["is_this"]) for each in hosts] == [("alpha", True), ("beta", False)]
