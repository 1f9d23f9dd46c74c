"""OCI layouts and docker-save archives: recognised, verified to the last digest, or refused for a stated reason."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast_images.archive.entry import ArchiveSeverity, Limits, Reason
from holdfast_images.archive.manifests import host_architecture
from holdfast_images.errors import ImageRefused
from tests.support.images.archives import (
    COMPRESSIONS,
    END,
    OF_LAYERS,
    Compression,
    archive,
    compressed,
    directory,
    header,
    member,
    padded,
    pax,
    symlink,
)
from tests.support.images.extracting import (
    OciParts,
    canaries,
    configuration,
    descriptor_of,
    digest,
    docker_saved,
    extracted,
    facts,
    inspected_by_child,
    oci,
)

LOWER = archive(directory(b"etc"), member(b"etc/passwd", b"root"), member(b"gone", b"x"))
UPPER = archive(member(b"etc/group", b"root"), member(b".wh.gone"))
INDEX = "application/vnd.oci.image.index.v1+json"
RESULT = {".", "etc", "etc/passwd", "etc/group"}


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "target"


@pytest.mark.parametrize("outer", COMPRESSIONS)
@pytest.mark.parametrize("inner", OF_LAYERS)
def test_an_oci_layout_is_extracted(target: Path, outer: Compression, inner: Compression) -> None:
    content = compressed(oci(LOWER, UPPER, compression=inner), outer)
    report = inspected_by_child(content, target)
    extracted(content, target)

    assert (report.acceptable, report.form, report.compression, report.entries) == (True, "oci", outer, 5)
    assert set(facts(target / "rootfs")) == RESULT


@pytest.mark.parametrize("outer", COMPRESSIONS)
@pytest.mark.parametrize("style", ["old", "new"])
def test_what_docker_save_writes_is_extracted(target: Path, outer: Compression, style: str) -> None:
    content = compressed(docker_saved(LOWER, UPPER, style=style), outer)
    report = inspected_by_child(content, target)
    extracted(content, target)

    assert (report.acceptable, report.form, report.compression) == (True, "docker", outer)
    assert set(facts(target / "rootfs")) == RESULT


def test_findings_say_which_layer_they_are_in(target: Path) -> None:
    bad = archive(member(b"../x"), member(b"/y"))
    report = inspected_by_child(oci(LOWER, bad, compression="none"), target)

    assert not report.acceptable
    assert {(each.code, each.path) for each in report.findings} == {
        ("PATH_TRAVERSAL", f"{digest(bad)}:../x"),
        ("ABSOLUTE_PATH", f"{digest(bad)}:/y"),
    }


@pytest.mark.parametrize("document", [b"manifest.json", b"index.json", b"oci-layout", b"./repositories"])
def test_a_root_file_system_beside_a_document_of_an_image_is_refused(target: Path, document: bytes) -> None:
    """Whatever the document names: other programs load that, and not the root file system."""
    for content in (
        archive(member(document, b"[]"), directory(b"rootfs"), member(b"rootfs/a")),
        archive(directory(b"rootfs"), member(b"rootfs/a"), member(b"c.json"), member(document, b"[]")),
    ):
        report = inspected_by_child(content, target)

        assert {finding.code for finding in report.findings if finding.severity == "error"} == {Reason.AMBIGUOUS_IMAGE}
        with pytest.raises(ImageRefused, match="AMBIGUOUS_IMAGE"):
            extracted(content, target)
        shutil.rmtree(target)


def test_such_a_document_inside_the_root_file_system_is_a_file_like_any_other(target: Path) -> None:
    extracted(archive(directory(b"rootfs"), member(b"rootfs/manifest.json"), member(b"rootfs/index.json")), target)

    assert (target / "rootfs/manifest.json").exists()


def both_documents(*saved: bytes) -> bytes:
    """As docker save writes it since version 25: the blobs of an OCI layout, named by both documents."""
    parts = OciParts(LOWER, UPPER, compression="none")
    config = configuration(list(saved))
    parts.blobs |= {digest(content): content for content in (*saved, config)}
    names = [f"blobs/sha256/{digest(layer)[7:]}" for layer in saved]
    manifest = json.dumps([{"Config": f"blobs/sha256/{digest(config)[7:]}", "Layers": names}]).encode()
    return parts.build().removesuffix(END) + archive(member(b"manifest.json", manifest))


def test_what_both_documents_name_is_extracted(target: Path) -> None:
    extracted(both_documents(LOWER, UPPER), target)

    assert set(facts(target / "rootfs")) == RESULT


# --- what is refused ----------------------------------------------------------------------------------------


def refused(content: bytes, target: Path, **options: Any) -> str:
    """The code, by which inspecting and extracting alike refuse it."""
    report = inspected_by_child(content, target, **options)
    with canaries(target.parent), pytest.raises(ImageRefused) as error:
        extracted(content, target, **options)
    codes = {each.code for each in report.findings if each.severity is ArchiveSeverity.ERROR}
    assert not report.acceptable
    assert error.value.code in codes
    assert (target / "rootfs").exists() is False
    return error.value.code


def spoiled(change: Callable[[OciParts], None]) -> bytes:
    parts = OciParts(LOWER, UPPER)
    change(parts)
    return parts.build()


def spoil_blob(position: int) -> Callable[[OciParts], None]:
    def change(parts: OciParts) -> None:
        name = list(parts.blobs)[position]
        content = parts.blobs[name]
        parts.blobs[name] = content[:-1] + bytes([content[-1] ^ 1])

    return change


def lose_a_blob(parts: OciParts) -> None:
    parts.blobs.pop(next(iter(parts.blobs)))


def with_index(**descriptor: Any) -> Callable[[OciParts], None]:
    def change(parts: OciParts) -> None:
        found = parts.add(json.dumps(parts.manifest).encode())
        parts.index = {"schemaVersion": 2, "manifests": [found | descriptor]}

    return change


def two_images(parts: OciParts) -> None:
    one = parts.add(json.dumps(parts.manifest).encode())
    other = parts.add(json.dumps(parts.manifest | {"annotations": {"x": "y"}}).encode())
    parts.index = {"schemaVersion": 2, "manifests": [one, other]}


def index_of_another_type(parts: OciParts) -> None:
    found = parts.add(json.dumps(parts.manifest).encode())
    parts.index = {"schemaVersion": 2, "mediaType": found["mediaType"], "manifests": [found]}


def endless_index(parts: OciParts) -> None:
    found = parts.add(json.dumps(parts.manifest).encode())
    for _ in range(6):
        found = parts.add(json.dumps({"schemaVersion": 2, "manifests": [found]}).encode()) | {"mediaType": INDEX}
    parts.index = {"schemaVersion": 2, "manifests": [found]}


def with_layer_type(media_type: str) -> Callable[[OciParts], None]:
    def change(parts: OciParts) -> None:
        parts.manifest["layers"][0]["mediaType"] = media_type

    return change


def with_config(**changes: Any) -> Callable[[OciParts], None]:
    def change(parts: OciParts) -> None:
        content = configuration([LOWER, UPPER], **changes)
        parts.add(content)
        parts.manifest["config"] = descriptor_of(content, "application/vnd.oci.image.config.v1+json")

    return change


def with_digest(value: str) -> Callable[[OciParts], None]:
    def change(parts: OciParts) -> None:
        parts.manifest["layers"][0]["digest"] = value

    return change


def with_history(field: str) -> Callable[[OciParts], None]:
    def change(parts: OciParts) -> None:
        parts.manifest[field] = []

    return change


def index_with_history(parts: OciParts) -> None:
    found = parts.add(json.dumps(parts.manifest).encode())
    parts.index = {"schemaVersion": 2, "manifests": [found], "history": []}


def with_copy(copied: bytes) -> Callable[[OciParts], None]:
    """A descriptor may have a copy of what it names."""

    def change(parts: OciParts) -> None:
        parts.manifest["config"]["data"] = base64.b64encode(copied).decode()

    return change


BAD_OCI: dict[str, tuple[str, Callable[[OciParts], None]]] = {
    "a layer is not what its digest says": ("DIGEST_MISMATCH", spoil_blob(0)),
    "the configuration is not what its digest says": ("DIGEST_MISMATCH", spoil_blob(2)),
    "a layer is missing": ("BLOB_MISSING", lose_a_blob),
    "a layer has another size": ("DIGEST_MISMATCH", lambda parts: parts.manifest["layers"][0].update(size=7)),
    "a digest climbs": ("BAD_MANIFEST", with_digest("sha256:../../../../etc/passwd")),
    "a digest is of an unknown kind": ("BAD_MANIFEST", with_digest("md5:" + "0" * 32)),
    "a foreign layer": (
        "UNSUPPORTED_MEDIA_TYPE",
        with_layer_type("application/vnd.docker.image.rootfs.foreign.diff.tar.gzip"),
    ),
    "a layer not for distribution": (
        "UNSUPPORTED_MEDIA_TYPE",
        with_layer_type("application/vnd.oci.image.layer.nondistributable.v1.tar+gzip"),
    ),
    "a layer compressed otherwise than told": (
        "UNSUPPORTED_MEDIA_TYPE",
        with_layer_type("application/vnd.oci.image.layer.v1.tar+zstd"),
    ),
    "two images": ("AMBIGUOUS_IMAGE", two_images),
    "indexes inside of indexes": ("BAD_MANIFEST", endless_index),
    "no image": ("NO_PLATFORM", lambda parts: setattr(parts, "index", {"schemaVersion": 2, "manifests": []})),
    "something else than an image": ("UNSUPPORTED_MEDIA_TYPE", with_index(mediaType="application/x-chart")),
    "another operating system": ("NO_PLATFORM", with_config(os="windows")),
    "fewer layers in the configuration": (
        "BAD_MANIFEST",
        with_config(rootfs={"type": "layers", "diff_ids": [digest(LOWER)]}),
    ),
    "a layout of another version": ("BAD_MANIFEST", lambda p: setattr(p, "layout", b'{"imageLayoutVersion": "2.0"}')),
    "a layout that is no JSON": ("BAD_MANIFEST", lambda parts: setattr(parts, "layout", b"\xff{")),
    "a key twice": (
        "BAD_MANIFEST",
        lambda p: setattr(p, "layout", b'{"imageLayoutVersion": "1.0.0", "imageLayoutVersion": "1.0.1"}'),
    ),
    "JSON without end": ("BAD_MANIFEST", lambda parts: setattr(parts, "layout", b"[" * 1_000_000)),
    "JSON too large": ("BAD_MANIFEST", lambda parts: setattr(parts, "layout", b'"' + b"x" * (5 << 20) + b'"')),
    "a manifest that says to be an index": ("AMBIGUOUS_IMAGE", lambda parts: parts.manifest.update(mediaType=INDEX)),
    "an index that says to be a manifest": ("AMBIGUOUS_IMAGE", index_of_another_type),
    "a history that is none": ("BAD_MANIFEST", with_config(history=[{"created_by": 5}])),
    "a time without a zone": ("BAD_MANIFEST", with_config(created="2023-11-14T22:13:20")),
    "no layers": ("BAD_MANIFEST", lambda parts: parts.manifest.update(layers=[])),
    "a history as in manifests of schema 1": ("AMBIGUOUS_IMAGE", with_history("history")),
    "layers as in manifests of schema 1": ("AMBIGUOUS_IMAGE", with_history("fsLayers")),
    "an index with a history": ("AMBIGUOUS_IMAGE", index_with_history),
    "a copy of the configuration is another one": ("DIGEST_MISMATCH", with_copy(configuration([LOWER]))),
}


@pytest.mark.parametrize("what", BAD_OCI)
def test_an_oci_layout_is_refused_if(target: Path, what: str) -> None:
    code, change = BAD_OCI[what]

    assert refused(spoiled(change), target) == code


def test_a_descriptor_may_have_a_copy_of_its_blob(target: Path) -> None:
    content = spoiled(with_copy(configuration([LOWER, UPPER])))

    assert inspected_by_child(content, target).acceptable


@pytest.mark.parametrize("field", ["Cmd", "Entrypoint", "Shell"])
@pytest.mark.parametrize("media_type", ["oci.image.config", "docker.container.image", "docker save"])
def test_a_command_is_no_text_whoever_wrote_it(target: Path, field: str, media_type: str) -> None:
    settings: dict[str, Any] = {"config": {field: "/bin/sh"}}
    parts = OciParts(LOWER, UPPER)
    with_config(**settings)(parts)
    parts.manifest["config"]["mediaType"] = f"application/vnd.{media_type}.v1+json"
    content = docker_saved(LOWER, UPPER, settings=settings) if media_type == "docker save" else parts.build()

    assert refused(content, target) == "BAD_MANIFEST"


def test_a_layer_that_does_not_decompress_to_what_the_configuration_says_is_found_by_inspecting(target: Path) -> None:
    content = spoiled(with_config(rootfs={"type": "layers", "diff_ids": [digest(LOWER), digest(b"else")]}))
    report = inspected_by_child(content, target)

    assert [each.code for each in report.findings] == ["DIGEST_MISMATCH"]


def sha512(content: bytes) -> str:
    return "sha512:" + hashlib.sha512(content).hexdigest()


def saved_with_sha512(layer: bytes, said: bytes) -> bytes:
    """By docker save, with one layer whose content should be what was said."""
    config = configuration([said], rootfs={"type": "layers", "diff_ids": [sha512(said)]})
    name, place = f"{digest(config)[7:]}.json", f"{0:064x}/layer.tar"
    manifest = json.dumps([{"Config": name, "Layers": [place]}]).encode()
    return archive(member(place.encode(), layer), member(name.encode(), config), member(b"manifest.json", manifest))


def test_a_layer_that_the_configuration_names_by_sha512_is_verified_too(target: Path) -> None:
    other = archive(member(b"etc/passwd", b"other"))

    assert refused(saved_with_sha512(other, LOWER), target) == "DIGEST_MISMATCH"
    assert inspected_by_child(saved_with_sha512(LOWER, LOWER), target).acceptable


@pytest.mark.parametrize("compression", OF_LAYERS)
def test_a_layer_may_be_named_by_two_algorithms(target: Path, compression: Compression) -> None:
    parts = OciParts(LOWER, compression=compression)
    parts.config = configuration([LOWER], rootfs={"type": "layers", "diff_ids": [sha512(LOWER)]})
    parts.blobs[digest(parts.config)] = parts.config
    parts.manifest["config"] = descriptor_of(parts.config, "application/vnd.oci.image.config.v1+json")

    assert inspected_by_child(parts.build(), target).acceptable


def test_one_blob_that_is_named_many_times_is_decompressed_for_so_many_bytes_only(target: Path) -> None:
    layer = archive(member(b"x", b"x" * 900_000))
    limits = Limits(total_bytes=1 << 20, entries=10)

    assert [each.code for each in inspected_by_child(oci(*[layer] * 9), target, limits=limits).findings] == [
        "DECOMPRESSION_BOMB"
    ]


@pytest.mark.parametrize("form", ["tar", "oci"])
def test_inspecting_tells_how_far_it_is(target: Path, form: str) -> None:
    content = archive(*(member(b"rootfs/%d" % number) for number in range(2000)))
    told: list[tuple[int, int, int]] = []
    inspected_by_child(content if form == "tar" else oci(content), target, on_progress=lambda *each: told.append(each))

    assert told
    assert all(0 < done <= 2 * len(content) for done, _, _ in told)


def test_too_many_layers_are_refused(target: Path) -> None:
    layers = [archive(member(b"%d" % number)) for number in range(5)]

    assert refused(oci(*layers), target, limits=Limits(layers=4)) == "TOO_MANY_LAYERS"


@pytest.mark.parametrize("other", [symlink(b"blobs", b"0" * 64), member(b"blobs/sha256", b"x")], ids=["link", "file"])
def test_members_below_a_link_or_a_file_are_refused(target: Path, other: bytes) -> None:
    assert refused(other + oci(LOWER), target) == "BAD_MEMBER"


def test_a_member_with_two_sizes_is_refused(target: Path) -> None:
    content = pax({b"size": b"5"}) + header(b"repositories", size=0) + padded(b"hello")

    assert refused(content + oci(LOWER), target) == "SIZE_OVERRIDDEN"


def test_names_of_members_are_limited_together(target: Path) -> None:
    others = b"".join(member(b"blobs/%d" % number + b"x" * 80) for number in range(20))

    assert refused(others + oci(LOWER), target, limits=Limits(names_bytes=1500)) == "NAMES_TOO_LONG"


def test_a_saved_layer_is_compressed_as_layers_are(target: Path) -> None:
    def saved(compression: Compression) -> bytes:
        name = f"{0:064x}/layer.tar"
        config = configuration([LOWER])
        image = [{"Config": f"{digest(config)[7:]}.json", "Layers": [name]}]
        return archive(
            member(name.encode(), compressed(LOWER, compression)),
            member(f"{digest(config)[7:]}.json".encode(), config),
            member(b"manifest.json", json.dumps(image).encode()),
        )

    assert [inspected_by_child(saved(each), target).acceptable for each in OF_LAYERS] == [True, True, True]
    assert refused(saved("xz"), target) == "UNSUPPORTED_MEDIA_TYPE"


BAD_DOCKER: dict[str, tuple[str, dict[str, Any]]] = {
    "a layer that climbs": ("PATH_TRAVERSAL", {"Layers": ["../../etc/passwd", "x"]}),
    "an absolute layer": ("ABSOLUTE_PATH", {"Layers": ["/etc/passwd", "x"]}),
    "a layer that is missing": ("BLOB_MISSING", {"Layers": ["0" * 63 + "9/layer.tar", "x"]}),
    "a configuration that climbs": ("PATH_TRAVERSAL", {"Config": "../../x.json"}),
    "an absolute configuration": ("ABSOLUTE_PATH", {"Config": "/etc/passwd"}),
    "ten thousand layers": ("TOO_MANY_LAYERS", {"Layers": ["x"] * 10_000}),
    "layers of another type": ("BAD_MANIFEST", {"Layers": [1, 2]}),
    "layers in another order": (
        "DIGEST_MISMATCH",
        {"Layers": [f"{1:064x}/layer.tar", f"{0:064x}/layer.tar"]},
    ),
}


@pytest.mark.parametrize("what", BAD_DOCKER)
def test_a_docker_save_archive_is_refused_for(target: Path, what: str) -> None:
    code, changes = BAD_DOCKER[what]

    assert refused(docker_saved(LOWER, UPPER, **changes), target) == code


def test_several_saved_images_are_ambiguous(target: Path) -> None:
    content = archive(member(b"manifest.json", json.dumps([{"Config": "a", "Layers": []}] * 2).encode()))

    assert refused(content, target) == "AMBIGUOUS_IMAGE"


def test_two_documents_that_name_different_images_are_ambiguous(target: Path) -> None:
    assert refused(both_documents(LOWER), target) == "AMBIGUOUS_IMAGE"


@pytest.mark.parametrize("layers", [oci(LOWER), docker_saved(LOWER), docker_saved(LOWER, style="new")])
@pytest.mark.parametrize("first", ["layers", "root"])
def test_an_archive_of_layers_beside_a_root_file_system_is_ambiguous(target: Path, layers: bytes, first: str) -> None:
    parts = [layers.removesuffix(END), archive(directory(b"rootfs"), member(b"rootfs/a")).removesuffix(END)]
    content = b"".join(parts if first == "layers" else reversed(parts)) + END
    report = inspected_by_child(content, target)
    with pytest.raises(ImageRefused) as error:
        extracted(content, target)

    assert not report.acceptable
    assert error.value.code == "AMBIGUOUS_IMAGE"


def test_a_configuration_that_is_not_what_its_name_says_is_refused(target: Path) -> None:
    name = "0" * 64 + ".json"
    manifest = json.dumps([{"Config": name, "Layers": [f"{0:064x}/layer.tar"]}]).encode()
    content = archive(
        member(name.encode(), configuration([LOWER])),
        member(f"{0:064x}/layer.tar".encode(), LOWER),
        member(b"manifest.json", manifest),
    )

    assert refused(content, target) == "DIGEST_MISMATCH"


def linked(target_of_link: bytes) -> bytes:
    """An image whose second layer is a link, as docker save wrote it for a layer that is there already."""
    config = configuration([LOWER, LOWER])
    config_name = f"{digest(config)[7:]}.json"
    names = [f"{0:064x}/layer.tar", f"{1:064x}/layer.tar"]
    manifest = json.dumps([{"Config": config_name, "Layers": names}]).encode()
    return archive(
        member(names[0].encode(), LOWER),
        symlink(names[1].encode(), target_of_link),
        member(config_name.encode(), config),
        member(b"manifest.json", manifest),
    )


def test_a_layer_may_be_a_link_to_another_one(target: Path) -> None:
    content = linked(f"../{0:064x}/layer.tar".encode())
    report = inspected_by_child(content, target)
    extracted(content, target)

    assert report.acceptable
    assert (target / "rootfs/etc/passwd").read_bytes() == b"root"


@pytest.mark.parametrize(
    "link, code",
    [
        (b"/etc/passwd", "BAD_MEMBER"),
        (b"../../etc/passwd", "SYMLINK_ESCAPES"),
        (b"../missing", "BLOB_MISSING"),
        (b"layer.tar", "BAD_MEMBER"),
    ],
)
def test_a_layer_that_is_a_link_to_elsewhere_is_refused(target: Path, link: bytes, code: str) -> None:
    assert refused(linked(link), target) == code


# --- platforms ----------------------------------------------------------------------------------------------


def for_platforms(*architectures: str) -> bytes:
    """One image for each; the layer says for which."""
    parts = OciParts(LOWER)
    manifests = []
    for architecture in architectures:
        image = OciParts(archive(member(b"architecture", architecture.encode())))
        parts.blobs |= image.blobs
        found = parts.add(json.dumps(image.manifest).encode())
        manifests.append(found | {"platform": {"os": "linux", "architecture": architecture}})
    inner = parts.add(json.dumps({"schemaVersion": 2, "manifests": manifests}).encode())
    parts.index = {"schemaVersion": 2, "manifests": [inner | {"mediaType": INDEX}]}
    return parts.build()


def test_of_several_platforms_the_one_of_this_machine_is_taken(target: Path) -> None:
    extracted(for_platforms("mips", host_architecture(), "unknown"), target)

    assert (target / "rootfs/architecture").read_text() == host_architecture()


def test_an_image_for_other_platforms_only_is_refused(target: Path) -> None:
    assert refused(for_platforms("mips", "sparc"), target) == "NO_PLATFORM"


def test_the_only_image_is_taken_with_a_warning_if_it_is_for_another_machine(target: Path) -> None:
    content = spoiled(with_config(architecture="mips"))
    report = inspected_by_child(content, target)
    told = extracted(content, target)

    assert report.acceptable
    assert [each.code for each in report.findings] == ["NO_PLATFORM"]
    assert [each.code for each in told.warnings] == ["NO_PLATFORM"]


def renamed(document: dict[str, Any], key: str, other: str, *, keep: bool) -> None:
    document[other] = document[key]
    if not keep:
        del document[key]


@pytest.mark.parametrize("keep", [True, False], ids=["beside", "instead"])
@pytest.mark.parametrize(
    "place, key, other",
    [
        ("manifest", "layers", "Layers"),
        ("manifest", "layers", "LAYERS"),
        ("manifest", "config", "conFig"),
        ("manifest", "schemaVersion", "schemaverſion"),
        ("descriptor", "mediaType", "MediaType"),
        ("descriptor", "digest", "Digest"),
        ("config", "rootfs", "Rootfs"),
        ("config", "architecture", "Architecture"),
        ("diff", "diff_ids", "Diff_IDs"),
    ],
)
def test_a_key_that_others_read_in_spite_of_its_case_is_refused(
    target: Path, place: str, key: str, other: str, keep: bool
) -> None:
    """Go, in which most such programs are written, takes the last key that fits, whatever its case."""
    parts = OciParts(LOWER, UPPER)
    config = json.loads(parts.config)
    where = {
        "manifest": parts.manifest,
        "descriptor": parts.manifest["layers"][0],
        "config": config,
        "diff": config["rootfs"],
    }[place]
    renamed(where, key, other, keep=keep)
    parts.config = json.dumps(config).encode()
    parts.blobs[digest(parts.config)] = parts.config
    if "config" in parts.manifest:
        parts.manifest["config"] = descriptor_of(parts.config, "application/vnd.oci.image.config.v1+json")

    assert refused(parts.build(), target) == "BAD_MANIFEST"


def test_a_label_may_be_spelt_in_any_way(target: Path) -> None:
    parts = OciParts(LOWER, UPPER)
    parts.config = configuration([LOWER, UPPER], config={"Labels": {"a": "1", "A": "2", "Layers": "x"}})
    parts.blobs[digest(parts.config)] = parts.config
    parts.manifest["config"] = descriptor_of(parts.config, "application/vnd.oci.image.config.v1+json")

    assert inspected_by_child(parts.build(), target).acceptable


def test_a_document_that_is_manifest_and_index_is_refused(target: Path) -> None:
    parts = OciParts(LOWER)
    parts.manifest["manifests"] = []

    assert refused(parts.build(), target) == "AMBIGUOUS_IMAGE"
