"""Just enough Markdown to test the documents: fenced blocks, links and headings."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).resolve().parents[2]

FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>`{3,}|~{3,}) *(?P<info>[^`]*)$")
INLINE_CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)")
LINK = re.compile(r"\[[^\]]*\]\(\s*<?(?P<inline>[^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
DEFINITION = re.compile(r"^ {0,3}\[[^\]]+\]:\s*<?(?P<target>[^\s>]+)>?")
HEADING = re.compile(r"^#{1,6}\s+(?P<title>.+?)\s*#*$")


@dataclass(frozen=True)
class Block:
    """One fenced code block."""

    path: Path
    line: int
    info: str
    text: str

    @property
    def where(self) -> str:
        return f"{name_of(self.path)}:{self.line}"


@dataclass(frozen=True)
class Line:
    """One line of prose, without its inline code."""

    path: Path
    number: int
    text: str


def name_of(path: Path) -> str:
    """The path as a reader of the repository would write it."""
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name


def documents(root: Path = ROOT) -> list[Path]:
    """Every document of the project."""
    folders = ("*.md", "docs/**/*.md", "changes/*.md", "examples/**/*.md")
    found = [path for pattern in folders for path in root.glob(pattern)]
    return sorted(found)


def split(path: Path) -> tuple[list[Block], list[Line]]:
    """The fenced blocks of a document and the prose around them."""
    blocks: list[Block] = []
    prose: list[Line] = []
    fence: re.Match[str] | None = None
    opened, body = 0, list[str]()
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        mark = FENCE.match(text)
        if fence is None:
            if mark:
                fence, opened, body = mark, number, []
            else:
                prose.append(Line(path, number, text))
        elif mark and not mark["info"] and mark["ticks"].startswith(fence["ticks"]):
            blocks.append(Block(path, opened, fence["info"].strip(), dedent("\n".join(body)) + "\n"))
            fence = None
        else:
            body.append(text)
    if fence is not None:
        raise ValueError(f"{name_of(path)}:{opened}: this code block is never closed")
    return blocks, prose


def links(path: Path) -> Iterator[tuple[int, str]]:
    """Line and target of every link."""
    for line in split(path)[1]:
        text = INLINE_CODE.sub("``", line.text)
        for match in LINK.finditer(text):
            yield line.number, match["inline"]
        if definition := DEFINITION.match(text):
            yield line.number, definition["target"]


def anchors(path: Path) -> set[str]:
    """The fragment names that a document's headings give."""
    found: set[str] = set()
    for line in split(path)[1]:
        if heading := HEADING.match(line.text):
            plain = re.sub(r"[^\w\s-]", "", heading["title"].replace("`", "").lower())
            found.add(re.sub(r"\s+", "-", plain.strip()))
    return found
