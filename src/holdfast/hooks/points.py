"""The points at which hooks are called."""

from __future__ import annotations

from holdfast.errors import InvalidError

POINTS = {
    "state.set": "a key gets a value",
    "state.patch": "parts of a key's value change; the hook is given the whole new value",
    "state.delete": "a key is taken away",
    "state.expire": "a key gets another time to expire, and keeps its value",
    "state.rollback": "a key gets the value that it had once",
    "checkpoint.save": "a checkpoint is saved, in whichever way; the hook is given the whole state",
    "checkpoint.delete": "a thread is deleted",
    "session.start": "a session is started; the hook is given its metadata",
    "session.resume": "a session is resumed",
    "session.end": "a session is ended",
    "session.expire": "a session that has expired is collected",
    "session.restore": "a session that was ended is restored",
    "session.delete": "a session is deleted, also after its retention; the hook is given no value",
    "topic.publish": "a message is published; the hook is given the message",
    "requests.ask": "a request is sent; the hook is given the request",
    "requests.answer": "a request is answered; the hook is given the answer",
    "pipeline.put": "an item is put into a pipeline, or once more; the hook is given the item",
    "pipeline.done": "a stage of a pipeline hands an item on; the hook is given the result of the stage",
    "document.edit": "a shared document is edited; the hook is given the whole new value",
    "artifact.register": "an artifact is registered; the hook is given what is known of it",
    "artifact.delete": "an artifact is deleted; the hook is given no value",
    "agent.create": "an agent is saved for the first time; the hook is given what is to be saved, as with all of these",
    "agent.save": "an agent is saved",
    "agent.start": "an agent is started",
    "agent.pause": "an agent is paused",
    "agent.resume": "an agent goes on where it was paused",
    "agent.stop": "an agent is stopped",
    "agent.fail": "an agent is said to have failed",
    "agent.transition": "the machine of an agent takes a transition",
    "agent.rollback": "an agent is rolled back to an earlier state; the hook is given that state",
    "agent.transfer": "an agent hands its conversation over to another",
    "agent.restore": "an agent is brought back to life",
    "agent.delete": "an agent is deleted; the hook is given no value",
}
"""All points, and when their hooks are called. A feature with a point of its own adds it here."""


def check_points(patterns: tuple[str, ...]) -> frozenset[str]:
    """Return the points that names stand for: a point, all of a kind (`state.*`), or all (`*`). `InvalidError` if there
    is none."""
    if not patterns:
        raise InvalidError("a hook is registered for a point", hint=f"Such as {next(iter(POINTS))!r}, or 'state.*'")
    return frozenset(point for pattern in patterns for point in _points(pattern))


def _points(pattern: object) -> list[str]:
    if not isinstance(pattern, str):
        raise InvalidError(
            f"the name of a point must be a string, not {type(pattern).__name__}", where=repr(pattern)[:80]
        )
    if pattern == "*":
        return list(POINTS)
    if pattern.endswith(".*"):
        found = [point for point in POINTS if point.startswith(pattern[:-1])]
    else:
        found = [pattern] if pattern in POINTS else []
    if not found:
        from difflib import get_close_matches

        names = [*POINTS, *{f"{point.split('.')[0]}.*" for point in POINTS}]
        close = get_close_matches(pattern, names, 1)
        raise InvalidError(
            f"there is no point {pattern[:80]!r}",
            hint=f"Did you mean {close[0]!r}?" if close else f"The points are {', '.join(POINTS)}",
        )
    return found
