"""Which image of several is meant."""

from __future__ import annotations

import json

import pytest

from holdfast_images.archive.entry import EntryKind, is_member_name
from holdfast_images.archive.manifests import (
    Configuration,
    Descriptor,
    ImageManifest,
    Index,
    Layout,
    Platform,
    SavedImage,
    _choose,
)
from holdfast_images.archive.members import Member, Members, _link, decode
from holdfast_images.errors import ImageRefused


def image(digest: str, platform: Platform | None = None) -> Descriptor:
    return Descriptor("application/vnd.oci.image.manifest.v1+json", digest, 1, platform)


AMD64 = image("a", Platform("linux", "amd64"))
ARM64 = image("b", Platform("linux", "arm64"))
WINDOWS = image("c", Platform("windows", "amd64"))
UNKNOWN = image("d", Platform("unknown", "unknown"))


@pytest.mark.parametrize(
    "candidates, expected",
    [
        ([AMD64, ARM64, WINDOWS, UNKNOWN], AMD64),
        ([AMD64, UNKNOWN], AMD64),
        ([ARM64], ARM64),
        ([image("e"), ARM64], image("e")),
    ],
)
def test_the_one_that_fits_is_chosen(candidates: list[Descriptor], expected: Descriptor) -> None:
    assert _choose(candidates, "amd64") == expected


@pytest.mark.parametrize(
    "candidates, code",
    [
        ([], "NO_PLATFORM"),
        ([ARM64, WINDOWS], "NO_PLATFORM"),
        ([AMD64, image("f", Platform("linux", "amd64"))], "AMBIGUOUS_IMAGE"),
        ([AMD64, image("e")], "AMBIGUOUS_IMAGE"),
    ],
)
def test_none_or_several_are_refused(candidates: list[Descriptor], code: str) -> None:
    with pytest.raises(ImageRefused) as refused:
        _choose(candidates, "amd64")
    assert refused.value.code == code


@pytest.mark.parametrize(
    "name, expected",
    [
        (b"oci-layout", True),
        (b"blobs", True),
        (b"0" * 64, True),
        (b"0" * 64 + b".json", True),
        (b"sha256:" + b"0" * 64, True),
        (b"rootfs", False),
        (b"etc", False),
        (b"0" * 63, False),
        (b"0" * 64 + b".sh", False),
    ],
)
def test_only_an_archive_of_layers_has_such_names(name: bytes, expected: bool) -> None:
    assert is_member_name(name) is expected


@pytest.mark.parametrize(
    "kind, target, expected",
    [
        (EntryKind.SYMLINK, b"../b/layer.tar", b"b/layer.tar"),
        (EntryKind.SYMLINK, b"other.tar", b"a/other.tar"),
        (EntryKind.SYMLINK, b"./x/../y", b"a/y"),
        (EntryKind.HARDLINK, b"b/layer.tar", b"b/layer.tar"),
        (EntryKind.FILE, b"", None),
    ],
)
def test_links_are_resolved_inside_of_the_archive(kind: EntryKind, target: bytes, expected: bytes | None) -> None:
    assert _link(kind, [b"a", b"layer.tar"], target, "a/layer.tar", 0) == expected


LAYOUT = '{"imageLayoutVersion": "1.0.0"}'
INDEX = '{"schemaVersion": 2, "manifests": []}'


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-32"])
def test_json_is_utf_8_and_nothing_else(encoding: str) -> None:
    assert decode(LAYOUT.encode(), Layout, "oci-layout").image_layout_version == "1.0.0"
    with pytest.raises(ImageRefused) as refused:
        decode(LAYOUT.encode(encoding), Layout, "oci-layout")
    assert refused.value.code == "BAD_MANIFEST"


@pytest.mark.parametrize(
    "text",
    [
        INDEX.replace("2", "2.0"),
        INDEX.replace("2", "2e0"),
        INDEX.replace("[]", '[], "x": NaN'),
        INDEX.replace("[]", '[], "x": -Infinity'),
        INDEX.replace("[]", '[], "Manifests": []'),
        INDEX.replace("[]", '[], "manife\u017fts": []'),
        INDEX.replace("[]", '[], "mediaType": []'),
        INDEX.replace("[]", '[], "MediaType": "x"'),
        INDEX.replace("[]", '[], "annotations": {"x": 1}'),
    ],
)
def test_what_other_programs_read_otherwise_or_not_at_all_is_refused(text: str) -> None:
    assert decode(INDEX.encode(), Index, "index.json").manifests == []
    with pytest.raises(ImageRefused) as refused:
        decode(text.encode(), Index, "index.json")
    assert refused.value.code == "BAD_MANIFEST"


