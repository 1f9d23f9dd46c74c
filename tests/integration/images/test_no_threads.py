"""A command on a host that starts no more threads says so."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

SCRIPT = """
import os, resource, sys
from pathlib import Path
from holdfast_images import ImageManager
from holdfast_images.errors import NoThreads
from tests.support.images.small_image import request_for, small_image

place = Path(sys.argv[1])
(place / "source.tar").write_bytes(small_image())
with ImageManager.open(place / "state") as images:
    # Everything is imported before the user is another one, who cannot read it everywhere.
    images.process(request_for(place / "source.tar"))
    [job] = images.submit(request_for(place / "source.tar", snapshot="more")).jobs
    for path in place.rglob("*"):
        os.chown(path, 65534, 65534, follow_symlinks=False)
    resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
    os.setuid(65534)
    try:
        images.wait(job.job_id)
    except NoThreads as error:
        print(error, flush=True)
    os._exit(0)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become a user that limits hold for")
def test_a_worker_whose_threads_cannot_start_is_told_as_such() -> None:
    root = Path(__file__).parents[3]
    # Not below the directory of the tests, which nobody else may enter.
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o777)
        command = [sys.executable, "-c", SCRIPT, place]
        ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=root)

    assert ended.returncode == 0, ended.stderr
    assert "a limit of processes is reached" in ended.stdout
