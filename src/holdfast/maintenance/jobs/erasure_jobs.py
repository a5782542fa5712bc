"""The type of jobs that erase the data of one person: `store.erasure.erase` creates them, and removes them when they
are done."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.maintenance.jobs.types import JobContextBase, JobResult, JobType, known_only

ERASE = "erase"


def _check(settings: Mapping[str, Any]) -> None:
    from holdfast.engine.subject_names import check_subject
    from holdfast.errors import InvalidError

    known_only(settings, subject=str, id=str, started=int, metadata_keys=list)
    if "id" not in settings or "started" not in settings:
        raise InvalidError(
            "an erasure is started by erase, and this job resumes it",
            hint="store.erasure.erase(…), or holdfast erase --subject",
        )
    check_subject(settings.get("subject"))


async def _erase(job: JobContextBase) -> JobResult:
    from holdfast.maintenance.erasure.eraser import Eraser

    settings = job.settings
    eraser = Eraser(
        job.store._handle,
        settings["subject"],
        metadata_keys=settings["metadata_keys"],
        progress=job.progress,
    )
    certificate = await eraser.erase(settings["id"], settings["started"])
    count = sum(certificate.erased.values())
    return JobResult(f"{count} threads, scopes, records and the like erased; certificate {certificate.id}")


ERASURE_JOBS = (
    JobType(
        ERASE,
        "erase the data of one person: continues what `holdfast erase` began",
        _erase,
        _check,
        {"subject": "the name of the person; id, started and metadata_keys are those of the erasure"},
    ),
)
