"""What can go and what stays: the plan of gc, without a disk or a database."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from holdfast import Finding, Severity
from holdfast_images.catalog.tables import (
    ActivationStatus,
    DownloadStatus,
    Image,
    ImageLock,
    ImageRefusal,
    Reservation,
    Snapshot,
    UnpackedImage,
)
from holdfast_images.devices.protocol import DeviceKind, Found, Health
from holdfast_images.facts import Facts, File, Work
from holdfast_images.gc import DAY, Leftover, plan

NOW = datetime(2024, 5, 1, tzinfo=UTC)
AT = NOW.timestamp()


def image(image_id: str = "a", status: str = "completed") -> Image:
    return Image(
        id=1,
        image_id=image_id,
        s3_key=f"{image_id}.tar",
        local_path=f"/images/{image_id}.tar",
        checksum="0" * 64,
        size_bytes=1,
        download_status=DownloadStatus(status),
        activation_status=ActivationStatus.INACTIVE,
        created_at=NOW,
        downloaded_at=NOW,
        activated_at=None,
        updated_at=NOW,
    )


def unpacked(image_id: str = "a", device_id: int = 7) -> UnpackedImage:
    return UnpackedImage(
        id=1,
        image_id=image_id,
        device_id=str(device_id),
        device_name=f"thin-{device_id}",
        device_path="/",
        size_bytes=1,
        file_count=1,
        layout_verified=True,
        created_at=NOW,
        unpacked_at=NOW,
        updated_at=NOW,
    )


def snapshot(name: str = "snap-a", snapshot_id: int = 8) -> Snapshot:
    return Snapshot(
        id=1,
        image_id="a",
        snapshot_id=str(snapshot_id),
        snapshot_name=name,
        device_path="/",
        origin_device_id="7",
        active=True,
        created_at=NOW,
        deactivated_at=None,
        updated_at=NOW,
    )


def device(number: int = 7, **fields: object) -> Found:
    given = {"name": f"thin-{number}", "health": Health.HEALTHY, "id": number, "uuid": "u", "kind": DeviceKind.DEVICE}
    return Found(**{**given, **fields})  # type: ignore[arg-type]


def taken(name: str = "snap-a", number: int = 8, **fields: object) -> Found:
    return device(number, **{"name": name, "kind": DeviceKind.SNAPSHOT, **fields})


def reserved(number: int, image_id: str = "a", name: str = "") -> Reservation:
    return Reservation(device_id=number, image_id=image_id, snapshot_name=name, reserved_at=NOW)


def lock(owner: str, age: int = 0) -> ImageLock:
    return ImageLock(image_id="a", locked_at=0, locked_by=owner, age=age)


def planned(**facts: object) -> list[tuple[Leftover, str]]:
    return [(action.kind, action.subject) for action in plan(Facts(now=AT, **facts))]  # type: ignore[arg-type]


def test_nothing_is_left_over_where_everything_is_recorded() -> None:
    assert (
        planned(
            files=(File(name="a.tar", size=1),),
            found=(device(), taken()),
            images=(image(),),
            unpacked=(unpacked(),),
            snapshots=(snapshot(),),
            reservations=(reserved(7), reserved(8, name="snap-a")),
        )
        == []
    )


# --- files ----------------------------------------------------------------------------------------------------


def test_a_file_that_no_row_and_no_job_knows_goes() -> None:
    assert planned(files=(File(name="a.tar", size=1),)) == [(Leftover.FILE, "a.tar")]
    assert planned(files=(File(name="a.tar", size=1),), images=(image(status="failed"),)) == [(Leftover.FILE, "a.tar")]


def test_the_file_of_an_image_that_was_unpacked_stays_whatever_its_row_says() -> None:
    files, found = (File(name="a.tar", size=1),), Found(name="thin-7", health=Health.HEALTHY, id=7)

    assert planned(files=files, images=(image(status="failed"),), unpacked=(unpacked(),), found=(found,)) == []


def test_the_file_of_an_unfinished_job_stays() -> None:
    assert planned(files=(File(name="a.tar", size=1),), work=(Work(job_id="j", image_id="a"),)) == []


@pytest.mark.parametrize("name", ["notes.txt", "a b.tar", ".hidden", "..tar", "tar"])
def test_what_is_not_named_like_an_image_is_somebody_elses(name: str) -> None:
    assert planned(files=(File(name=name, size=1),)) == []


def test_a_partial_file_goes_when_its_writer_is_gone() -> None:
    name = ".a.tar.0123.partial"

    assert planned(files=(File(name=name, size=1),)) == [(Leftover.PARTIAL, name)]
    assert planned(files=(File(name=name, size=1, is_written=True),)) == []


# --- devices and snapshots ------------------------------------------------------------------------------------


def test_an_orphan_device_goes_and_so_does_an_orphan_snapshot() -> None:
    assert planned(found=(device(), taken())) == [(Leftover.DEVICE, "thin-7"), (Leftover.SNAPSHOT, "snap-a")]


def test_what_the_backend_collects_goes_and_its_other_disagreements_stay() -> None:
    told = [("leftover", ".making-thin-9"), ("abandoned-mount", "/m"), ("unknown-id", "id 3")]
    disagreements = tuple(
        Finding(code=code, severity=Severity.ERROR, subject=subject, message="left: holdfast gc")
        for code, subject in told
    )

    assert planned(disagreements=disagreements) == [(Leftover.REMAINS, ".making-thin-9"), (Leftover.REMAINS, "/m")]


def test_what_is_busy_stays() -> None:
    assert planned(found=(device(busy=True), taken(busy=True))) == []


def test_a_device_of_an_unfinished_job_stays_by_its_reservation() -> None:
    work = (Work(job_id="j", image_id="a"),)

    assert planned(found=(device(),), reservations=(reserved(7),), work=work) == []
    assert planned(found=(device(),), reservations=(reserved(7, "b"),), work=work) == [(Leftover.DEVICE, "thin-7")]


def test_a_half_made_device_that_cannot_say_its_id_is_known_by_its_name() -> None:
    half = device(health=Health.HALF_MADE, id=None, uuid=None, kind=None)
    work = (Work(job_id="j", image_id="a"),)

    assert planned(found=(half,), reservations=(reserved(7),), work=work) == []
    assert planned(found=(half,)) == [(Leftover.DEVICE, "thin-7")]


def test_a_half_made_device_is_removed_under_the_id_that_was_reserved_for_it() -> None:
    half = device(health=Health.HALF_MADE, id=None, uuid=None, kind=None)
    [reserved_action] = plan(Facts(now=AT, found=(half,), reservations=(reserved(7),)))
    [unknown_action] = plan(Facts(now=AT, found=(half,)))

    assert reserved_action.device_id == 7
    assert unknown_action.device_id is None


def test_a_snapshot_that_is_being_deactivated_stays() -> None:
    assert planned(found=(taken(),), work=(Work(job_id="j", snapshot_name="snap-a"),)) == []


def test_a_half_made_snapshot_is_known_by_the_name_it_was_reserved_for() -> None:
    half = taken(health=Health.HALF_MADE, id=None, uuid=None, kind=None)
    work = (Work(job_id="j", image_id="a"),)

    assert planned(found=(half,), reservations=(reserved(8, name="snap-a"),), work=work) == []


# --- reservations, locks, refusals ----------------------------------------------------------------------------


def test_a_reservation_goes_when_nothing_has_the_id_and_nobody_will_make_it() -> None:
    assert planned(reservations=(reserved(7),)) == [(Leftover.RESERVATION, "7")]
    assert planned(reservations=(reserved(7),), work=(Work(job_id="j", image_id="a"),)) == []


def test_the_lock_of_a_job_goes_with_its_job_however_young_it_is() -> None:
    assert planned(locks=(lock("job:j"),), finished=frozenset({"j"})) == [(Leftover.LOCK, "job:j")]
    assert planned(locks=(lock("job:j", age=10**6),)) == []


def test_the_lock_of_nobody_known_goes_after_an_hour() -> None:
    assert planned(locks=(lock("alice", age=3600),)) == []
    assert planned(locks=(lock("alice", age=3601),)) == [(Leftover.LOCK, "alice")]


def test_refusals_go_only_when_asked_for_and_old_enough() -> None:
    refusal = ImageRefusal(
        s3_key="bad.tar",
        policy="strict",
        etag=None,
        checksum=None,
        code="C",
        detail="d",
        entry="e",
        byte_offset=None,
        hint=None,
        refused_at=NOW,
    )
    later = Facts(now=AT + 2 * DAY, refusals=(refusal,))

    assert plan(later) == []
    assert plan(later, refusals_older_than=3 * DAY) == []
    assert [action.subject for action in plan(later, refusals_older_than=DAY)] == ["bad.tar"]
