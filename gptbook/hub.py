"""GPT-2's files from the Hugging Face hub, through the hub's own client and into the hub's own cache.

At the public hub the revision is pinned, and each file is known by its sha256. A hub that HF_ENDPOINT names has what it
has: there a file is held against the sha256 that the hub itself gives, as hubs do for large files. HF_HUB_OFFLINE and
GPTBOOK_OFFLINE leave the network alone, and what is in the cache is used.
"""

import hashlib
import os
import re
import sys
import threading
import warnings
from pathlib import Path

from gptbook import assets

REPO, FORMER = "openai-community/gpt2", "gpt2"  # the same repository, and its name of before 2024
REVISION = "607a30d783dfa663caf39e06633721c8d4cfcd7e"
SHA256 = {
    "config.json": "0daed7749b4f02b8f76240d5444551d7b08712dab4d0adb8239c56ba823bb7b4",
    "model.safetensors": "248dfc3911869ec493c76e65bf2fcf7f615828b0254c12b473182f0f81d3a707",
    "vocab.json": "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
    "merges.txt": "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
}
PROBE_SECONDS = 5.0

_given_up: dict[str, str] = {}  # address of a hub -> what went wrong: one wait a process is enough


class HubError(ValueError):
    """The files cannot be had, or are not what they should be."""


def folder() -> tuple[Path, str]:
    """A folder with GPT-2's config.json, model.safetensors, vocab.json and merges.txt, and where they came from.

    A copy in the cache may lack the last two. Raises HubError, or ImportError where the hub's client is missing.
    """
    if (found := cached()) is not None:
        return _checked(found), "the hub's cache"
    client, revision = _client(), ask()
    assets.say(f"fetching {REPO} from the hub")
    if not sys.stderr.isatty():  # in a notebook the bars would stay on the page
        client.utils.disable_progress_bars()
    try:
        paths = [Path(client.hf_hub_download(REPO, name, revision=revision)) for name in SHA256]
    except Exception as error:  # of the client's own kinds, and of those of the libraries under it
        _given_up[client.constants.ENDPOINT] = wrong = _line(error)
        raise HubError(f"{REPO} could not be fetched from the hub ({wrong}): try again later") from None
    return _checked(paths[0].parent), "the hub"


def cached() -> Path | None:
    """The folder of a copy in the hub's cache, with config.json and model.safetensors at least; None without one."""
    client = _client()
    for repo in (REPO, FORMER):
        for revision in (REVISION, "main"):
            names = ("config.json", "model.safetensors")
            found = [client.try_to_load_from_cache(repo, name, revision=revision) for name in names]
            if all(isinstance(path, str) for path in found):
                return Path(found[0]).parent
    return None


def ask() -> str:
    """The revision that the hub can be asked for. Raises HubError if the hub does not answer within PROBE_SECONDS.

    The client itself tries a dead address for half a minute. So a thread asks once, and is left behind when the time
    is over.
    """
    client = _client()
    for setting, on in (("GPTBOOK_OFFLINE", assets.offline()), ("HF_HUB_OFFLINE", client.constants.HF_HUB_OFFLINE)):
        if on:
            raise HubError(f"{REPO} is not in the hub's cache, and {setting} is set: unset it")
    endpoint = client.constants.ENDPOINT
    revision = "main" if os.environ.get("HF_ENDPOINT") else REVISION
    if endpoint not in _given_up:
        result = [f"no answer within {PROBE_SECONDS:g} seconds"]

        def work():
            try:
                address = client.hf_hub_url(REPO, "model.safetensors", revision=revision)
                answer = client.get_hf_file_metadata(address, timeout=PROBE_SECONDS)
                result[0] = "" if answer.commit_hash and answer.etag else "what answers there is no hub"
            except Exception as error:
                result[0] = _line(error)

        thread = threading.Thread(target=work, daemon=True, name="gptbook-probe")
        thread.start()
        thread.join(PROBE_SECONDS)
        _given_up[endpoint] = result[0]  # "" where nothing went wrong
    if wrong := _given_up[endpoint]:
        raise HubError(f"{REPO} cannot be had from the hub ({wrong}): put its files in a folder, and load that")
    return revision


def _client():
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its bars, made on import, warn in a notebook that has no widgets
            import huggingface_hub.file_download
    except ImportError:
        raise ImportError(
            "GPT-2 comes through the package huggingface_hub, which is missing: pip install -e '.[pretrained]'"
        ) from None
    return huggingface_hub


def _line(error):
    """The first line of an error, or its kind if it says nothing."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _checked(snapshot: Path) -> Path:
    """The folder, once its files have the sha256 that is known or that the hub gave: it calls large files by theirs."""
    for name, known in SHA256.items():
        if not (snapshot / name).is_file():
            continue
        expected = known if snapshot.name == REVISION else (snapshot / name).resolve().name
        if not re.fullmatch("[0-9a-f]{64}", expected):
            continue
        with (snapshot / name).open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != expected:
            raise HubError(f"{name} of {REPO} has the wrong sha256: delete {snapshot.parents[1]} and load it again")
    return snapshot
