"""Texts: found in the right order, never the wrong bytes, and never a failure because the network has one.

The text looked for here is a small one, pinned in place of Tiny Shakespeare, and served by this machine alone.
"""

import contextlib
import hashlib
import os
import signal
import socket
import stat
import sys
import threading
from dataclasses import FrozenInstanceError
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pooch  # noqa: F401  before the clock of the slow servers below starts
import pytest
import requests  # noqa: F401  likewise
from hypothesis import given
from hypothesis import strategies as st
from outside import reply

from gptbook import assets, corpora

TEXT = "First Citizen:\nSpeak, speak. ü\n" * 40
BYTES = TEXT.encode("utf-8")
SHA = hashlib.sha256(BYTES).hexdigest()
SUBSTITUTE = "python-docs"


@pytest.fixture(autouse=True)
def machine(tmp_path, monkeypatch):
    """A machine with nothing on it: no folders named, an empty cache, and an address where nobody listens."""
    monkeypatch.delenv("GPTBOOK_DATA", raising=False)
    monkeypatch.delenv("GPTBOOK_OFFLINE", raising=False)
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(corpora.platformdirs, "user_cache_dir", lambda name: str(tmp_path / "cache" / name))
    monkeypatch.setattr(corpora, "loaded", {})
    monkeypatch.setattr(assets, "_said", set())
    monkeypatch.setattr(assets, "_given_up", {})
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    pin(monkeypatch, f"http://127.0.0.1:{port}/")
    return tmp_path


def pin(monkeypatch, url):
    pinned = assets.Pinned("Tiny Shakespeare", url, SHA, len(BYTES))
    monkeypatch.setitem(corpora.PINNED, "tinyshakespeare", pinned)


def put(path, content=BYTES):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def cached(machine):
    return machine / "cache" / "gptbook" / "tinyshakespeare" / "input.txt"


def said(capsys):
    """The lines on the error stream; nothing may stand on the other."""
    out, err = capsys.readouterr()
    assert out == ""
    return err.splitlines()


def one_line(error):
    message = str(error.value)
    assert "\n" not in message
    return message


# Where texts are found ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["tinyshakespeare/input.txt", "tinyshakespeare.txt", "input.txt"])
@pytest.mark.parametrize("name", ["tinyshakespeare", "shakespeare"])
def test_a_folder_of_the_readers_is_searched(machine, monkeypatch, capsys, place, name):
    """If this fails, a text that lies on the machine is fetched, or replaced by another."""
    path = put(machine / "data" / place)
    monkeypatch.setenv("GPTBOOK_DATA", str(machine / "data"))
    corpus = corpora.load(name)
    assert (corpus.name, corpus.requested, corpus.text) == ("tinyshakespeare", name, TEXT)
    assert (corpus.source, corpus.note, corpus.substitute, corpus.path) == ("GPTBOOK_DATA", "", False, str(path))
    assert corpus.sha256 == SHA
    assert corpora.loaded == {name: SHA}
    assert said(capsys) == []


def test_folders_come_in_order_and_before_the_cache(machine, monkeypatch):
    """If this fails, the reader cannot say which copy counts."""
    put(cached(machine))
    put(machine / "input.txt")
    monkeypatch.chdir(machine)  # an empty part of GPTBOOK_DATA does not mean the working folder
    monkeypatch.setenv("GPTBOOK_DATA", "")
    assert corpora.load().source == "cache"
    monkeypatch.setenv("GPTBOOK_DATA", "~nobody-of-this-name")  # a home that does not exist is no folder, and no error
    assert corpora.load().source == "cache"
    monkeypatch.setenv("GPTBOOK_DATA", os.pathsep)
    assert corpora.load().source == "cache"
    second = put(machine / "b" / "tinyshakespeare.txt")
    monkeypatch.setenv("GPTBOOK_DATA", os.pathsep.join(["", str(machine / "a"), str(machine / "b")]))
    assert corpora.load().path == str(second)
    first = put(machine / "a" / "input.txt")
    assert corpora.load().path == str(first)