def test_half_a_character_is_no_name() -> None:
    members = Members(-1, {b"\xed\xa0\x80": Member(0, 0), b"\xef\xbf\xbd": Member(0, 0)})
    with pytest.raises(ImageRefused) as refused:
        members.find("\ud800")
    assert refused.value.code == "BAD_MANIFEST"


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b'{"a": 1, "a": 2}', b"[" * 100_000, b"\xff", b"NaN", b'"\\ud800"'])
def test_json_that_is_not_what_it_should_be_is_refused(text: bytes) -> None:
    with pytest.raises(ImageRefused) as refused:
        decode(text, dict[str, int], "document")
    assert refused.value.code == "BAD_MANIFEST"
    assert str(refused.value).isprintable()


BLOB = {"mediaType": "x", "digest": "sha256:0", "size": 1}
MANIFEST = {"schemaVersion": 2, "config": BLOB, "layers": [BLOB]}
CONFIGURATION = {"rootfs": {"type": "layers", "diff_ids": []}}


@pytest.mark.parametrize(
    "kind, document",
    [
        (ImageManifest, MANIFEST | {"config": BLOB | {"data": 1}}),
        (ImageManifest, MANIFEST | {"config": BLOB | {"data": "?"}}),
        (ImageManifest, MANIFEST | {"config": BLOB | {"artifactType": 1}}),
        (ImageManifest, MANIFEST | {"config": BLOB | {"platform": {"os.features": "x"}}}),
        (ImageManifest, MANIFEST | {"config": BLOB | {"size": 1 << 70}}),
        (ImageManifest, MANIFEST | {"subject": []}),
        (Index, {"schemaVersion": 2, "manifests": [], "subject": 1}),
        (Configuration, CONFIGURATION | {"config": {"Env": "x"}}),
        (Configuration, CONFIGURATION | {"config": {"ExposedPorts": []}}),
        (Configuration, CONFIGURATION | {"config": {"Healthcheck": {"Retries": "1"}}}),
        (Configuration, CONFIGURATION | {"history": [{"empty_layer": 1}]}),
        (Configuration, CONFIGURATION | {"os.version": 1}),
        (Index, {"schemaVersion": 1 << 70, "manifests": [BLOB]}),
        (ImageManifest, MANIFEST | {"schemaVersion": -1 << 64}),
        (SavedImage, {"Config": "x", "Layers": [], "LayerSources": 1}),
    ],
)
def test_a_known_field_of_another_type_is_refused(kind: type, document: dict[str, object]) -> None:
    with pytest.raises(ImageRefused) as refused:
        decode(json.dumps(document).encode(), kind, "it")
    assert refused.value.code == "BAD_MANIFEST"


PAST = {"created": None, "created_by": None, "author": None, "comment": None, "empty_layer": None}
SETTINGS = {"Cmd": None, "Entrypoint": None, "Shell": None, "Env": None, "Labels": None, "Volumes": None}


@pytest.mark.parametrize(
    "kind, document",
    [
        (Configuration, CONFIGURATION | {"variant": None, "author": None, "created": None, "history": [PAST]}),
        (Configuration, CONFIGURATION | {"history": None, "config": None, "os.version": None, "os.features": None}),
        (Configuration, CONFIGURATION | {"config": SETTINGS, "container_config": SETTINGS}),
        (ImageManifest, MANIFEST | {"annotations": None, "subject": None, "config": BLOB | {"urls": None}}),
        (ImageManifest, MANIFEST | {"layers": [BLOB | {"annotations": None, "data": None, "platform": None}]}),
        (Index, {"schemaVersion": 2, "manifests": [BLOB | {"platform": {"variant": None}}], "annotations": None}),
        (SavedImage, {"Config": "x", "Layers": [], "RepoTags": None, "Parent": None, "LayerSources": None}),
    ],
)
def test_what_other_writers_leave_empty_is_taken(kind: type, document: dict[str, object]) -> None:
    assert isinstance(decode(json.dumps(document).encode(), kind, "it"), kind)


def test_a_field_that_nobody_declares_is_ignored() -> None:
    found = decode(json.dumps(MANIFEST | {"x": 1}).encode(), ImageManifest, "it")

    assert found.schema_version == 2
