"""An image processed to its end by a worker that is there."""

from __future__ import annotations

from holdfast import Engine
from holdfast.core.records import JobResult
from holdfast_images.flows.schemas import ProcessRequest, key_of

PATIENCE = 100.0


def results_of(engine: Engine, request: ProcessRequest) -> dict[str, JobResult]:
    """The results of the stages that were reached, and of `process` itself."""
    job_id = engine.submit("process-image", request, key=key_of(request))
    results = {"process": engine.wait(job_id, timeout=PATIENCE)}
    for child in engine.store.children(job_id):
        results[child.name] = engine.wait(child.job_id, timeout=PATIENCE)
    return results
