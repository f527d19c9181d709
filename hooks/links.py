"""The built site, read once more: every reference leads somewhere, and a page makes a browser ask no other host."""

import hashlib
import json
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

from dependencies import write_aside

FORMAT = 1

# Elements that a browser loads by itself, and from where.
_LOADS = {
    "script": ("src",), "img": ("src", "srcset"), "source": ("src", "srcset"), "iframe": ("src",), "embed": ("src",),
    "video": ("src", "poster"), "audio": ("src",), "track": ("src",), "object": ("data",), "input": ("src",),
    "image": ("href", "xlink:href"), "use": ("href", "xlink:href"),
}  # fmt: skip
# Of <link>, everything is loaded or prepared for but these.
_PLAIN_RELATIONS = {"canonical", "next", "prev", "alternate", "author", "license", "help", "me", "bookmark", "search"}
_URL = re.compile(r"""url\(\s*(?:"([^"]*)"|'([^']*)'|([^"')\s]*))\s*\)|@import\s+(?:"([^"]*)"|'([^']*)')""")
_SCHEMES = ("http", "https", "")


@dataclass
class _Document(HTMLParser):
    """The references of a page (loads or not, address) and the places in it that an address can name."""

    references: list[tuple[bool, str]] = field(default_factory=list)
    places: set[str] = field(default_factory=set)
    wordless: list[str] = field(default_factory=list)  # pictures without words

    def __post_init__(self):
        super().__init__(convert_charrefs=True)
        self._style = False

    def handle_starttag(self, tag, attributes):
        attributes = {name: value or "" for name, value in attributes}
        self._style = tag == "style"
        self.places.update(attributes[name] for name in ("id", "name") if attributes.get(name))
        loaded = _LOADS.get(tag, ())
        if tag == "link" and not set(attributes.get("rel", "").lower().split()) & _PLAIN_RELATIONS:
            loaded = ("href",)
        for name, value in attributes.items():
            if name == "srcset":
                self.references += [(True, part.split()[0]) for part in value.split(",") if part.split()]
            elif name in ("href", "src", "xlink:href", "poster", "data", "action") and value:
                self.references.append((name in loaded, value))
            elif "url(" in value:
                self.references += [(True, address) for address in css_addresses(value)]
        if tag == "img" and "alt" not in attributes:
            self.wordless.append(attributes.get("src", "?"))

    handle_startendtag = handle_starttag

    def handle_endtag(self, tag):
        self._style = False

    def handle_data(self, data):
        if self._style:
            self.references += [(True, address) for address in css_addresses(data)]


def css_addresses(css: str) -> list[str]:
    """Every address that a piece of CSS makes a browser load."""
    css = re.sub(r"/\*.*?\*/", "", css, flags=re.DOTALL)
    return [next(filter(None, match.groups()), "") for match in _URL.finditer(css)]


class _Known:
    """What was read in pages the last time, by their content: most of a site is the same from build to build."""

    def __init__(self, path: Path | None):
        self.path, self.before, self.now = path, {}, {}
        try:
            kept = json.loads(path.read_text(encoding="utf-8")) if path else {}
            if kept.get("format") == FORMAT:
                self.before = kept["pages"]
        except (OSError, ValueError):
            pass  # read anew, then

    def document(self, html: str) -> _Document:
        key = hashlib.sha256(html.encode()).hexdigest()
        document = _Document()
        if key in self.before:
            references, places, document.wordless = self.before[key]
            document.references, document.places = [(loads, where) for loads, where in references], set(places)
        else:
            document.feed(html)
        self.now[key] = [document.references, sorted(document.places), document.wordless]
        return document

    def keep(self):
        if self.path and self.now != self.before:
            write_aside(self.path, json.dumps({"format": FORMAT, "pages": self.now}))


def check(site: Path, site_url: str, memory: Path | None = None) -> list[str]:
    """One line for each reference in the site's pages and style sheets that leads nowhere or loads from elsewhere.

    What the pages say is kept in the file `memory`, and not read again where a page has not changed.
    """
    home = site_url if site_url.endswith("/") else f"{site_url}/"
    known = _Known(memory)
    documents = {path: known.document(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    known.keep()

    problems = []
    for path, document in documents.items():
        for loads, address in dict.fromkeys(document.references):
            problems += _follow(path, address, loads, site, home, documents)
        problems += [f"{_name(path, site)}: the picture {source} has no alt text" for source in document.wordless]
    for path in sorted(site.rglob("*.css")):
        for address in dict.fromkeys(css_addresses(path.read_text(encoding="utf-8"))):
            problems += _follow(path, address, True, site, home, documents)
    return problems


def _name(path: Path, site: Path) -> str:
    return path.relative_to(site).as_posix()


def _follow(path: Path, address: str, loads: bool, site: Path, home: str, documents: dict) -> list[str]:
    here = urljoin(home, _name(path, site).removesuffix("index.html"))
    parts = urlsplit(urljoin(here, address.strip()))
    if urlsplit(address.strip()).scheme not in _SCHEMES:
        return []  # data:, mailto:
    if not f"{parts.scheme}://{parts.netloc}{parts.path}".startswith(home.rstrip("/")):
        foreign = bool(urlsplit(address.strip()).netloc)
        if loads:
            return [f"{_name(path, site)}: a browser would load {address} from another host"]
        return [] if foreign else [f"{_name(path, site)}: {address} leads out of the site"]
    target = site / unquote(parts.path[len(urlsplit(home).path) :])
    if target.is_dir():
        target /= "index.html"
    if not target.is_file():
        return [f"{_name(path, site)}: {address} leads nowhere"]
    place = unquote(parts.fragment)
    if place and target in documents and place not in documents[target].places:
        return [f"{_name(path, site)}: {address} names a place that is not on that page"]
    return []
