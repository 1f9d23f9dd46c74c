"""Extracts archives in the real child process, and says what is there afterwards, down to the nanosecond."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from holdfast_images.archive.entry import Extracted, InspectionReport, Limits, Policy
from holdfast_images.archive.manifests import host_architecture
from holdfast_images.archive.sandbox import extract_image, inspect_image
from tests.support.images.archives import Compression, archive, compressed, directory, member, symlink

NOBODY = 65534
TIMEOUT = 100.0


class Fact(NamedTuple):
    """What there is to be known about one name."""

    kind: str
    mode: int
    owner: tuple[int, int]
    mtime_ns: int
    content: str
    links: int
    """Names of the same file, in the whole tree or outside."""
    xattrs: tuple[tuple[str, bytes], ...]


def facts(root: Path) -> dict[str, Fact]:
    """Everything below a directory, and the directory itself as '.', by descriptors and without following links."""
    found = {".": fact(root)}
    for folder, folders, files in os.walk(os.fsencode(root)):
        for name in (*folders, *files):
            path = os.path.join(folder, name)
            found[os.fsdecode(os.path.relpath(path, os.fsencode(root)))] = fact(Path(os.fsdecode(path)))
    return found


def fact(path: Path) -> Fact:
    status = path.lstat()
    kind = stat.filemode(status.st_mode)[0]
    content = ""
    if kind == "l":
        content = os.readlink(path)
    elif kind == "-":
        content = hashlib.sha256(path.read_bytes()).hexdigest()
    names = os.listxattr(path, follow_symlinks=False)
    return Fact(
        kind,
        stat.S_IMODE(status.st_mode),
        (status.st_uid, status.st_gid),
        status.st_mtime_ns,
        content,
        0 if kind == "d" else status.st_nlink,
        tuple(sorted((name, os.getxattr(path, name, follow_symlinks=False)) for name in names)),
    )


def extracted(
    content: bytes | Path,
    target: Path,
    *,
    policy: Policy = Policy.DISTRO,
    limits: Limits | None = None,
    **options: Any,
) -> Extracted:
    """Extract by the child; the target is made if it is missing."""
    target.mkdir(exist_ok=True)
    path = content if isinstance(content, Path) else written(content, target)
    options = {"timeout": TIMEOUT, **options}
    return extract_image(path, target, policy=policy, limits=limits or Limits(), **options)


def inspected_by_child(
    content: bytes | Path, place: Path, policy: Policy = Policy.DISTRO, **options: Any
) -> InspectionReport:
    path = content if isinstance(content, Path) else written(content, place)
    options = {"timeout": TIMEOUT, "limits": Limits(), **options}
    return inspect_image(path, policy=policy, **options)


def written(content: bytes, beside: Path) -> Path:
    path = beside.with_name(f"{beside.name}.archive")
    path.write_bytes(content)
    return path


@contextmanager
def canaries(place: Path) -> Iterator[None]:
    """Whatever happens inside, files that lie beside the target stay as they are, and nothing is added to them."""
    outside = place / "outside"
    (outside / "etc").mkdir(parents=True)
    (outside / "etc" / "passwd").write_text("canary")
    (outside / "etc" / "shadow").write_text("canary")
    (outside / "link").symlink_to("etc/passwd")
    os.mkfifo(outside / "fifo")
    # Reading changes no fact; only what an extractor does to them can.
    before, mounts = facts(outside), _mounts_below(place)
    names, open_files = _beside_the_target(place), len(os.listdir("/proc/self/fd"))
    yield
    assert facts(outside) == before
    assert _mounts_below(place) == mounts
    assert _beside_the_target(place) == names
    assert len(os.listdir("/proc/self/fd")) == open_files


def _mounts_below(place: Path) -> list[str]:
    # Only those: tests that run at the same time mount things of their own.
    return [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if f" {place}" in line]


def _beside_the_target(place: Path) -> set[str]:
    return {name for name in os.listdir(place) if not name.startswith("target")}


# --- images of layers ----------------------------------------------------------------------------------------

SMALL_ROOT = (
    directory(b"rootfs"),
    directory(b"rootfs/etc"),
    member(b"rootfs/etc/passwd", b"root:x:0:0::/:/bin/sh\n"),
    directory(b"rootfs/usr"),
    directory(b"rootfs/var"),
    symlink(b"rootfs/usr/link", b"../etc/passwd"),
)


def digest(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


def configuration(layers: list[bytes], **changes: Any) -> bytes:
    document = {
        "architecture": host_architecture(),
        "os": "linux",
        "rootfs": {"type": "layers", "diff_ids": [digest(layer) for layer in layers]},
    }
    return json.dumps(document | changes).encode()


_SUFFIX = {"none": "", "gzip": "+gzip", "zstd": "+zstd"}


def descriptor_of(content: bytes, media_type: str, **more: Any) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": digest(content), "size": len(content), **more}


class OciParts:
    """The parts of an OCI layout, each of which a test may spoil before they are put together."""

    def __init__(self, *layers: bytes, compression: Compression = "gzip") -> None:
        stored = [compressed(layer, compression) for layer in layers]
        self.config = configuration(list(layers))
        self.blobs = {digest(content): content for content in (*stored, self.config)}
        self.manifest: dict[str, Any] = {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": descriptor_of(self.config, "application/vnd.oci.image.config.v1+json"),
            "layers": [
                descriptor_of(content, f"application/vnd.oci.image.layer.v1.tar{_SUFFIX[compression]}")
                for content in stored
            ],
        }
        self.index: dict[str, Any] | None = None
        self.layout = b'{"imageLayoutVersion": "1.0.0"}'

    def add(self, content: bytes) -> dict[str, Any]:
        """One more blob; the descriptor of an image manifest for it."""
        self.blobs[digest(content)] = content
        return descriptor_of(content, "application/vnd.oci.image.manifest.v1+json")

    def build(self) -> bytes:
        found = self.add(json.dumps(self.manifest).encode())
        index = self.index or {"schemaVersion": 2, "manifests": [found]}
        return archive(
            directory(b"blobs"),
            directory(b"blobs/sha256"),
            *(member(b"blobs/sha256/" + name[7:].encode(), content) for name, content in self.blobs.items()),
            member(b"index.json", json.dumps(index).encode()),
            member(b"oci-layout", self.layout),
        )


def oci(*layers: bytes, compression: Compression = "gzip") -> bytes:
    return OciParts(*layers, compression=compression).build()


def docker_saved(*layers: bytes, style: str = "old", settings: dict[str, Any] | None = None, **changes: Any) -> bytes:
    """As docker save writes it: "old" with a directory per layer, "new" with blobs."""
    config = configuration(list(layers), **(settings or {}))
    members: dict[bytes, bytes] = {}
    names = []
    for number, layer in enumerate(layers):
        name = f"{number:064x}/layer.tar" if style == "old" else f"blobs/sha256/{digest(layer)[7:]}"
        members[name.encode()] = layer
        names.append(name)
    config_name = f"{digest(config)[7:]}.json" if style == "old" else f"blobs/sha256/{digest(config)[7:]}"
    members[config_name.encode()] = config
    image = {"Config": config_name, "RepoTags": ["demo:latest"], "Layers": names} | changes
    members[b"manifest.json"] = json.dumps([image]).encode()
    return archive(*(member(name, content) for name, content in members.items()))
