"""A server and a browser for the checks of the built site."""

import threading
from functools import partial
from http.server import ThreadingHTTPServer
from urllib.parse import urlsplit

import pytest
from reading import CHROMIUM, FLAGS, SITE, Published, Watched, home


@pytest.fixture(scope="module")
def base():
    """The address of the home page on this machine, while the server runs."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Published, directory=str(SITE)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}{urlsplit(home()).path}"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def chromium():
    """One browser for the module; it ends with it, because its event loop would stand in the way of other tests."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def visit(chromium, base):
    """visit(path, scheme=..., width=..., javascript=...) opens a page of the site; use it with `with`."""

    def open_page(path: str | None, **settings) -> Watched:
        watched = Watched(chromium, base, **settings)
        if path is not None:
            watched.page.goto(base + path, wait_until="load")
        return watched

    return open_page