@pytest.mark.parametrize("content", [BYTES[:-1], BYTES + b"\n", BYTES.replace(b"\n", b"\r\n"), b"<html></html>", b""])
def test_a_file_with_another_hash_is_passed_over_with_one_line(machine, monkeypatch, capsys, content):
    """If this fails, a cut, converted or foreign file is taken for the text, and every number of the book is off."""
    put(machine / "a" / "tinyshakespeare" / "input.txt", content)
    put(machine / "b" / "input.txt")
    monkeypatch.setenv("GPTBOOK_DATA", os.pathsep.join([str(machine / "a"), str(machine / "b")]))
    assert corpora.load().text == TEXT
    corpora.load()
    (line,) = said(capsys)
    assert "passed over tinyshakespeare/input.txt in folder 1 of GPTBOOK_DATA" in line
    assert "sha256" in line
    assert str(machine) not in line


def test_what_cannot_be_read_is_passed_over(machine, monkeypatch, capsys):
    """If this fails, a folder named input.txt, or a file without permission, ends the run."""
    (machine / "data" / "input.txt").mkdir(parents=True)
    locked = put(machine / "data" / "tinyshakespeare.txt")
    real = Path.read_bytes

    def read_bytes(path):  # as for a reader who is not the owner; root may read all, so the mode would not do
        if path == locked:
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    monkeypatch.setenv("GPTBOOK_DATA", os.pathsep.join([str(machine / "data"), str(locked)]))
    monkeypatch.setenv("GPTBOOK_OFFLINE", "1")
    assert corpora.load().name == SUBSTITUTE
    (line,) = said(capsys)
    assert "Permission denied" in line


@pytest.mark.parametrize("name", ["python-docs", "book"])
def test_the_other_texts_may_stand_in_a_folder_too(machine, monkeypatch, name):
    """If this fails, GPTBOOK_DATA means one thing for one text and another for the next."""
    put(machine / f"{name}.txt", b"mine\r\n")
    monkeypatch.setenv("GPTBOOK_DATA", str(machine))
    corpus = corpora.load(name)
    assert (corpus.name, corpus.text, corpus.source, corpus.substitute) == (name, "mine\n", "GPTBOOK_DATA", False)


@pytest.mark.parametrize("name", ["python-docs", "book"])
def test_a_bare_file_is_not_taken_for_a_text_that_no_hash_tells(machine, monkeypatch, name):
    """If this fails, a folder that holds Tiny Shakespeare as input.txt passes it off as the book."""
    put(machine / "input.txt")
    monkeypatch.setenv("GPTBOOK_DATA", str(machine))
    assert corpora.load(name).text != TEXT


def test_find_asks_this_machine_only(machine, monkeypatch, capsys):
    """If this fails, listing the texts waits for the network."""
    monkeypatch.setattr(assets, "_download", lambda known: pytest.fail("the network was asked"))
    assert corpora.find("tinyshakespeare") is None
    put(cached(machine))
    assert corpora.find("shakespeare").source == "cache"
    assert corpora.find("python-docs").source == "Python's own documentation"
    assert corpora.loaded == {}
    with pytest.raises(corpora.CorpusError, match="there is no text named 'moby'") as error:
        corpora.find("moby")
    one_line(error)
    assert said(capsys) == []


def test_tiny_shakespeare_is_pinned_to_the_byte(monkeypatch):
    """If this fails, the book's numbers are about some other file."""
    monkeypatch.undo()
    known = corpora.PINNED["tinyshakespeare"]
    assert known.sha256 == "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
    assert known.size == 1_115_394
    assert known.url.startswith("https://")
    assert set(corpora.ALIASES.values()) | set(corpora.ALIASES) <= set(corpora.KNOWN)


def test_a_corpus_does_not_print_its_text_or_its_place(machine):
    """If this fails, naming a corpus on a page fills the page, or shows a path of the machine that built it."""
    put(cached(machine))
    shown = repr(corpora.load())
    assert "Citizen" not in shown
    assert str(machine) not in shown
    with pytest.raises(FrozenInstanceError):
        corpora.load().text = ""


