"""Every code block in the documents works.

The Python blocks of one document run in order, in one namespace and an empty directory. A block
that reads the URL of a server from the environment gets a fresh place on a real one. A block that
starts with the name of a file is also written to it. Shell blocks are not run; the `make` targets
and `holdfast` commands they name must exist. Of the documents in `CONSOLES` they are run, and have
to print what the document says.
"""

import re
import shlex
import sys
import tomllib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from tests import servers
from tests.docs.markdown import ROOT, Block, documents, name_of, split
from tests.interfaces.cli import kit
from tests.servers.places import with_options

PYTHON = "python"
# Other ways to write the same; they would slip past this test.
PYTHON_LOOKALIKES = re.compile(r"^(py|python|python3|pycon|ipython)\b", re.IGNORECASE)


SERVERS: dict[str, Callable[[], str]] = {
    "POSTGRES_URL": servers.postgres,
    "MONGODB_URL": servers.mongodb,
    "REDIS_URL": servers.redis,
    "S3_URL": lambda: with_options(*servers.s3()),
    "GCS_URL": lambda: with_options(*servers.gcs()),
}
SHELL = {"bash", "console", "sh", "shell"}
CONSOLES = {"docs/guides/migrations.md"}
"""Documents whose console blocks are run, and whose TOML is their `holdfast.toml`."""

FRAMEWORKS = {f"docs/guides/{name}.md" for name in ("agent-framework", "google-adk", "pydantic-ai")}
"""Documents on frameworks that are installed in environments of their own. `make adapters` runs their blocks."""

FILE_NAME = re.compile(r"# (\w+\.py)\n")
VARYING = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-6[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")
"""What differs each time: ids of checkpoints."""


def all_blocks() -> list[Block]:
    found = [block for path in documents() for block in split(path)[0]]
    assert sum(block.info == PYTHON for block in found) > 150, "are these all?"
    assert sum(block.info in SHELL for block in found) > 20, "are these all?"
    return found


@cache
def runnable_blocks() -> dict[Path, list[Block]]:
    """The blocks to run of each document that has any, in order."""
    found: dict[Path, list[Block]] = {}
    for block in all_blocks():
        if name_of(block.path) in FRAMEWORKS:
            continue
        if block.info == PYTHON or (block.info in ("console", "toml") and name_of(block.path) in CONSOLES):
            found.setdefault(block.path, []).append(block)
    return found


def run(blocks: list[Block], module: ModuleType) -> None:
    """Run blocks as if they were one module; a traceback shows the document's own lines."""
    for block in blocks:
        if block.info == "toml":
            Path("holdfast.toml").write_text(block.text, encoding="utf-8")
        elif block.info == "console":
            assert printed(block) == VARYING.sub("…", block.text), block.where
        else:
            if name := FILE_NAME.match(block.text):
                Path(name[1]).write_text(block.text, encoding="utf-8")
            code = compile("\n" * block.line + block.text, str(block.path), "exec", dont_inherit=True)
            exec(code, module.__dict__)


def printed(block: Block) -> str:
    """Run the commands of a console block. Returns it with what they print."""
    text = ""
    for line in block.text.splitlines():
        if line.startswith("$ holdfast "):
            result = kit.run(*shlex.split(line)[2:])
            text += f"{line}\n{result.err}{VARYING.sub('…', result.out)}"
    return text


def make_targets() -> set[str]:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z][a-z-]*):", makefile, re.MULTILINE))


def commands(block: Block) -> list[list[str]]:
    """The simple commands of a shell block, without prompts, comments and variables."""
    found = []
    for line in block.text.replace("\\\n", " ").splitlines():
        line = line.strip().removeprefix("$ ")
        for part in re.split(r"&&|\|\||[;|]", line):
            words = shlex.split(part, comments=True)
            while words and re.match(r"^\w+=", words[0]):
                words.pop(0)
            if words:
                found.append(words)
    return found


def unknown_commands(block: Block, targets: set[str], scripts: set[str]) -> list[str]:
    """What a shell block names that the repository doesn't have."""
    unknown = []
    for program, *arguments in commands(block):
        if program == "make":
            names = [a for a in arguments if not a.startswith("-") and "=" not in a]
            unknown += [f"make {name}" for name in names if name not in targets]
        elif program == "holdfast" and program not in scripts:
            unknown.append("holdfast")
    return unknown


@pytest.mark.parametrize("path", runnable_blocks(), ids=name_of)
def test_python_blocks_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = runnable_blocks()[path]
    # A real module, so that classes defined in a block can be found where they say they are.
    module = ModuleType("document_" + re.sub(r"\W", "_", name_of(path).removesuffix(".md")))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.chdir(tmp_path)
    for variable, open_server in SERVERS.items():
        if any(variable in block.text for block in blocks):
            monkeypatch.setenv(variable, open_server())
    run(blocks, module)


def test_no_block_escapes() -> None:
    escaping = [
        f"{block.where}: write ```python, not ```{block.info}"
        for block in all_blocks()
        if PYTHON_LOOKALIKES.match(block.info) and block.info != PYTHON
    ]
    assert escaping == []


def test_shell_blocks_name_what_exists() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    scripts, targets = set(project.get("scripts", {})), make_targets()
    unknown = [
        f"{block.where}: {what}"
        for block in all_blocks()
        if block.info in SHELL
        for what in unknown_commands(block, targets, scripts)
    ]
    assert unknown == []


def test_a_failing_block_is_caught_at_its_line(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text("# Page\n\n```python\nx = 1\n```\n\n```python\nassert x == 2\n```\n")
    with pytest.raises(AssertionError) as caught:
        run(split(path)[0], ModuleType("page"))
    assert (Path(caught.traceback[-1].path), caught.traceback[-1].lineno + 1) == (path, 8)


def test_blocks_are_found_in_lists_and_inside_longer_fences(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text("- item\n\n  ```python\n  x = 1\n  ```\n\n````text\n```python\n1 / 0\n```\n````\n")
    assert [(b.line, b.info, b.text) for b in split(path)[0]] == [
        (3, "python", "x = 1\n"),
        (7, "text", "```python\n1 / 0\n```\n"),
    ]


def test_an_open_block_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text("text\n\n```python\nx = 1\n")
    with pytest.raises(ValueError, match=r"page\.md:3"):
        split(path)


def test_unknown_commands_are_caught() -> None:
    text = "$ CI=1 make test && make  nothing  # why\ncd x; holdfast verify\nmake -j2 X=1 lint\n"
    block = Block(Path("page.md"), 1, "bash", text)
    assert unknown_commands(block, {"test", "lint"}, set()) == ["make nothing", "holdfast"]
