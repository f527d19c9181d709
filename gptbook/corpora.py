"""The texts of the book: found on this machine or fetched, checked by their sha256, and cached.

Tiny Shakespeare is looked for in the folders of GPTBOOK_DATA, then in the user's cache folder, then at its public
address. Where none has it, the help pages that come with Python serve instead: a load never fails because the network
does. With GPTBOOK_OFFLINE set, the network is left alone.
"""

import ast
import errno
import hashlib
import re
from dataclasses import dataclass, field
from pathlib import Path

import platformdirs

from gptbook import assets

KNOWN = {
    "tinyshakespeare": "Tiny Shakespeare, scenes from the plays, a megabyte",
    "shakespeare": "another name for it",
    "python-docs": "the help pages that come with Python",
    "book": "the prose of this book's own pages",
}
ALIASES = {"shakespeare": "tinyshakespeare"}


class CorpusError(ValueError):
    """A text cannot be had, or cannot be used."""


@dataclass(frozen=True)
class Corpus:
    """A text and where it comes from.

    `name` says what the text is and `requested` what was asked for; `sha256` is that of the text in UTF-8. `source` is
    a few words without any path of this machine; `path` is the file, where there is one. `note` is empty, or says in a
    sentence why another text serves in place of the one asked for.
    """

    name: str
    requested: str
    text: str = field(repr=False)
    source: str
    sha256: str
    note: str = ""
    path: str = field(default="", repr=False)

    @property
    def substitute(self) -> bool:
        """Whether this is another text than the one asked for."""
        return bool(self.note)


PINNED = {
    "tinyshakespeare": assets.Pinned(
        title="Tiny Shakespeare",
        url="https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
        sha256="86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
        size=1_115_394,
    )
}
BOOK_LENGTH = 120_000  # characters of the book that a model gets to read

loaded: dict[str, str] = {}
"""The sha256 of every text loaded in this process, by the name it was asked for."""


def load(name_or_path="tinyshakespeare") -> Corpus:
    """A text by its name, "tinyshakespeare" (also "shakespeare"), "python-docs" or "book", or else by its path.

    "python-docs" is the text of the help pages that come with Python, "book" the prose of this book's own pages. Each
    may stand in a folder of GPTBOOK_DATA as NAME/input.txt or NAME.txt; Tiny Shakespeare, which is known by its
    sha256, as input.txt too. Raises CorpusError if there is no such text.
    """
    name = ALIASES.get(name_or_path, name_or_path) if isinstance(name_or_path, str) else None
    if name not in KNOWN:
        return load_file(name_or_path)
    return _remember(_here(name, name_or_path) or _fetched(name, name_or_path) or _substitute(name, name_or_path))


def load_file(path) -> Corpus:
    """The text of a file: UTF-8, with or without a byte order mark; every kind of line end becomes a line feed.

    Raises CorpusError if the file is missing, empty, or not UTF-8.
    """
    try:
        text = _decoded(_read(Path(path)))
    except FileNotFoundError:
        names = ", ".join(KNOWN)
        raise CorpusError(f"there is no file {str(path)!r}: give a path, or one of the names {names}") from None
    except OSError as error:
        raise CorpusError(f"cannot read {str(path)!r}: {error.strerror}: give a text file in UTF-8") from None
    except ValueError as error:  # of the decoder, or of a path that no file can have
        raise CorpusError(f"cannot use {str(path)!r} as a text: {error}") from None
    return _remember(Corpus(Path(path).stem, str(path), text, "file", _digest(text), path=str(path)))


def find(name: str) -> Corpus | None:
    """The text of that name if it is on this machine, without turning to the network; None if it is not.

    Raises CorpusError if no text has that name.
    """
    if name not in KNOWN:
        raise CorpusError(f"there is no text named {name!r}: the names are {', '.join(KNOWN)}")
    try:
        return _here(ALIASES.get(name, name), name)
    except CorpusError:
        return None


def _here(name, requested) -> Corpus | None:
    for number, folder in enumerate(assets.data_folders(), start=1):
        # A bare input.txt may be anything: it is only taken where its sha256 tells.
        for place in (f"{name}/input.txt", f"{name}.txt", *(["input.txt"] if name in PINNED else [])):
            text = _checked(name, folder / place, f"{place} in folder {number} of GPTBOOK_DATA")
            if text is not None:
                return _found(name, requested, text, "GPTBOOK_DATA", path=str(folder / place))
    if name in PINNED:
        text = _checked(name, _cached(name), f"{name}/input.txt in the cache")
        return None if text is None else _found(name, requested, text, "cache", path=str(_cached(name)))
    if name == "python-docs":
        return _found(name, requested, _python_docs(), "Python's own documentation")
    return _found(name, requested, _book(), "docs folder")


def _found(name, requested, text, source, note="", path=""):
    return Corpus(name, requested, text, source, _digest(text), note, path)


def _remember(corpus):
    loaded[corpus.requested] = corpus.sha256
    return corpus


