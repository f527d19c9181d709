"""What MkDocs made of the Markdown of each page, and its search of the page, kept from build to build.

An edit changes one page of the book; to convert the others once more would take longer than all else that a build
does then. What is kept serves for the same text, the same extensions, and the same files that links can lead to.
"""

import hashlib
import json
import logging
import re
from pathlib import Path

from mkdocs.structure.pages import Page
from mkdocs.structure.toc import get_toc
from mkdocs.utils import CountHandler

import dependencies

FORMAT = 1
MADE_BY = dependencies.made_by(__file__, "mkdocs-material")
CONVERTERS = ("mkdocs", "markdown", "pymdown-extensions", "pygments")

# The search reads a page a piece at a time: it needs nothing of pictures, or of the colours of code.
_UNSEARCHED = re.compile(r"<svg\b.*?</svg>", re.DOTALL)
_COLOURS = re.compile(r"</?(?:span|math|m(?:row|i|o|n|s|text|sub|sup|subsup|frac|sqrt|over|under|table|tr|td))\b[^>]*>")


class Converter:
    """Converts the pages of one build, and keeps what came of each in a folder."""

    def __init__(self, folder: Path, config, files):
        self.folder = folder
        about = [
            FORMAT,
            dependencies.versions(CONVERTERS),
            [repr(config[name]) for name in ("markdown_extensions", "mdx_configs", "use_directory_urls", "validation")],
            sorted((file.src_uri, file.url, str(file.inclusion)) for file in files),
        ]
        self.about = hashlib.sha256(json.dumps(about).encode()).hexdigest()

    def render(self, page: Page, config, files) -> None:
        """What Page.render does. A page that MkDocs has something to say of is not kept: it must say it again."""
        path = self.folder / Path(page.file.src_uri).with_suffix(".json")
        key = hashlib.sha256("\0".join((self.about, page.file.src_uri, page.markdown)).encode()).hexdigest()
        if kept := dependencies.kept(path, key):
            page.content, page.toc = kept["content"], get_toc(kept["toc"])
            page._title_from_render = kept["title"]
            page.present_anchor_ids = set(kept["anchors"])
            page.links_to_anchors = {files.get_file_from_path(uri): links for uri, links in kept["links"].items()}
            return
        said, logger = CountHandler(level=logging.INFO), logging.getLogger("mkdocs")
        logger.addHandler(said)
        try:
            Page.render(page, config, files)
        finally:
            logger.removeHandler(said)
        # Where it is told to be quiet, it may have had something to say; and below "info" it notes no links.
        if logger.getEffectiveLevel() == logging.INFO and not said.get_counts():
            dependencies.keep(
                path,
                key,
                content=page.content,
                toc=_tokens(page.toc),
                title=page._title_from_render,
                anchors=sorted(page.present_anchor_ids),
                links={file.src_uri: anchors for file, anchors in page.links_to_anchors.items()},
            )


def _tokens(toc) -> list[dict]:
    """A list of contents in the form that get_toc takes."""
    return [{"name": a.title, "id": a.id, "level": a.level, "children": _tokens(a.children)} for a in toc]


class Search:
    """What the theme's search takes out of one page: `begin` and `end` stand around the moment when it does."""

    def __init__(self, folder: Path, page: Page, entries: list[dict]):
        self.page, self.entries, self.start = page, entries, len(entries)
        self.content, self.meta = page.content, page.meta
        self.path = folder / Path(page.file.src_uri).with_suffix(".json")
        about = [MADE_BY, page.url, page.title, repr(page.meta), page.content]
        self.key = hashlib.sha256(json.dumps(about).encode()).hexdigest()

    def begin(self) -> None:
        """Enter what was kept of this very page, and have it passed over; or leave of it what is worth a search."""
        self.kept = dependencies.kept(self.path, self.key).get("entries")
        if self.kept is None:
            self.page.content = _COLOURS.sub("", _UNSEARCHED.sub("", self.content))
        else:
            self.entries += self.kept
            self.page.meta = {**self.meta, "search": {"exclude": True}}

    def end(self) -> None:
        """Make the page again what it was, and keep the entries that it brought."""
        self.page.content, self.page.meta = self.content, self.meta
        if self.kept is None:
            dependencies.keep(self.path, self.key, entries=self.entries[self.start :])
