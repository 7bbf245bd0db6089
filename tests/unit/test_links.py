"""Every link in the documentation works, and the index names every page."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.processes import ROOT

if TYPE_CHECKING:
    from pathlib import Path

PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
LINK = re.compile(r"""\]\(\s*<?([^)\s>]+)|^\[[^\]]+\]:\s+(\S+)|(?:href|src)=["']([^"']+)""", re.M)


def prose(page: Path) -> str:
    """Return a page without its examples, which have no links or headings."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
    return re.sub(r"`[^`\n]+`", lambda code: re.sub(r"[\[\]()]", "", code[0]), text)


def links(page: Path) -> list[str]:
    """Return a page's links, including pictures."""
    return ["".join(found) for found in LINK.findall(prose(page))]


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them: a second one gets -1."""
    found: list[str] = []
    for heading in re.findall(r"^#+ +(.+?) *#*$", prose(page), re.M):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        found.append(re.sub(r"[^\w\- ]", "", text).replace(" ", "-"))
    return {f"{name}-{n}" if (n := found[:at].count(name)) else name
            for at, name in enumerate(found)}  # fmt: skip


def broken(page: Path) -> list[str]:
    """Return the broken links of a page; links to the web must use https."""
    wrong = []
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if "://" in link:
            if not link.startswith("https://"):
                wrong.append(link)
        elif not target.exists() or (anchor and anchor not in anchors(target)):
            wrong.append(link)
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_links_work(page: Path) -> None:
    """Every relative link names an existing file and an existing heading."""
    assert broken(page) == []


def test_broken_links_are_found(tmp_path: Path) -> None:
    """Missing files and headings are found in every kind of link; examples are no links."""
    (tmp_path / "other.md").write_text("# Some `code`, and more\n\n## Twice\n\n## Twice\n")
    page = tmp_path / "page.md"
    page.write_text(
        "# Here\n[a](other.md) [b](other.md#some-code-and-more) [c](#here) [d](other.md#twice-1)\n"
        "[e](gone.md) ![f](gone.png) [g](other.md#twice-2) [h](#there) [i](http://example.org)\n"
        '<img src="gone.svg"> [j](<gone.txt>)\n\n[k]: gone.html\n'
        "```\n[not](a-link.md)\n# nor a heading\n```\n[l](#nor-a-heading) `[m](code.md)`\n"
    )
    assert broken(page) == [
        "gone.md", "gone.png", "other.md#twice-2", "#there", "http://example.org",
        "gone.svg", "gone.txt", "gone.html", "#nor-a-heading",
    ]  # fmt: skip


def test_the_index_has_every_page() -> None:
    """``docs/index.md`` links every page, and the README links the index."""
    index = ROOT / "docs" / "index.md"
    there = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    assert there - set(links(index)) == {"index.md"}
    assert "docs/index.md" in links(ROOT / "README.md")
    for reader in ("operator", "script writer", "analyst", "administrator", "contributor"):
        assert f"**{reader}**" in index.read_text()


def test_the_readme_fits_on_two_screens() -> None:
    """The README has at most 90 lines. More belongs on a page of ``docs/``."""
    text = (ROOT / "README.md").read_text()
    shown = re.sub(r"<details>.*?</details>", "", text, flags=re.DOTALL)  # a reader unfolds it
    assert len(shown.splitlines()) <= 90


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_a_page_names_exist(page: Path) -> None:
    """A path of this repository in the text is that of a file or a folder."""
    named = re.findall(
        r"`((?:benchmarks|docs|dynprof|examples|schemas|tests)/[\w./]+)`", page.read_text()
    )
    assert [path for path in named if not (ROOT / path).exists()] == []