# Fetching -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def serve(monkeypatch):
    """serve(answer) lets `answer(handler, over)` reply to what is fetched; `over` is set when the test is done.

    Returns the list of requests and the list of answers that came to their end.
    """
    over = threading.Event()
    servers = []

    def start(answer):
        asked, finished = [], []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                asked.append(self.path)
                try:
                    answer(self, over)
                    finished.append(self.path)
                except OSError:
                    pass  # the other side has gone

            def log_message(self, *args):
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        servers.append(server)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        pin(monkeypatch, f"http://127.0.0.1:{server.server_port}/input.txt")
        return asked, finished

    yield start
    over.set()
    for server in servers:
        server.shutdown()
        server.server_close()


def good(handler, over):
    reply(handler, BYTES)


def test_fetched_once_then_cached(machine, serve, capsys):
    """If this fails, the text is fetched again and again, or cached where nothing finds it. Negative control for all
    the failures below: here nothing fails.
    """
    asked, _ = serve(good)
    corpus = corpora.load()
    assert (corpus.text, corpus.source, corpus.substitute) == (TEXT, "GitHub", False)
    assert corpus.path == str(cached(machine))
    assert corpora.load().source == "cache"
    assert len(asked) == 1
    assert cached(machine).read_bytes() == BYTES
    assert [path.name for path in cached(machine).parent.iterdir()] == ["input.txt"]
    (line,) = said(capsys)
    assert line == "gptbook: fetched Tiny Shakespeare"


@pytest.mark.skipif(sys.platform == "win32", reason="file modes mean little on Windows")
def test_a_cached_file_has_the_mode_of_any_new_file(machine, serve):
    """If this fails, a cache that several people share can be read by one of them only."""
    serve(good)
    corpora.load()
    other = put(machine / "other")
    assert stat.S_IMODE(cached(machine).stat().st_mode) == stat.S_IMODE(other.stat().st_mode)


def test_a_broken_cache_is_mended(machine, serve, capsys):
    """If this fails, a web page once saved in place of the text stays there for good."""
    put(cached(machine), b"<html>Sign in to this network</html>")
    serve(good)
    assert corpora.load().source == "GitHub"
    assert cached(machine).read_bytes() == BYTES
    assert [line.split(":")[0] for line in said(capsys)] == ["gptbook"] * 2


def block_with_a_file(machine):
    put(machine / "cache", b"")


def block_writing(machine):
    (machine / "cache").mkdir(mode=0o500)


@pytest.mark.parametrize("block", [block_with_a_file, block_writing])
def test_without_a_cache_the_text_is_there_all_the_same(machine, serve, capsys, block, monkeypatch):
    """If this fails, a reader whose home cannot be written gets no text."""
    block(machine)
    if block is block_writing:  # root writes where the mode forbids it
        monkeypatch.setattr(Path, "mkdir", lambda *args, **kwargs: (_ for _ in ()).throw(PermissionError(13, "no")))
    serve(good)
    corpus = corpora.load()
    assert (corpus.text, corpus.source, corpus.path) == (TEXT, "GitHub", "")
    assert len(said(capsys)) == 1


def web_page(handler, over):
    reply(handler, b"<html>Sign in to this network</html>")


def same_length_other_bytes(handler, over):
    reply(handler, BYTES.swapcase())


def cut_short(handler, over):
    reply(handler, BYTES[:500], length=len(BYTES))


def cut_short_and_honest(handler, over):
    reply(handler, BYTES[:500])


def too_long(handler, over):
    reply(handler, BYTES + b"x" * 100_000)


def empty(handler, over):
    reply(handler, b"")


def missing(handler, over):
    reply(handler, BYTES, status=404)


def server_error(handler, over):
    reply(handler, BYTES, status=503)


def in_a_circle(handler, over):
    reply(handler, b"", status=302, Location="/again")


def no_http(handler, over):
    handler.wfile.write(b"220 mail ready\r\n")


def hangs_up(handler, over):
    handler.connection.close()


BROKEN = {
    web_page: "sha256",
    same_length_other_bytes: "sha256",
    cut_short: "",
    cut_short_and_honest: "sha256",
    too_long: "longer",
    empty: "sha256",
    missing: "404",
    server_error: "503",
    in_a_circle: "302",
    no_http: "Error",
    hangs_up: "Error",
}


