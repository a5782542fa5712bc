"""Links between documents lead somewhere, and no file names a private place."""

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tests.docs.markdown import ROOT, anchors, documents, links, name_of, split

# A package index, or a directory of somebody's machine, has no business in the repository.
# Whoever installs Holdfast has their own.
PRIVATE = {
    "a package index": re.compile(
        r"\b(?:[\w-]+\.)*(?:pypi|pythonhosted|npmjs|debian)\.(?:org|com|io|python)\b"
        r"|--(?:extra-)?index-url|--find-links|--trusted-host",
        re.IGNORECASE,
    ),
    "a private path": re.compile(r"(?<![\w./:-])/(?:home|opt|root|srv|Users|work)/\w"),
}


def published() -> list[Path]:
    """The documents, and the other files that name where things come from."""
    return [
        *documents(),
        *(ROOT / name for name in ("Makefile", "pyproject.toml", "mkdocs.yml")),
        *sorted(path for path in ROOT.glob("requirements/**/*") if path.is_file()),
        *sorted(ROOT.glob(".github/workflows/*.yml")),
    ]


def broken_links(path: Path, root: Path) -> list[str]:
    """Every relative link of a document that leads nowhere, as `file:line: target: why`."""
    broken = []
    for line, target in links(path):
        parts = urlsplit(target)
        if parts.scheme or parts.netloc:
            continue
        where = f"{path.relative_to(root).as_posix()}:{line}: {target}"
        goal = (path.parent / unquote(parts.path)).resolve() if parts.path else path
        if not goal.exists():
            broken.append(f"{where}: no such file")
        elif path.is_relative_to(root / "docs") and not goal.is_relative_to(root / "docs"):
            broken.append(f"{where}: pages in docs/ link inside docs/ only; name the file instead")
        elif path.is_relative_to(root / "docs") and goal.is_dir():
            broken.append(f"{where}: link to a page, not to a directory")
        elif parts.fragment and goal.suffix == ".md" and parts.fragment not in anchors(goal):
            broken.append(f"{where}: no such heading")
    return broken


def private_places(text: str) -> list[str]:
    """What a text says that is nobody's business, as `line: what`."""
    return [
        f"{number}: {what}: {match[0]}"
        for number, line in enumerate(text.splitlines(), 1)
        for what, pattern in PRIVATE.items()
        for match in pattern.finditer(line)
    ]


def test_relative_links_resolve() -> None:
    found = documents()
    assert len(found) > 60, "are these all?"
    assert [broken for path in found for broken in broken_links(path, ROOT)] == []


def test_no_private_places() -> None:
    found = published()
    assert len(found) > 70, "are these all?"
    assert [
        f"{name_of(path)}:{what}" for path in found for what in private_places(path.read_text(encoding="utf-8"))
    ] == []


def test_every_page_is_reachable_from_the_index() -> None:
    start = ROOT / "docs" / "index.md"
    reached, waiting = {start}, [start]
    while waiting:
        page = waiting.pop()
        for _, target in links(page):
            goal = (page.parent / unquote(urlsplit(target).path)).resolve()
            if goal.suffix == ".md" and goal.exists() and goal not in reached:
                reached.add(goal)
                waiting.append(goal)
    pages = set(ROOT.glob("docs/**/*.md"))
    assert len(pages) > 50, "are these all?"
    assert sorted(name_of(page) for page in pages - reached) == []


def test_broken_links_are_caught(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    (docs / "more").mkdir(parents=True)
    (tmp_path / "README.md").write_text("[docs](docs/a.md) [dir](docs)\n")
    (docs / "b.md").write_text("# What it `does`, and why\n")
    page = docs / "a.md"
    page.write_text(
        "[b](b.md) [why](b.md#what-it-does-and-why) [web](https://example.org/x)\n"
        "`[code](nowhere.md)`\n"
        "[gone](gone.md)\n"
        "[gone](b.md#gone)\n"
        "[out](../README.md)\n"
        "[dir](more)\n"
        "[named]: gone.md\n"
        "```text\n[block](nowhere.md)\n```\n"
    )
    assert broken_links(tmp_path / "README.md", tmp_path) == []
    assert [line.split(": ")[:2] for line in broken_links(page, tmp_path)] == [
        ["docs/a.md:3", "gone.md"],
        ["docs/a.md:4", "b.md#gone"],
        ["docs/a.md:5", "../README.md"],
        ["docs/a.md:6", "more"],
        ["docs/a.md:7", "gone.md"],
    ]


def test_private_places_are_caught() -> None:
    fine = "sqlite:///agents.db, file:///opt/x, /tmp/x, docs/work/x, /path/to/python"
    index = "https://files.pythonhosted" + ".org/x"
    assert private_places(f"{fine}\nsee {index}\nin /home" + "/me/x\n--index-" + "url x") == [
        "2: a package index: files.pythonhosted" + ".org",
        "3: a private path: /home" + "/m",
        "4: a package index: --index-" + "url",
    ]


def test_headings_in_code_are_no_anchors(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One\n\n```bash\n# two\n```\n\n## Three & four\n")
    assert anchors(page) == {"one", "three-four"}
    assert [block.text for block in split(page)[0]] == ["# two\n"]
