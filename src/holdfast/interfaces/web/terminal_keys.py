"""The Enter key in the terminal of a server."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable

_PAUSE = 1.0


class TerminalKeys:
    """Calls a function whenever a line is entered in the terminal. Only in the foreground: the system stops a program
    in the background that reads."""

    def __init__(self, entered: Callable[[], None]) -> None:
        self._entered = entered
        self._file = sys.stdin.fileno()

    def follow(self) -> None:
        """Begin, in the event loop that runs."""
        asyncio.get_running_loop().add_reader(self._file, self._read)

    def _read(self) -> None:
        loop = asyncio.get_running_loop()
        if os.tcgetpgrp(self._file) != os.getpgrp():  # what was typed is for another
            loop.remove_reader(self._file)
            loop.call_later(_PAUSE, self.follow)
        elif os.read(self._file, 4096):
            self._entered()
        else:  # the end of the input
            loop.remove_reader(self._file)