@pytest.mark.parametrize("answer", BROKEN)
def test_whatever_the_server_does_there_is_a_text(machine, serve, capsys, answer):
    """If this fails, a bad connection ends the build, or its rubbish is taken for the text or kept in the cache."""
    asked, _ = serve(answer)
    check_substitute(corpora.load(), capsys, BROKEN[answer])
    assert not cached(machine).exists()
    before = len(asked)
    corpora.load()
    assert len(asked) == before > 0, "one attempt a process is enough"
    assert said(capsys) == []


def check_substitute(corpus, capsys, reason):
    assert corpus.name == SUBSTITUTE
    assert corpus.requested == "tinyshakespeare"
    assert corpus.substitute
    assert corpus.note
    assert "\n" not in corpus.note
    assert corpus.text == corpora.load("python-docs").text
    (line,) = said(capsys)
    assert "Tiny Shakespeare could not be fetched" in line
    assert reason in line
    assert "set GPTBOOK_DATA=FOLDER" in line, "the line must name the way that needs no network"


def silent(handler, over):
    over.wait(30)


def dripping_headers(handler, over):
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Long: ")
    while not over.wait(0.05):
        handler.wfile.write(b"x")


def dripping_text(handler, over):
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(BYTES)))
    handler.end_headers()
    for i in range(len(BYTES)):
        if over.wait(0.05):
            return
        handler.wfile.write(BYTES[i : i + 1])


def never_ending_text(handler, over):
    handler.send_response(200)
    handler.end_headers()
    while not over.wait(0.05):
        handler.wfile.write(b"x" * 8)


@pytest.mark.parametrize("answer", [silent, dripping_headers, dripping_text, never_ending_text])
def test_a_server_that_takes_for_ever_is_not_waited_for(machine, serve, capsys, monkeypatch, answer):
    """If this fails, a page hangs at its first cell. The server is still at it when the text is there: it only stops
    when the test does, so a load that waited for its end would not come back before.
    """
    monkeypatch.setattr(assets, "FETCH_SECONDS", 1.0)
    asked, finished = serve(answer)
    corpus = corpora.load()
    assert asked
    assert not finished
    check_substitute(corpus, capsys, "no answer within 1 seconds")


def test_the_wait_is_bounded():
    """If this fails, a reader without a network waits longer than anybody would."""
    assert 0 < assets.FETCH_SECONDS <= 8


def test_refused(machine, capsys):
    """If this fails, a machine without a network builds no book. Nobody listens at the address."""
    check_substitute(corpora.load(), capsys, "ConnectionError")


def test_no_such_host(machine, capsys, monkeypatch):
    """If this fails, a machine without names of hosts builds no book. Names that end in .invalid are never given."""
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **kwargs: (_ for _ in ()).throw(socket.gaierror(-2, "no")))
    pin(monkeypatch, "http://host.invalid/input.txt")
    check_substitute(corpora.load(), capsys, "ConnectionError")


def test_a_dead_proxy(machine, serve, capsys, monkeypatch):
    """If this fails, a stale proxy setting stops the build."""
    asked, _ = serve(good)
    monkeypatch.setenv("no_proxy", "")
    monkeypatch.setenv("NO_PROXY", "")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{port}")
    pin(monkeypatch, "http://host.invalid/input.txt")
    check_substitute(corpora.load(), capsys, "ProxyError")
    assert not asked


@pytest.mark.parametrize(("setting", "offline"), [("1", True), ("yes", True), ("0", False), ("", False)])
def test_offline_means_no_network(serve, capsys, monkeypatch, setting, offline):
    """If this fails, the build's pages each ask the network again, and may get different texts."""
    monkeypatch.setenv("GPTBOOK_OFFLINE", setting)
    asked, _ = serve(good)
    assert corpora.load().substitute is offline
    assert (asked == []) is offline
    assert len(said(capsys)) == (0 if offline else 1)


# The texts that need no network ---------------------------------------------------------------------------------------


