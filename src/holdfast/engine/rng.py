"""A source of random numbers, not for secrets: for ids and for pauses.

It is separate from that of the `random` module: programs that seed that one, to make a run reproducible, are not
disturbed by our threads.
"""

from __future__ import annotations

import os
import random

rng: random.Random = random.Random()  # noqa: S311 - not for secrets

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=rng.seed)  # or a child would draw the same numbers as its parent
