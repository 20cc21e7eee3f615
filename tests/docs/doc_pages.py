"""The pages of the documentation as the tests see them: fenced blocks, headings and links.

How blocks are treated is written on their fence, or in a comment before it that a reader of the page does not see:

* ```` ```python ```` is run, in the page's one namespace; ```` ```python file=bank.py ```` is written to a file;
* ```` ```sh ```` is run by the page's one shell;
* ```` ```text output ```` is what the block before it must have printed; `...` stands for anything;
* `<!-- not run: why -->` before a `sh` block keeps it from being run. Every python block is run.
* `<!-- needs: postgresql -->` and `<!-- broker: check_after=1s -->` say what a page is run with;
  `<!-- needs: full -->`, that it is run by `make test-full` only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]

_FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>```+)(?P<info>[^`]*)$")
_COMMENT = re.compile(r"^<!--\s*(?P<name>[a-z ]+):\s*(?P<text>.*?)\s*-->$")
_HEADING = re.compile(r"^#{1,6} +(?P<text>.+?) *$")
_LINK = re.compile(r"\]\((?P<target>[^)\s]+)\)")  # the end of one: its text may begin on the line before
_CODE = re.compile(r"`[^`\n]*`")


@dataclass
class Block:
    """One fenced block; `line` is where its text begins."""

    language: str
    options: str
    text: str
    line: int
    not_run: str | None = None

    @property
    def file(self) -> str | None:
        found = re.search(r"\bfile=(\S+)", self.options)
        return found[1] if found else None

    @property
    def is_output(self) -> bool:
        return self.language == "text" and self.options == "output"

    @property
    def runs(self) -> bool:
        return self.not_run is None and (self.language in ("python", "sh") or self.is_output)


@dataclass
class Page:
    path: Path
    blocks: list[Block] = field(default_factory=list)
    headings: list[str] = field(default_factory=list)
    links: list[tuple[int, str]] = field(default_factory=list)
    settings: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return str(self.path.relative_to(ROOT))

    @property
    def runs(self) -> bool:
        return any(block.runs for block in self.blocks)

    def anchors(self) -> set[str]:
        """What `#...` may name: headings as GitHub turns them into anchors, the second of a kind with -1."""
        found: set[str] = set()
        for heading in self.headings:
            plain = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
            number = 0
            while (name := f"{plain}-{number}" if number else plain) in found:
                number += 1
            found.add(name)
        return found


def all_pages() -> list[Page]:
    folders = [path for folder in ("docs", "examples") for path in (ROOT / folder).rglob("*.md")]
    files = [ROOT / "README.md", ROOT / "CHANGELOG.md", *folders]
    return [read_page(path) for path in sorted(files)]


def read_page(path: Path) -> Page:
    page = Page(path)
    opened: Block | None = None
    fence, indent, lines, comment = "", 0, [], None
    for number, line in enumerate(path.read_text().splitlines(), 1):
        found = _FENCE.match(line)
        if opened is not None:
            if found and found["ticks"] == fence and not found["info"].strip():
                opened.text = "\n".join(lines) + "\n"
                page.blocks.append(opened)
                opened = None
            else:
                lines.append(line[indent:] if line[:indent].isspace() else line)
        elif found:
            language, _, options = found["info"].strip().partition(" ")
            opened = Block(language, options.strip(), "", number + 1, comment)
            fence, indent, lines, comment = found["ticks"], len(found["indent"]), [], None
        else:
            comment = _read_line(page, number, line, comment)
    assert opened is None, f"{page.name}: a fence is not closed"
    return page


def _read_line(page: Page, number: int, line: str, comment: str | None) -> str | None:
    """A line of prose; returns the reason not to run the block that follows, if this is one or a blank after one."""
    if not line.strip():
        return comment
    if found := _COMMENT.match(line):
        if found["name"] == "not run":
            return found["text"]
        page.settings[found["name"]] = found["text"]
    elif found := _HEADING.match(line):
        page.headings.append(re.sub(r"[`*]", "", found["text"]))
    page.links += [(number, link["target"]) for link in _LINK.finditer(_CODE.sub("`code`", line))]
    return None