def test_python_docs_are_always_the_same(machine):
    """If this fails, two kernels of one build train on different texts."""
    from pydoc_data.topics import topics

    corpus = corpora.load("python-docs")
    assert corpus.text == corpora.load("python-docs").text
    assert len(corpus.text) > 100_000
    place = 0
    for name in sorted(topics):  # each after the one before; `index` raises where one is missing
        place = corpus.text.index(topics[name].strip("\n"), place) + len(topics[name].strip("\n"))
    assert corpus.sha256 == hashlib.sha256(corpus.text.encode()).hexdigest()
    assert not corpus.substitute


def test_a_python_without_help_pages_says_the_way_out(machine, monkeypatch):
    """If this fails, a stripped Python ends in an ImportError about a module that nobody has heard of."""
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    monkeypatch.setenv("GPTBOOK_OFFLINE", "1")
    with pytest.raises(corpora.CorpusError, match="GPTBOOK_DATA=FOLDER") as error:
        corpora.load()
    one_line(error)
    with pytest.raises(corpora.CorpusError, match="pydoc_data") as error:
        corpora.load("python-docs")
    one_line(error)
    assert corpora.find("python-docs") is None


PAGE = '''# %% [markdown]
r"""
# A page

The formula is $\\frac{1}{2}$.
"""

# %%
print("code is left out")

# %% [markdown] tags=["x"]
"""
The end.
"""
'''


def checkout(monkeypatch, folder):
    """Makes `folder` the place that the package lies in."""
    monkeypatch.setattr(corpora, "__file__", str(folder / "gptbook" / "corpora.py"))


def test_the_book_is_the_prose_of_its_pages(machine, monkeypatch):
    """If this fails, the model that learns the book learns its code, or pages in an order that changes."""
    put(machine / "pyproject.toml", b"")
    put(machine / "docs" / "02_b.py", PAGE.encode())
    put(machine / "docs" / "01_a.md", 'Größe\r\n<svg viewBox="0">\n<text>R</text></svg>'.encode())
    put(machine / "docs" / "assets" / "x.css", b"not prose")
    checkout(monkeypatch, machine)
    corpus = corpora.load("book")
    assert corpus.text == "Größe\n\n# A page\n\nThe formula is $\\frac{1}{2}$.\n\nThe end.\n"
    assert corpus.source == "docs folder"


def test_the_book_stays_of_one_size(machine, monkeypatch):
    """If this fails, the model that learns the book trains anew for each word on its last page, or stops in mid-air."""
    put(machine / "pyproject.toml", b"")
    put(machine / "docs" / "01_a.md", b"One.\n\nTwo, longer.\n\nThree.\n")
    checkout(monkeypatch, machine)
    monkeypatch.setattr(corpora, "BOOK_LENGTH", 22)
    assert corpora.load("book").text == "One.\n\nTwo, longer.\n"
    put(machine / "docs" / "02_b.md", b"More.")
    assert corpora.load("book").text == "One.\n\nTwo, longer.\n"


@pytest.mark.parametrize("missing", ["pyproject.toml", "docs/01_a.md"])
def test_no_book_without_a_checkout(machine, monkeypatch, missing):
    """If this fails, a package that was installed alone reads some other project's docs, or fails without a word."""
    for name in {"pyproject.toml", "docs/01_a.md"} - {missing}:
        put(machine / name, b"Somebody else's\n")
    checkout(monkeypatch, machine)
    with pytest.raises(corpora.CorpusError, match="docs folder of a checkout") as error:
        corpora.load("book")
    one_line(error)
    assert corpora.find("book") is None


def test_a_page_that_is_half_written_is_named(machine, monkeypatch):
    """If this fails, a slip in one page ends in an error that names none."""
    put(machine / "pyproject.toml", b"")
    put(machine / "docs" / "01_a.py", b'# %% [markdown]\nr"""\nno end\n')
    checkout(monkeypatch, machine)
    with pytest.raises(corpora.CorpusError, match=r"docs/01_a\.py") as error:
        corpora.load("book")
    one_line(error)


def test_this_book_has_prose():
    """If this fails, the pages of this checkout have changed their form, and their prose is not found in them."""
    text = corpora.load("book").text
    assert "# Text into numbers" in text
    assert "# %%" not in text
    assert '"""' not in text


