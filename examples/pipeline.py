"""Two flows, one after the other, as one parent job: the response of the first makes the request of the second.

python examples/pipeline.py [DIRECTORY]

With a directory, what it does stays there. Run again with the same one, it fetches and hashes again, over what is
there: that is what the default, unique="unfinished", is for.
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path

import msgspec

from holdfast import Engine, Flow, Pipeline, PipelineView, Run


class Fetch(msgspec.Struct):
    """Which file to fetch, and where to."""

    source: str
    directory: str


class Fetched(msgspec.Struct):
    """Where it is now."""

    path: str = ""
    size: int = 0


class Hash(msgspec.Struct):
    """Which file to hash."""

    path: str


class Hashed(msgspec.Struct):
    """Its digest."""

    digest: str = ""


def copy(run: Run[Fetch, Fetched]) -> Fetched:
    """Written beside its place and then renamed, so that a crash leaves the old file or the new one.

    The names are the source's: two jobs for one source do not run at the same time, because they share its key.
    """
    content = Path(run.request.source).read_bytes()
    target = Path(run.request.directory) / f"{hashlib.sha256(run.request.source.encode()).hexdigest()[:16]}.fetched"
    partial = target.with_suffix(".partial")
    partial.write_bytes(content)
    partial.replace(target)
    return Fetched(path=str(target), size=len(content))


def digest(run: Run[Hash, Hashed]) -> Hashed:
    return Hashed(digest=hashlib.sha256(Path(run.request.path).read_bytes()).hexdigest())


fetch = Flow("fetch", request=Fetch, response=Fetched, queue="network").start("copy", copy)
hashing = Flow("hash", request=Hash, response=Hashed).start("digest", digest)


def hash_what_was_fetched(view: PipelineView[Fetch]) -> Hash:
    """From the response of the stage before to the request of the next."""
    fetched: Fetched = view.previous
    return Hash(path=fetched.path)


process = (
    Pipeline("process", request=Fetch)
    # With a key, a second pipeline for the same source waits for the same fetch instead of starting its own.
    .then(fetch, request=lambda view: view.request, key=lambda view: view.request.source)
    .then(hashing, request=hash_what_was_fetched)
)


def main() -> None:
    lasting = nullcontext(sys.argv[1]) if len(sys.argv) > 1 else tempfile.TemporaryDirectory(prefix="holdfast-pipe-")
    with lasting as name:
        source = Path(name) / "source"
        source.write_text("hold fast\n")
        # Registering a pipeline registers its stages, too.
        with Engine.open(Path(name) / "state", flows=[process]) as engine, engine.worker():
            job_id = engine.submit(process, Fetch(str(source), name))
            response = engine.result(process, job_id, timeout=30)
            for stage, result in response.stages.items():
                print(f"stage {stage}: {result.state}")
            print(f"size {response.stages['fetch'].response['size']}")
            print(f"digest {response.stages['hash'].response['digest']}")
            print(f"children {[(child.name, child.state.value) for child in engine.store.children(job_id)]}")
            expected = hashlib.sha256(source.read_bytes()).hexdigest()
            assert response.stages["hash"].response["digest"] == expected


if __name__ == "__main__":
    main()
