"""Images that nobody made by hand come out as GNU tar and umoci would unpack them: file by file, bit by bit."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from holdfast_images.archive.entry import ArchiveSeverity, Policy
from tests.support.images import real_images
from tests.support.images.extracting import Fact, extracted, facts, inspected_by_child

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make and compare owners")


@pytest.fixture(scope="module")
def debian(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Debian root, of real packages."""
    missing = real_images.missing_programs()
    assert missing == [], f"missing programs; as root: apt-get install --no-install-recommends {' '.join(missing)}"
    return real_images.debian_root(tmp_path_factory.mktemp("debian"))


@pytest.fixture(scope="module")
def layout(debian: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return real_images.as_oci(debian, tmp_path_factory.mktemp("oci"))


@pytest.fixture(scope="module")
def reference(layout: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Fact]:
    return facts(real_images.unpacked_by_umoci(layout, tmp_path_factory.mktemp("umoci") / "bundle"))


def differences(found: dict[str, Fact], expected: dict[str, Fact]) -> dict[str, tuple[Fact | None, Fact | None]]:
    """What is not the same, without the root itself, whose time each tool sets to its own."""
    names = (found.keys() | expected.keys()) - {"."}
    return {name: (found.get(name), expected.get(name)) for name in names if found.get(name) != expected.get(name)}


@pytest.mark.parametrize("form", ["gnu", "pax", "ustar"])
@pytest.mark.parametrize("packer", ["", "--gzip", "--zstd"])
def test_a_debian_tar_is_unpacked_as_gnu_tar_does(tmp_path: Path, debian: Path, form: str, packer: str) -> None:
    archive, target, other = tmp_path / "debian.tar", tmp_path / "target", tmp_path / "other"
    options = ["--xattrs", "--xattrs-include=*"] if form == "pax" else []
    more = [packer] if packer else []
    real_images.run(
        "tar",
        f"--format={form}",
        *options,
        *more,
        "-C",
        debian.parent,
        "-cf",
        archive,
        "--transform=s/^debian/rootfs/",
        "debian",
    )
    other.mkdir()
    subprocess.run(["tar", "-C", other, "-xpf", archive, "--numeric-owner", *options], check=True)
    report = inspected_by_child(archive, target, keep_setuid=True)
    told = extracted(archive, target, keep_setuid=True)

    assert [each for each in report.findings if each.severity is ArchiveSeverity.ERROR] == []
    assert differences(facts(target), facts(other)) == {}
    assert told.file_count > 2000


def test_a_debian_tar_is_refused_by_strict_with_a_reason_for_each_entry(tmp_path: Path, debian: Path) -> None:
    archive = tmp_path / "debian.tar"
    real_images.run("tar", "-C", debian, "-cf", archive, ".")
    report = inspected_by_child(archive, tmp_path / "target", Policy.STRICT)

    errors = {each.code for each in report.findings if each.severity is ArchiveSeverity.ERROR}
    assert not report.acceptable
    assert {"SETUID", "ABSOLUTE_SYMLINK"} <= errors


def test_an_oci_layout_is_unpacked_as_umoci_does(tmp_path: Path, layout: Path, reference: dict[str, Fact]) -> None:
    archive = real_images.as_archive(layout, tmp_path / "oci.tar")
    extracted(archive, tmp_path / "target", keep_setuid=True)

    assert differences(facts(tmp_path / "target/rootfs"), reference) == {}
    assert "etc/host.conf" not in reference
    assert len(reference) > 1000


def test_a_saved_image_is_unpacked_as_umoci_does(tmp_path: Path, layout: Path, reference: dict[str, Fact]) -> None:
    archive = real_images.as_docker_saved(layout, tmp_path / "docker.tar")
    report = inspected_by_child(archive, tmp_path / "target", keep_setuid=True)
    extracted(archive, tmp_path / "target", keep_setuid=True)

    assert (report.acceptable, report.form) == (True, "docker")
    assert differences(facts(tmp_path / "target/rootfs"), reference) == {}


def test_a_compressed_saved_image_is_the_same(tmp_path: Path, layout: Path, reference: dict[str, Fact]) -> None:
    archive = real_images.as_docker_saved(layout, tmp_path / "docker.tar")
    real_images.run("gzip", "-1", archive)
    report = inspected_by_child(tmp_path / "docker.tar.gz", tmp_path / "target", keep_setuid=True)
    extracted(tmp_path / "docker.tar.gz", tmp_path / "target", keep_setuid=True)

    assert (report.acceptable, report.form, report.compression) == (True, "docker", "gzip")
    assert differences(facts(tmp_path / "target/rootfs"), reference) == {}