# The reader's own files -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"one\ntwo\n", "one\ntwo\n"),
        (b"\xef\xbb\xbfone\n", "one\n"),
        (b"one\r\ntwo\rthree\n\r\n", "one\ntwo\nthree\n\n"),
        ("größer 🙂".encode(), "größer 🙂"),
        (b"\n", "\n"),
        (b"one\xef\xbb\xbf", "one\ufeff"),
    ],
)
def test_files_are_read_as_utf_8(machine, content, text):
    """If this fails, a byte order mark or Windows line ends become symbols of the vocabulary."""
    path = put(machine / "my text.txt", content)
    for corpus in (corpora.load_file(path), corpora.load(path), corpora.load(str(path))):
        assert corpus.text == text
        assert (corpus.name, corpus.source, corpus.note, corpus.path) == ("my text", "file", "", str(path))
        assert corpus.sha256 == hashlib.sha256(text.encode()).hexdigest()
    assert corpora.loaded == {str(path): corpus.sha256}


@given(lines=st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n\0")), min_size=2))
def test_line_ends_do_not_change_the_text(tmp_path_factory, lines):
    """If this fails, one text has different vocabularies on different systems."""
    path = tmp_path_factory.getbasetemp() / "lines.txt"
    texts = set()
    for end in ("\n", "\r\n", "\r"):
        path.write_bytes(b"\xef\xbb\xbf" + end.join(lines).encode())
        texts.add(corpora.load_file(path).text)
    assert texts == {"\n".join(lines)}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "it is empty"),
        (b"\xef\xbb\xbf", "it is empty"),
        ("größer".encode("latin-1"), "byte 2 is not UTF-8"),
        ("text".encode("utf-16"), "byte 0 is not UTF-8"),
        ("text".encode("utf-16-le"), "byte 1 is zero"),
        (b"abc\xff", "byte 3 is not UTF-8"),
        (b"abc\xe2\x82", "byte 3 is not UTF-8"),
    ],
)
def test_files_that_are_no_text_get_one_line(machine, content, words):
    """If this fails, an empty or undecodable file ends in a traceback, or in a vocabulary of rubbish."""
    path = put(machine / "mine.txt", content)
    with pytest.raises(corpora.CorpusError, match=words) as error:
        corpora.load(str(path))
    assert str(path) in one_line(error)
    assert corpora.loaded == {}


@pytest.mark.parametrize("name", ["nothing.txt", "moby", "x" * 5000, "", "a\0b", "folder"])
def test_what_is_no_file_gets_one_line(machine, monkeypatch, name):
    """If this fails, a slip in a name ends in a traceback."""
    (machine / "folder").mkdir()
    monkeypatch.chdir(machine)
    with pytest.raises(corpora.CorpusError) as error:
        corpora.load(name)
    one_line(error)


def test_a_pipe_is_not_waited_for(machine, monkeypatch, capsys):
    """If this fails, a pipe or a device under a text's name makes a command wait, or read, for ever."""
    (machine / "tinyshakespeare").mkdir()
    pipe = machine / "tinyshakespeare" / "input.txt"
    os.mkfifo(pipe)
    with _not_for_ever(), pytest.raises(corpora.CorpusError, match="a pipe or a device is no file") as error:
        corpora.load_file(pipe)
    assert str(pipe) in one_line(error)
    monkeypatch.setenv("GPTBOOK_DATA", str(machine))
    with _not_for_ever():
        assert corpora.find("tinyshakespeare") is None
    assert "a pipe or a device is no file" in capsys.readouterr().err


@contextlib.contextmanager
def _not_for_ever():
    """Turn waiting for ever into a failure."""

    def late(*_):
        raise AssertionError("still waiting")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(5)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def test_a_missing_name_says_which_there_are(machine):
    """If this fails, the reader has to guess the names."""
    with pytest.raises(corpora.CorpusError, match=r"'moby'.* tinyshakespeare, .*python-docs, book"):
        corpora.load("moby")


def test_a_path_is_a_path_even_if_a_text_has_that_name(machine, monkeypatch):
    """If this fails, a reader's file named book cannot be loaded."""
    put(machine / "book", b"mine")
    monkeypatch.chdir(machine)
    assert corpora.load(Path("book")).text == "mine"
    assert corpora.load("./book").text == "mine"
