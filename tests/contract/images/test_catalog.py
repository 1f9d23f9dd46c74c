"""What the catalog promises, on every database."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast import Engine, Flow
from holdfast_images.catalog.catalog import Catalog
from holdfast_images.catalog.tables import ActivationStatus, DownloadStatus
from holdfast_images.errors import CatalogConflict, CatalogUnavailable, ImageBusy, ImageError, ImageRefused, NoSpace
from holdfast_images.model import Fingerprint
from tests.support.images.catalog_places import CatalogPlace

FINGERPRINT = Fingerprint(100, 1 << 62, 1_700_000_000_000_000_001, 1_700_000_000_000_000_002)


def store(catalog: Catalog, image_id: str = "img-1", key: str = "images/1.tar", **changes: Any) -> None:
    facts: dict[str, Any] = {"local_path": f"/images/{image_id}.tar", "checksum": "c" * 64, "size_bytes": 1024}
    catalog.store_image_metadata(image_id, key, **{**facts, **changes})


def unpack(catalog: Catalog, image_id: str = "img-1", device: int = 7, **changes: Any) -> None:
    facts: dict[str, Any] = {"device_path": f"/dev/mapper/thin-{device}", "size_bytes": 5000, "file_count": 12}
    catalog.store_unpacked_image(image_id, str(device), f"thin-{device}", **{**facts, **changes})


def activate(
    catalog: Catalog, image_id: str = "img-1", device: int = 7, snapshot: int = 8, name: str = "snap-1"
) -> None:
    catalog.register_snapshot(image_id, str(snapshot), name, f"/dev/mapper/{name}", str(device))


# --- images ---


def test_a_download_that_was_not_recorded_is_not_there(catalog: Catalog) -> None:
    assert catalog.check_image_downloaded("images/1.tar") is None
    assert catalog.get_image_by_id("img-1") is None
    assert catalog.list_images() == []
    assert catalog.get_image_status("images/1.tar") == []


def test_a_recorded_download_is_found_by_key_and_by_id(catalog: Catalog) -> None:
    store(catalog)
    image = catalog.check_image_downloaded("images/1.tar")

    assert image is not None
    assert image == catalog.get_image_by_id("img-1")
    assert (image.local_path, image.checksum, image.size_bytes) == ("/images/img-1.tar", "c" * 64, 1024)
    assert image.download_status is DownloadStatus.COMPLETED
    assert image.activation_status is ActivationStatus.INACTIVE
    assert image.activated_at is None
    assert image.downloaded_at is not None
    assert abs(datetime.now(UTC) - image.downloaded_at) < timedelta(days=1), "it has its time zone"


def test_recording_a_download_again_updates_it(catalog: Catalog) -> None:
    store(catalog)
    store(catalog, checksum="d" * 64, size_bytes=2048, local_path="/elsewhere")
    (image,) = catalog.list_images()

    assert (image.checksum, image.size_bytes, image.local_path) == ("d" * 64, 2048, "/elsewhere")


def test_an_image_id_of_another_key_is_refused_and_nothing_changes(catalog: Catalog) -> None:
    store(catalog)
    before = catalog.list_images()

    with pytest.raises(CatalogConflict, match=r"images/1\.tar"):
        store(catalog, "img-1", "images/2.tar")
    with pytest.raises(CatalogConflict, match="img-1"):
        store(catalog, "img-2", "images/1.tar")
    assert catalog.list_images() == before


def test_images_are_listed_by_status(catalog: Catalog) -> None:
    store(catalog)
    catalog.store_refusal("img-2", "images/2.tar", ImageRefused("X", "x"), policy="strict", etag="e")

    assert [image.image_id for image in catalog.list_images()] == ["img-1", "img-2"]
    assert [image.image_id for image in catalog.list_images("completed")] == ["img-1"]
    assert [image.image_id for image in catalog.list_images("failed")] == ["img-2"]
    assert catalog.check_image_downloaded("images/2.tar") is None


@pytest.mark.parametrize("status", ["active", "failed", "inactive"])
def test_the_activation_status_is_set(catalog: Catalog, status: str) -> None:
    store(catalog)
    catalog.update_image_activation_status("img-1", status)
    image = catalog.get_image_by_id("img-1")

    assert image is not None
    assert image.activation_status == status
    assert (image.activated_at is not None) == (status == "active")


def test_the_activation_status_of_an_unknown_image_cannot_be_set(catalog: Catalog) -> None:
    with pytest.raises(ImageError, match="img-9"):
        catalog.update_image_activation_status("img-9", "active")


@pytest.mark.parametrize(
    "write",
    [
        lambda catalog: store(catalog, "img-3", "images/3.tar", size_bytes=-1),
        lambda catalog: catalog.update_image_activation_status("img-1", "nonsense"),
        lambda catalog: unpack(catalog, size_bytes=-1),
        lambda catalog: unpack(catalog, file_count=-1),
        lambda catalog: unpack(catalog, "img-unknown"),
        lambda catalog: catalog.store_snapshot("img-1", "8", "snap", "/x", "no such device"),
        lambda catalog: catalog.reserve_device_id("img-1", [1 << 24]),
        lambda catalog: catalog.store_verification("img-unknown", "c", FINGERPRINT, policy="strict"),
        lambda catalog: catalog.store_refusal("img-4", "k", ImageRefused("X", "x"), policy="strict"),
    ],
)
def test_what_the_schema_forbids_is_refused_whole(catalog: Catalog, write: Callable[[Catalog], None]) -> None:
    store(catalog)
    before = (catalog.list_images(), catalog.list_unpacked_images(), catalog.list_snapshots())

    with pytest.raises(CatalogConflict):
        write(catalog)
    assert (catalog.list_images(), catalog.list_unpacked_images(), catalog.list_snapshots()) == before


def test_a_deleted_image_takes_what_hangs_on_it_along_but_no_snapshot(catalog: Catalog) -> None:
    store(catalog)
    unpack(catalog)
    activate(catalog)
    catalog.store_verification("img-1", "c" * 64, FINGERPRINT, policy="strict")

    with pytest.raises(CatalogConflict):
        catalog.delete_image("img-1")
    catalog.delete_snapshot("8")
    catalog.delete_image("img-1")
    assert catalog.list_images() == []
    assert catalog.list_unpacked_images() == []
    assert catalog.get_verification("img-1") is None


# --- unpacked images ---


def test_an_unpacked_image_is_found_in_every_way(catalog: Catalog) -> None:
    store(catalog)
    assert catalog.check_image_unpacked("img-1") is None
    unpack(catalog)
    row = catalog.check_image_unpacked("img-1")

    assert row is not None
    assert (row.device_id, row.device_name, row.size_bytes, row.file_count) == ("7", "thin-7", 5000, 12)
    assert row.layout_verified is True
    assert row == catalog.get_unpacked_image_by_id("img-1") == catalog.get_unpacked_image_by_device_id("7")
    assert row == catalog.check_image_unpacked_by_key("images/1.tar")
    assert catalog.list_unpacked_images() == [row]


def test_unpacking_again_to_another_device_replaces_the_row(catalog: Catalog) -> None:
    store(catalog)
    unpack(catalog)
    unpack(catalog, device=9)

    assert [row.device_id for row in catalog.list_unpacked_images()] == ["9"]


def test_a_device_of_another_image_is_refused(catalog: Catalog) -> None:
    store(catalog)
    store(catalog, "img-2", "images/2.tar")
    unpack(catalog)

    with pytest.raises(CatalogConflict):
        unpack(catalog, "img-2", 7)
    assert catalog.get_unpacked_image_by_id("img-2") is None


def test_an_image_with_snapshots_cannot_move_to_another_device_or_be_forgotten(catalog: Catalog) -> None:
    store(catalog)
    unpack(catalog)
    activate(catalog)

    with pytest.raises(CatalogConflict, match="snap-1"):
        unpack(catalog, device=9)
    with pytest.raises(CatalogConflict):
        catalog.delete_unpacked_image("img-1")
    unpack(catalog, file_count=13)
    catalog.delete_snapshot("8")
    catalog.delete_unpacked_image("img-1")
    catalog.delete_unpacked_image("img-1")
    assert catalog.list_unpacked_images() == []


# --- snapshots ---


def test_a_registered_snapshot_makes_its_image_active(catalog: Catalog) -> None:
    store(catalog)
    unpack(catalog)
    assert catalog.check_snapshot_exists("img-1", "snap-1") is None
    activate(catalog)
    row = catalog.check_snapshot_exists("img-1", "snap-1")
    image = catalog.get_image_by_id("img-1")

    assert row is not None
    assert row.active is True
    assert row == catalog.get_snapshot_by_id("8")
    assert catalog.get_snapshots_by_image_id("img-1") == catalog.list_active_snapshots() == [row]
    assert catalog.check_active_snapshots_by_key("images/1.tar") == [row]
    assert image is not None
    assert image.activation_status is ActivationStatus.ACTIVE


def test_storing_a_snapshot_alone_leaves_the_image_as_it_is(catalog: Catalog) -> None:
    store(catalog)
    unpack(catalog)
    catalog.store_snapshot("img-1", "8", "snap-1", "/x", "7")

    assert [violation.rule for violation in catalog.violations()] == [4]
    catalog.update_image_activation_status("img-1", "active")
    assert catalog.violations() == []


def test_the_last_deactivated_snapshot_makes_its_image_inactive(catalog: Catalog) -> None:
    store(catalog)
    unpack(catalog)
    activate(catalog)
    activate(catalog, snapshot=9, name="snap-2")
    catalog.deactivate_snapshot("8")
    between = catalog.get_image_by_id("img-1")
    catalog.deactivate_snapshot("9")
    catalog.deactivate_snapshot("9")
    after = catalog.get_image_by_id("img-1")
    row = catalog.get_snapshot_by_id("9")

    assert between is not None
    assert between.activation_status is ActivationStatus.ACTIVE
    assert after is not None
    assert after.activation_status is ActivationStatus.INACTIVE
    assert row is not None
    assert not row.active
    assert row.deactivated_at is not None
    assert catalog.list_active_snapshots() == []
    assert len(catalog.list_snapshots()) == 2


def test_a_snapshot_is_reactivated_under_its_new_id(catalog: Catalog) -> None:
    store(catalog)
    unpack(catalog)
    activate(catalog)
    catalog.deactivate_snapshot("8")
    activate(catalog, snapshot=10)
    (row,) = catalog.list_snapshots()

    assert (row.snapshot_id, row.active, row.deactivated_at) == ("10", True, None)


def test_a_snapshot_name_of_another_image_is_refused_and_stays_inactive(catalog: Catalog) -> None:
    store(catalog)
    store(catalog, "img-2", "images/2.tar")
    unpack(catalog)
    unpack(catalog, "img-2", 17)
    activate(catalog)
    catalog.deactivate_snapshot("8")

    with pytest.raises(CatalogConflict, match="img-1"):
        activate(catalog, "img-2", 17, 18, "snap-1")
    with pytest.raises(CatalogConflict, match="holds image img-1"):
        activate(catalog, "img-2", 7, 18, "snap-2")
    with pytest.raises(CatalogConflict):
        activate(catalog, "img-2", 17, 8, "snap-3")
    assert catalog.list_active_snapshots() == []
    assert catalog.violations() == []


def test_the_status_of_a_key_has_a_line_per_snapshot(catalog: Catalog) -> None:
    store(catalog)
    (bare,) = catalog.get_image_status("images/1.tar")
    unpack(catalog)
    activate(catalog)
    activate(catalog, snapshot=9, name="snap-2")
    lines = catalog.get_image_status("images/1.tar")

    assert (bare.device_name, bare.snapshot_name, bare.snapshot_active) == (None, None, None)
    assert [(line.device_name, line.snapshot_name, line.snapshot_active) for line in lines] == [
        ("thin-7", "snap-1", True),
        ("thin-7", "snap-2", True),
    ]


def test_each_rule_finds_what_breaks_it(catalog: Catalog, place: CatalogPlace) -> None:
    store(catalog)
    unpack(catalog)
    activate(catalog)
    assert catalog.violations() == []
    place.execute("UPDATE images SET download_status = 'failed'")
    place.execute("UPDATE unpacked_images SET layout_verified = false")
    place.execute("UPDATE images SET activation_status = 'inactive'")

    assert [violation.rule for violation in catalog.violations()] == [2, 3, 4]
    assert all("img-1" in violation.message for violation in catalog.violations())


# --- locks ---


def test_a_lock_has_one_owner_who_may_take_it_again(catalog: Catalog) -> None:
    catalog.acquire_image_lock("img-1", "job-1")
    catalog.acquire_image_lock("img-1", "job-1")

    with pytest.raises(ImageBusy, match=r"img-1 is locked by job-1 for \d+ s"):
        catalog.acquire_image_lock("img-1", "job-2")
    assert catalog.is_image_locked("img-1")
    assert not catalog.is_image_locked("img-2")
    assert [lock.locked_by for lock in catalog.list_image_locks()] == ["job-1"]


def test_a_lock_is_released_by_its_owner_or_by_force(catalog: Catalog) -> None:
    catalog.acquire_image_lock("img-1", "job-1")

    assert not catalog.release_image_lock("img-1", "job-2")
    assert catalog.is_image_locked("img-1")
    assert catalog.release_image_lock("img-1", "job-1")
    assert not catalog.release_image_lock("img-1", "job-1")
    catalog.acquire_image_lock("img-1", "job-2")
    assert catalog.release_image_lock("img-1")
    assert catalog.list_image_locks() == []


def test_a_lock_is_taken_over_only_from_the_owner_that_was_seen(catalog: Catalog) -> None:
    catalog.acquire_image_lock("img-1", "dead")

    assert catalog.take_over_image_lock("img-1", "dead", "heir")
    assert not catalog.take_over_image_lock("img-1", "dead", "second heir")
    assert not catalog.take_over_image_lock("img-2", "dead", "heir")
    lock = catalog.get_image_lock("img-1")
    assert lock is not None
    assert lock.locked_by == "heir"


def test_stale_locks_are_found_and_removed(catalog: Catalog, place: CatalogPlace) -> None:
    catalog.acquire_image_lock("old", "job-1")
    place.execute("UPDATE image_locks SET locked_at = locked_at - 4000")
    catalog.acquire_image_lock("new", "job-2")

    assert [lock.image_id for lock in catalog.find_stale_image_locks()] == ["old"]
    assert catalog.find_stale_image_locks(5000) == []
    assert [lock.age >= 4000 for lock in catalog.remove_stale_image_locks()] == [True]
    assert [lock.image_id for lock in catalog.list_image_locks()] == ["new"]


# --- verdicts ---


def test_a_verification_counts_for_its_content_only(catalog: Catalog) -> None:
    store(catalog)
    assert catalog.get_verification("img-1") is None
    catalog.store_verification(
        "img-1", "c" * 64, FINGERPRINT, policy="distro", warnings='[{"code":"W"}]', origin="s3://bucket/k"
    )
    found = catalog.get_verification("img-1")
    store(catalog, checksum="d" * 64)

    assert found is not None
    assert found.fingerprint == FINGERPRINT
    assert (found.policy, found.warnings, found.origin) == ("distro", '[{"code":"W"}]', "s3://bucket/k")
    assert catalog.get_verification("img-1") is None


def test_what_unpacking_tells_is_noted_for_its_content_only(catalog: Catalog) -> None:
    store(catalog)
    catalog.store_verification("img-1", "c" * 64, FINGERPRINT, policy="strict", warnings="[]")
    catalog.note_warnings("img-1", "c" * 64, '[{"code":"W"}]')
    catalog.note_warnings("img-1", "d" * 64, '[{"code":"other"}]')
    found = catalog.get_verification("img-1")

    assert found is not None
    assert (found.policy, found.warnings) == ("strict", '[{"code":"W"}]')


def test_a_refusal_is_forgotten_for_the_content_that_was_taken_after_all(catalog: Catalog) -> None:
    store(catalog)
    refused = ImageRefused("LAYOUT_NO_ROOTFS", "no rootfs")
    [key] = [image.s3_key for image in catalog.list_images()]
    catalog.store_refusal("img-1", key, refused, policy="strict", checksum="c1")
    catalog.store_refusal("img-1", key, refused, policy="distro", checksum="c1")
    catalog.forget_refusal("img-1", policy="strict", checksum="c2")
    catalog.forget_refusal("img-2", policy="strict", checksum="c1")
    kept = len(catalog.list_refusals())
    catalog.forget_refusal("img-1", policy="strict", checksum="c1")

    assert kept == 2
    assert [row.policy for row in catalog.list_refusals()] == ["distro"]


def test_a_refusal_is_given_again_for_the_same_content_under_the_same_policy(catalog: Catalog) -> None:
    refused = ImageRefused("SETUID", "mode 4755", entry="bin/su", offset=512, hint="--policy distro")
    catalog.store_refusal("img-1", "k", refused, policy="strict", etag="e1", checksum="c1")
    again = catalog.find_refusal("k", policy="strict", etag="e1")

    assert again is not None
    assert (str(again), again.code, again.entry, again.offset, again.hint) == (
        str(refused),
        "SETUID",
        "bin/su",
        512,
        "--policy distro",
    )
    assert catalog.find_refusal("k", policy="strict", checksum="c1") is not None
    assert catalog.find_refusal("k", policy="strict", etag="e2") is None
    assert catalog.find_refusal("k", policy="strict") is None
    assert catalog.find_refusal("k", policy="distro", etag="e1") is None
    assert [row.code for row in catalog.list_refusals()] == ["SETUID"]
    catalog.forget_refusals("k")
    assert catalog.list_refusals() == []


def test_a_refused_update_leaves_the_good_download_good(catalog: Catalog) -> None:
    store(catalog)
    catalog.store_refusal("img-1", "images/1.tar", ImageRefused("X", "x"), policy="strict", etag="e2")

    assert catalog.check_image_downloaded("images/1.tar") is not None


def test_an_image_refused_once_is_completed_when_it_is_accepted(catalog: Catalog) -> None:
    catalog.store_refusal("img-1", "images/1.tar", ImageRefused("X", "x"), policy="strict", etag="e")
    store(catalog)

    assert catalog.check_image_downloaded("images/1.tar") is not None
    assert catalog.list_refusals() == []


# --- reserved ids ---


def test_a_reservation_is_kept_and_shared_by_no_two(catalog: Catalog) -> None:
    assert catalog.reserve_device_id("img-1", [5, 6]) == 5
    assert catalog.reserve_device_id("img-1", [6, 5]) == 5, "what it has already"
    assert catalog.reserve_device_id("img-2", [5, 6]) == 6
    assert catalog.reserve_snapshot_id("img-1", "snap-1", [5, 6, 7]) == 7, "devices and snapshots share ids"
    assert catalog.reserve_snapshot_id("img-1", "snap-1", [8]) == 7
    assert catalog.reserve_snapshot_id("img-1", "snap-2", [7, 8]) == 8
    with pytest.raises(NoSpace):
        catalog.reserve_device_id("img-3", [5, 6, 7, 8])
    with pytest.raises(ImageError):
        catalog.reserve_snapshot_id("img-1", "", [9])
    assert [row.device_id for row in catalog.list_reservations()] == [5, 6, 7, 8]


def test_an_id_under_which_something_else_was_found_is_exchanged(catalog: Catalog) -> None:
    catalog.reserve_device_id("img-1", [5, 6])

    assert catalog.reserve_device_id("img-1", [5, 6], avoiding=[5]) == 6
    assert [row.device_id for row in catalog.list_reservations()] == [6]


def test_an_id_is_given_back_only_by_its_image(catalog: Catalog) -> None:
    catalog.reserve_device_id("img-1", [5])
    catalog.release_reservation("img-2", 5)
    assert catalog.reserve_device_id("img-2", [5, 6]) == 6
    catalog.release_reservation("img-1", 5)

    assert catalog.reserve_device_id("img-3", [5]) == 5


def test_the_name_of_another_images_snapshot_is_refused_by_its_owners_name(catalog: Catalog) -> None:
    catalog.reserve_snapshot_id("first", "vm", [7])
    with pytest.raises(CatalogConflict, match="snapshot vm belongs to image first, not to second"):
        catalog.reserve_snapshot_id("second", "vm", [8])

    assert catalog.reserve_snapshot_id("first", "vm", [9]) == 7


def test_recorded_ids_are_taken_though_they_were_never_reserved(catalog: Catalog) -> None:
    store(catalog)
    unpack(catalog, device=5)
    activate(catalog, device=5, snapshot=6)

    assert catalog.reserve_device_id("img-2", [5, 6, 7]) == 7
    assert catalog.reserve_device_id("img-1", [9]) == 5
    assert catalog.reserve_snapshot_id("img-1", "snap-1", [9]) == 6


# --- the whole ---


def test_a_job_of_the_engine_is_known_until_it_has_ended(catalog: Catalog, place: CatalogPlace) -> None:
    flow = Flow("work", request=dict, response=dict).start("only", lambda run: {})
    with Engine.open(place.url, flows=[flow]) as engine:
        job_id = engine.submit(flow, {}, key="one")
        before = [catalog.has_unfinished_job(*asked) for asked in (("work", "one"), ("work", "two"), ("play", "one"))]
        engine.cancel(job_id, reason="enough")

        assert before == [True, False, False]
        assert not catalog.has_unfinished_job("work", "one")


def test_a_closed_catalog_does_not_answer(place: CatalogPlace) -> None:
    catalog = Catalog.open(place.url)
    catalog.ping()
    catalog.close()

    with pytest.raises(CatalogUnavailable):
        catalog.ping()


# --- new content ---


def stage(catalog: Catalog, checksum: str = "d" * 64) -> None:
    catalog.store_update("img-1", checksum, FINGERPRINT, policy="distro", origin="s3://b/k", etag='"e"')


def test_new_content_is_recorded_beside_the_old(catalog: Catalog) -> None:
    store(catalog)
    before = catalog.list_images()
    stage(catalog, "e" * 64)
    stage(catalog)
    update = catalog.get_update("img-1")

    assert update is not None
    assert (update.checksum, update.policy, update.origin, update.etag) == ("d" * 64, "distro", "s3://b/k", '"e"')
    assert update.fingerprint == FINGERPRINT
    assert catalog.list_updates() == [update]
    assert catalog.list_images() == before
    assert catalog.get_verification("img-1") is None


def test_new_content_takes_the_place_of_the_old_with_its_verdict(catalog: Catalog) -> None:
    store(catalog)
    stage(catalog)
    catalog.use_update("img-1", "/images/new.tar")
    [image] = catalog.list_images()
    known = catalog.get_verification("img-1")

    assert (image.checksum, image.size_bytes, image.local_path) == ("d" * 64, 100, "/images/new.tar")
    assert known is not None
    assert (known.policy, known.origin, known.etag) == ("distro", "s3://b/k", '"e"')
    assert known.asked_at is not None
    assert catalog.list_updates() == []
    catalog.use_update("img-1", "/elsewhere")
    assert catalog.list_images() == [image]


def test_new_content_is_forgotten_by_its_checksum_or_with_its_image(catalog: Catalog) -> None:
    store(catalog)
    stage(catalog)
    catalog.drop_update("img-1", "e" * 64)
    assert catalog.get_update("img-1") is not None
    catalog.drop_update("img-1", "d" * 64)
    assert catalog.get_update("img-1") is None
    stage(catalog)
    catalog.delete_image("img-1")
    assert catalog.list_updates() == []


def test_what_the_source_said_is_kept_when_the_file_is_read_again(catalog: Catalog) -> None:
    store(catalog)
    catalog.store_verification("img-1", "c" * 64, FINGERPRINT, policy="strict", origin="o", etag='"1"')
    other = Fingerprint(1, 2, 3, 4)
    catalog.note_fingerprint("img-1", other)
    catalog.note_source("img-1", origin="o2", etag='"2"')
    known = catalog.get_verification("img-1")

    assert known is not None
    assert (known.fingerprint, known.origin, known.etag, known.policy) == (other, "o2", '"2"', "strict")


def test_an_image_gets_the_first_key_that_is_free(catalog: Catalog) -> None:
    store(catalog, "img-1", "a")
    store(catalog, "img-2", "b")

    assert catalog.free_key("img-1", ["x", "a"]) == "a"
    assert catalog.free_key("img-3", ["a", "b", "c"]) == "c"
    assert catalog.free_key("img-3", ["a", "b"]) == "b"
    assert catalog.free_key("img-3", ["new", "a"]) == "new"


def test_a_refused_object_does_not_keep_its_image_id(catalog: Catalog) -> None:
    catalog.mark_failed("img-1", "refused")
    store(catalog, "img-1", "taken")

    assert [(row.s3_key, row.download_status) for row in catalog.list_images()] == [("taken", "completed")]


def test_a_device_that_was_made_beside_another_takes_its_id(catalog: Catalog) -> None:
    old = catalog.reserve_device_id("img-1", [1, 2, 3])
    new = catalog.reserve_device_id("img-1", [1, 2, 3], beside="u")
    assert catalog.reserve_device_id("img-1", [1, 2, 3], beside="u") == new
    catalog.replace_device_id("img-1", new, "u")
    names = {row.device_id: row.snapshot_name for row in catalog.list_reservations()}

    assert names == {old: f"/old/{old}", new: ""}
    assert catalog.reserve_device_id("img-1", [1, 2, 3]) == new
    catalog.replace_device_id("img-1", new, "u")
    assert {row.device_id: row.snapshot_name for row in catalog.list_reservations()} == names


def test_paths_are_recorded_again(catalog: Catalog) -> None:
    store(catalog)
    unpack(catalog)
    activate(catalog)
    catalog.set_local_path("img-1", "/a")
    catalog.set_device_path("img-1", "/b")
    catalog.set_snapshot_path("snap-1", "/c")
    row, snapshot = catalog.get_unpacked_image_by_id("img-1"), catalog.get_snapshot_by_name("snap-1")

    assert catalog.list_images()[0].local_path == "/a"
    assert row is not None
    assert snapshot is not None
    assert (row.device_path, snapshot.device_path) == ("/b", "/c")


@pytest.mark.parametrize("is_active", [True, False])
def test_activations_are_settled_both_ways(catalog: Catalog, is_active: bool) -> None:
    store(catalog)
    unpack(catalog)
    if is_active:
        activate(catalog)
    catalog.update_image_activation_status("img-1", "inactive" if is_active else "active")
    assert [each.rule for each in catalog.violations()] == [4]

    assert catalog.settle_activations() == ["img-1"]
    assert catalog.violations() == []
    assert catalog.settle_activations() == []


def test_what_is_whole_is_marked_so(catalog: Catalog, place: CatalogPlace) -> None:
    store(catalog)
    unpack(catalog)
    catalog.mark_unpacked_unverified("img-1")
    place.execute("UPDATE images SET download_status = 'failed'")
    catalog.mark_completed("img-1")
    catalog.mark_unpacked_verified("img-1")
    row = catalog.get_unpacked_image_by_id("img-1")

    assert row is not None
    assert row.layout_verified
    assert [image.download_status for image in catalog.list_images()] == ["completed"]
    assert catalog.unreadable() == []


def test_each_catalog_has_an_id_that_stays(catalog: Catalog, place: CatalogPlace) -> None:
    with Catalog.open(place.url) as again:
        assert again.store_id() == catalog.store_id()
    assert len(catalog.store_id()) == 32
