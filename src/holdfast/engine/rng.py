"""Chance that is no secret: for ids, and for how long to wait.

It is a source of our own: programs that seed that of the language, to have a run be like another, do not meet what
threads of ours draw from it meanwhile.
"""

from __future__ import annotations

import os
import random

chance = random.Random()  # noqa: S311 - not for secrets

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=chance.seed)  # or else a child draws what its parent does
