"""Links between pages lead somewhere, and tests that a page names exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from doc_pages import ROOT, Page, all_pages, read_page

PAGES = all_pages()
_OUTSIDE = re.compile(r"^[a-z]+:")
_TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")


@pytest.mark.parametrize("page", [pytest.param(page, id=page.name) for page in PAGES])
def test_every_link_of_the_page_leads_somewhere(page: Page) -> None:
    broken = [f"line {number}: {target}" for number, target in page.links if not _resolves(page, target)]
    assert broken == []


@pytest.mark.parametrize("page", [pytest.param(page, id=page.name) for page in PAGES])
def test_every_test_that_the_page_names_exists(page: Page) -> None:
    missing = [f"{file}::{name}" for file, name in _TEST.findall(page.path.read_text()) if not _has_test(file, name)]
    assert missing == []


def test_a_broken_link_is_noticed(tmp_path: Path) -> None:
    """The negative control."""
    path = tmp_path / "page.md"
    path.write_text("# Here\n\n[a](#here) [b](#nowhere) [c](missing.md) [d](page.md#here) `[e](f.md)`\n")
    page = read_page(path)
    assert [target for _, target in page.links if not _resolves(page, target)] == ["#nowhere", "missing.md"]
    assert not _has_test("tests/conftest.py", "test_nothing")


def test_every_page_can_be_reached_from_the_index() -> None:
    index = ROOT / "docs/README.md"
    linked = {(index.parent / target.partition("#")[0]).resolve() for _, target in read_page(index).links}
    pages = {page.path for page in PAGES if ROOT / "docs" in page.path.parents and page.path != index}
    assert pages - linked == set()


def _resolves(page: Page, target: str) -> bool:
    if _OUTSIDE.match(target):
        return True  # other people's pages are not ours to test
    file, _, anchor = target.partition("#")
    path = (page.path.parent / file).resolve() if file else page.path
    if not path.exists():
        return False
    return not anchor or (path.suffix == ".md" and anchor in read_page(path).anchors())


def _has_test(file: str, name: str) -> bool:
    path = ROOT / file
    if not path.exists():
        return False
    return (
        not name or re.search(rf"^ *(async )?def {name}\(|^class {name}\b", path.read_text(), re.MULTILINE) is not None
    )
