"""The built site behind a small server, and a window of Chromium that notes what goes wrong in it."""

import os
import re
import shutil
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from urllib.parse import urlsplit

ROOT = Path(__file__).parents[2]
SITE = Path(os.environ.get("GPTBOOK_SITE", ROOT / "site"))
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def missing() -> str:
    """Why the site cannot be read in a browser here, or ""."""
    if not (SITE / "sitemap.xml").is_file():
        return "the built site was not looked at: there is no site/ (run: mkdocs build --strict)"
    if CHROMIUM is None:
        return "the built site was not looked at: no Chromium found (on Debian: apt install chromium)"
    try:
        import playwright  # noqa: F401
    except ImportError:
        return "the built site was not looked at: no playwright (run: pip install -e '.[browser]')"
    return ""


def addresses() -> list[str]:
    """The address of every page in the sitemap, as published."""
    return re.findall(r"<loc>(.*?)</loc>", (SITE / "sitemap.xml").read_text(encoding="utf-8"))


def home() -> str:
    """The published address of the whole site: site_url, which every address in the sitemap begins with."""
    return min(addresses(), key=len)


def paths() -> list[str]:
    """Each page's path below the home page, "" for the home page itself."""
    return [address.removeprefix(home()) for address in addresses()]


class Published(SimpleHTTPRequestHandler):
    """Serves the site under the path of its published address.

    The theme follows a link without loading the page anew only where the sitemap lists the link's address, host and
    port included; so the sitemap is handed out with the address of this server.
    """

    def do_GET(self):
        below = urlsplit(home()).path
        if not self.path.startswith(below):
            self.send_error(404)
            return
        self.path = "/" + self.path.removeprefix(below)
        if urlsplit(self.path).path == "/sitemap.xml":
            here = "http://{}:{}".format(*self.server.server_address)
            there = "{0.scheme}://{0.netloc}".format(urlsplit(home()))
            body = (SITE / "sitemap.xml").read_text(encoding="utf-8").replace(there, here).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/xml")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        else:
            super().do_GET()

    def log_message(self, *args):
        pass


class Watched:
    """A page in a window of its own; `problems` collects console errors, failed loads and requests to other hosts."""

    def __init__(self, browser, base: str, scheme="light", width=1280, height=900, javascript=True):
        self.problems: list[str] = []
        size = {"width": width, "height": height}
        self.base = base
        self.context = browser.new_context(viewport=size, color_scheme=scheme, java_script_enabled=javascript)
        self.context.set_default_timeout(90_000)  # a busy machine is slow, and slow is no fault
        self.page = self.context.new_page()
        own = ("/".join(base.split("/")[:3]) + "/", "data:")
        self.page.on("console", lambda m: self._note(f"console: {m.text}", m.type == "error"))
        self.page.on("pageerror", lambda e: self._note(f"script: {e}"))
        self.page.on("requestfailed", lambda r: self._note(f"failed to load: {r.url}"))
        self.page.on("request", lambda r: self._note(f"asks another host: {r.url}", not r.url.startswith(own)))

    def _note(self, problem: str, really: bool = True) -> None:
        if really:
            self.problems.append(problem)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.context.close()
