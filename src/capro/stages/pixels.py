"""A small data set is decoded once into a memory map; a large one as it is needed."""

from __future__ import annotations

from typing import Any

from capro.data.manifest import manifest_of
from capro.data.pixels import decoded_bytes, pixels_of
from capro.run.artefacts import PIXEL_INDEX
from capro.run.stage import Job


def work(job: Job) -> dict[str, Any]:
    job.remove(PIXEL_INDEX)
    manifest = manifest_of(job.run)
    needed = decoded_bytes(manifest)
    if needed > job.settings.views.cache_gb * 2**30:
        return {"cached": False, "bytes": needed}
    with job.bar("decoding images", len(manifest.samples)) as step:
        pixels = pixels_of(job.run, job.stage.settings(job.run)["size"], cached=False)
        pixels.build(job.folder, needed=needed, progress=step)
    return {"cached": True, "bytes": needed}
