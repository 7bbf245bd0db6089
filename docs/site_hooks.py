"""Hooks of mkdocs: add the pages of the top level and llms.txt to the site."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

ROOT = Path(__file__).parent.parent
TOP_LEVEL = ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
"""Pages of the repository's top level that the site has too."""


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add the pages of the top level next to those of docs/."""
    for name in TOP_LEVEL:
        files.append(File.generated(config, name, content=_without_folder(ROOT / name)))


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Return a page whose links to the top level lead to pages of the site."""
    return re.sub(rf"\]\(\.\./({'|'.join(TOP_LEVEL)})", r"](\1", markdown)


def on_post_build(config: MkDocsConfig) -> None:
    """Add llms.txt and the Markdown sources that it names."""
    site = Path(config.site_dir)
    (site / "llms.txt").write_text(_without_folder(ROOT / "llms.txt"), encoding="utf-8")
    for page in [*ROOT.glob("docs/*.md"), *(ROOT / name for name in TOP_LEVEL)]:
        shutil.copy(page, site / page.name)


def _without_folder(path: Path) -> str:
    return path.read_text(encoding="utf-8").replace("](docs/", "](")
