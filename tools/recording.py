"""Records a terminal: `python -m tools.recording` types commands of the tutorial.

It writes `docs/assets/terminal.svg`. The picture is light or dark as the reader's screen is, and its lines appear one
after the other.
"""

from __future__ import annotations

import html
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "assets" / "terminal.svg"
TUTORIAL = ROOT / "docs" / "guides" / "tutorial.md"

COMMANDS = (
    "python agent.py --crash",
    "python agent.py",
    "holdfast log research --oneline",
    "holdfast undo research",
    "holdfast backup create -r backups",
    "holdfast verify",
)
_PROGRESS = re.compile(r"\w+: \d+ of \d+ ")
"""What a command reports every few seconds."""

_COLUMNS = 104
_LINE, _WIDTH, _PAUSE = 19, 7.85, 0.7
_STYLE = """\
text { font: 13px ui-monospace, Menlo, Consolas, monospace; white-space: pre; fill: #1f2328; }
.back { fill: #f6f8fa; stroke: #d1d9e0; } .typed { fill: #0550ae; font-weight: bold; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; } .back { fill: #0d1117; stroke: #3d444d; } .typed { fill: #79c0ff; }
}
@media (prefers-reduced-motion: no-preference) {
  .step { opacity: 0; animation: appear 0.2s forwards; } @keyframes appear { to { opacity: 1; } }
}
"""


def record() -> list[tuple[str, list[str]]]:
    """Type the commands into a shell in a new directory. Returns each with the lines that it printed."""
    page = TUTORIAL.read_text(encoding="utf-8")
    program = page.partition("```python\n")[2].partition("```")[0]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}"
    environment = {**kept, "PATH": path, "PYTHONUNBUFFERED": "1", "HOLDFAST_STORE": "agents.db"}
    found = []
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "agent.py").write_text(program, encoding="utf-8")
        for command in COMMANDS:
            done = subprocess.run(
                ["bash", "-c", f"{command}\nexit 0"],
                cwd=folder,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                encoding="utf-8",
                check=True,
            )
            printed = [line for line in done.stdout.splitlines() if not _PROGRESS.match(line)]
            lines = ["Killed" if "Killed" in line else line for line in printed]
            found.append((command, lines))
    return found


def draw(steps: list[tuple[str, list[str]]]) -> str:
    """Draw what was typed and printed as an SVG."""
    parts, row = list[str](), 0
    for number, (command, lines) in enumerate(steps):
        parts.append(f'<g class="step" style="animation-delay: {number * _PAUSE:g}s">')
        for line in (f"$ {command}", *lines):
            row += 1
            text = html.escape(line if len(line) <= _COLUMNS else f"{line[: _COLUMNS - 1]}…")
            kind = ' class="typed"' if line == f"$ {command}" else ""
            parts.append(f'<text x="14" y="{row * _LINE + 8}"{kind}>{text}</text>')
        parts.append("</g>")
    width, height = round(_COLUMNS * _WIDTH + 28), (row + 1) * _LINE + 8
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
            "<title>An agent is killed, goes on, and is looked at, undone, backed up and verified</title>",
            f"<style>\n{_STYLE}</style>",
            f'<rect class="back" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8"/>',
            *parts,
            "</svg>\n",
        ]
    )


if __name__ == "__main__":
    PICTURE.write_text(draw(record()), encoding="utf-8")
    print(f"written to {PICTURE.relative_to(ROOT)}")