def _digest(text):
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def _read(path: Path) -> bytes:
    if path.exists() and not path.is_file() and not path.is_dir():  # reading it might never end
        raise OSError(errno.EINVAL, "a pipe or a device is no file")
    return path.read_bytes()


def _decoded(content: bytes) -> str:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CorpusError(f"byte {error.start} is not UTF-8: save the text as UTF-8") from None
    if "\0" in text:  # text in UTF-16 without a byte order mark passes for UTF-8
        raise CorpusError(f"byte {content.index(0)} is zero, as in UTF-16 or a program: save the text as UTF-8")
    if not text:
        raise CorpusError("it is empty: use a file with text in it")
    return text.replace("\r\n", "\n").replace("\r", "\n")


# Files on this machine ------------------------------------------------------------------------------------------------


def _cached(name):
    return Path(platformdirs.user_cache_dir("gptbook")) / name / "input.txt"


def _checked(name, path, place) -> str | None:
    """The text of the file if it is there and is what it should be; one line says why it is passed over."""
    try:
        content = _read(path)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
    except OSError as error:
        assets.say(f"passed over {place}: {error.strerror}")
        return None
    if name in PINNED and hashlib.sha256(content).hexdigest() != PINNED[name].sha256:
        assets.say(f"passed over {place}: its sha256 is not that of {PINNED[name].title}")
        return None
    try:
        return _decoded(content)
    except CorpusError as error:
        assets.say(f"passed over {place}: {error}")
        return None


def _fetched(name, requested) -> Corpus | None:
    """The text from its public address, or None, with one line that says how it went."""
    known = PINNED.get(name)
    if known is None or assets.offline():
        return None
    content, wrong = assets.upstream(known)
    if content is not None:
        assets.say(f"fetched {known.title}")
        return _found(name, requested, _decoded(content), "GitHub", path=_kept(_cached(name), content))
    assets.say(
        f"{known.title} could not be fetched ({wrong}), the text that comes with Python serves instead; "
        f"to use it, put it at FOLDER/{name}/input.txt and set GPTBOOK_DATA=FOLDER"
    )
    return None


def _kept(path, content) -> str:
    """Put a fetched file into the cache and say where; where that cannot be, do without."""
    try:
        assets.keep(path, content)
    except OSError:
        return ""  # the text is at hand all the same, and is fetched again next time
    return str(path)


# The texts that need no network ---------------------------------------------------------------------------------------


def _substitute(name, requested) -> Corpus:
    title = PINNED[name].title
    try:
        text = _python_docs()
    except CorpusError as error:
        raise CorpusError(
            f"{title} is not on this machine and could not be fetched, and {error}; "
            f"put it at FOLDER/{name}/input.txt and set GPTBOOK_DATA=FOLDER"
        ) from None
    note = f"{title} was not at hand, so the text of the help pages that come with Python serves in its place."
    return _found("python-docs", requested, text, "Python's own documentation", note)


def _python_docs() -> str:
    """The help pages that `help("topics")` shows, in the order of their names; they differ between Python versions."""
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise CorpusError("this Python comes without its help pages (pydoc_data)") from None
    return "\n\n".join(topics[name].replace("\r\n", "\n").strip("\n") for name in sorted(topics)) + "\n"


def _book() -> str:
    """The prose of the pages in reading order, the first BOOK_LENGTH characters; code and its outputs are left out."""
    root = Path(__file__).resolve().parent.parent
    # Beside an installed package, a folder named docs would be somebody else's.
    pages = (
        sorted((*(root / "docs").glob("*.py"), *(root / "docs").glob("*.md")))
        if (root / "pyproject.toml").is_file()
        else []
    )
    texts = []
    for page in pages:
        text = _decoded(page.read_bytes())
        if page.suffix == ".py":
            texts.append(_prose(text, page.name))
        else:  # a drawing in a page is no prose
            texts.append(re.sub(r"<svg\b.*?</svg>", "", text, flags=re.DOTALL).strip("\n"))
    if not any(texts):
        raise CorpusError('the text "book" needs the docs folder of a checkout: clone the book and pip install -e .')
    whole = "\n\n".join(text for text in texts if text) + "\n"
    # Up to the end of a paragraph: of one size while the book grows, and the same while its later pages are written.
    return whole if len(whole) <= BOOK_LENGTH else whole[: whole.rindex("\n\n", 0, BOOK_LENGTH)] + "\n"


def _prose(source, page):
    """The markdown cells of a page in percent format."""
    cells = re.split(r"^# %%", source, flags=re.MULTILINE)[1:]
    texts = []
    for cell in cells:
        head, _, body = cell.partition("\n")
        if not head.strip().startswith("[markdown]"):
            continue
        try:
            texts.append(ast.literal_eval(body.strip()).strip("\n"))
        except (ValueError, SyntaxError, AttributeError):
            raise CorpusError(f"a prose cell of docs/{page} is not one triple-quoted string") from None
    return "\n\n".join(texts)
