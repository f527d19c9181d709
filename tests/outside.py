"""What stands outside: the files that tests need, and what a server that plays the world answers."""

import pytest


def asset(name: str):
    """The path of an asset: for these alone, tests turn to the network."""
    from gptbook import assets

    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("GPTBOOK_OFFLINE", raising=False)
        try:
            return assets.fetch(name)
        except assets.AssetError as error:
            pytest.skip(f"this needs {name}: {error}")


def reply(handler, content, status=200, length=None, **headers):
    """One answer of a server on this machine; `length` may announce another length than comes."""
    handler.send_response(status)
    handler.send_header("Content-Length", str(len(content) if length is None else length))
    for name, value in headers.items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(content)
