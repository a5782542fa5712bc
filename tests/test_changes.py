"""Release notes: the fragments in changes/ are well named and make a changelog."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from shutil import copytree

ROOT = Path(__file__).resolve().parent.parent
KINDS = ("added", "changed", "fixed", "security")
NAME = re.compile(rf"[a-z0-9][a-z0-9-]*\.({'|'.join(KINDS)})\.md")


def towncrier(directory: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "towncrier", "build", "--version", "9.9.9", *arguments]
    done = subprocess.run(command, cwd=directory, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_fragments_are_well_named_and_say_something() -> None:
    fragments = [path for path in (ROOT / "changes").iterdir() if path.name not in {"README.md", "template.md.jinja"}]
    assert [path.name for path in fragments if not NAME.fullmatch(path.name)] == []
    assert [path.name for path in fragments if not path.read_text(encoding="utf-8").strip()] == []


def test_kinds_are_those_of_the_configuration() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    kinds = [kind["directory"] for kind in config["tool"]["towncrier"]["type"]]
    assert tuple(kinds) == KINDS


def test_fragments_become_a_changelog(tmp_path: Path) -> None:
    copytree(ROOT / "changes", tmp_path / "changes")
    for path in (tmp_path / "changes").glob("*.*.md"):
        path.unlink()
    for name in ("pyproject.toml", "CHANGELOG.md"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    (tmp_path / "changes" / "keys.fixed.md").write_text("Keys of\ntwo lines.\n")
    (tmp_path / "changes" / "codec.added.md").write_text("A codec.\n")
    (tmp_path / "changes" / "atoms.added.md").write_text("Atoms.\n")
    draft = towncrier(tmp_path, "--draft", "--date", "2030-01-02")
    section = draft[draft.index("## 9.9.9") :]
    assert section.strip() == (
        "## 9.9.9 (2030-01-02)\n\n### Added\n\n- Atoms.\n- A codec.\n\n### Fixed\n\n- Keys of\n  two lines."
    )
    text = (tmp_path / "CHANGELOG.md").read_text(encoding="utf-8")
    towncrier(tmp_path, "--yes", "--date", "2030-01-02")
    released = (tmp_path / "CHANGELOG.md").read_text(encoding="utf-8")
    head = text[: text.index("<!-- releases -->")]
    assert released.startswith(head)
    assert section.strip() in released
