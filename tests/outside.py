"""The files from outside that tests need: fetched if need be, or the reason why a test cannot be made here."""

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
