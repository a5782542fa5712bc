"""The type of the job that notices credentials in what is stored. Runners add this job to every store."""

from __future__ import annotations

from holdfast.maintenance.jobs.types import JobContextBase, JobResult, declare

CREDENTIALS = "credentials"
SCHEDULE = "every 5m"


async def _check(job: JobContextBase) -> JobResult:
    from holdfast.security.sensitive.credential_check import CredentialCheck

    check = await CredentialCheck.open(job.store._handle.engine, job.store._handle.tenant)

    async def report(done: int, what: str) -> None:
        if done % _STORED_AFTER == 0:
            await check.store()
        job.progress(done, None, what)

    await check.run(report)
    await check.store()
    # Without names: runs stay when what they found is erased.
    count = len(check.progress.places)
    places = "1 place" if count == 1 else f"{count} places"
    return JobResult(f"credentials in clear at {places}: holdfast doctor" if count else "no credentials found")


_STORED_AFTER = 50
"""After how many lines it is stored how far the check got."""

CREDENTIALS_JOB = declare(
    CREDENTIALS, "look for credentials in what was saved since the last time", _check, reaches_out=False
)
