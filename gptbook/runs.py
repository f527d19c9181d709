"""A run kept in a folder, so that it can be resumed, measured and sampled from later:

    config.json                    family and model, training, and what else it depends on: tokenizer, text, versions
    metrics.jsonl                  one measurement a line
    checkpoint.safetensors         weights, the optimizer's moments, random states: all that going on needs
    checkpoint-000250.safetensors  the weights alone, after 250 steps

Each checkpoint bears the key of its config.json, so that files of two runs are seen not to belong together.
"""

import hashlib
import json
import platform
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

from gptbook import __version__, checkpoint
from gptbook.model import GPT, GPTConfig
from gptbook.modern import ModernConfig, ModernGPT

CONFIG, METRICS, CHECKPOINT = "config.json", "metrics.jsonl", "checkpoint.safetensors"
FAMILIES = {"gpt": (GPTConfig, GPT), "modern": (ModernConfig, ModernGPT)}
LATER = {"channel_dropout": 0.0, "ngram_dropout": 0.0}  # fields of a model that runs from before do not have


class RunError(ValueError):
    """A folder does not hold the run that it should."""


def snapshot_name(step: int) -> str:
    """The name of the file that keeps the weights after `step` steps."""
    return f"checkpoint-{step:06d}.safetensors"


def is_run(folder) -> bool:
    """Whether `folder` holds a file of a run."""
    return any((Path(folder) / name).exists() for name in (CONFIG, METRICS, CHECKPOINT))


def read_config(folder) -> dict:
    """What the config.json of a run says. Raises RunError when there is none, or when it cannot be understood."""
    path = Path(folder) / CONFIG
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        config.setdefault("family", "gpt")  # a run from before there was another does not say
        if config["family"] not in FAMILIES:
            raise ValueError(f"family is none of {', '.join(FAMILIES)}")
        _model_config(config)
        if config["family"] == "modern":
            config["model"] = LATER | config["model"]
        if type(config["training"]["steps"]) is not int:
            raise TypeError("training.steps is not a whole number")
    except OSError as error:
        why = "no such folder" if not Path(folder).exists() else f"{CONFIG}: {error.strerror}"
        raise RunError(f"{folder}: holds no run ({why}): name a folder that a training run was kept in") from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise RunError(f"{path}: does not describe a run ({error!r}): put back the one that was written") from None
    return config


def _model_config(config: dict) -> GPTConfig | ModernConfig:
    kind, _ = FAMILIES[config["family"]]
    return kind(**config["model"])


@dataclass
class Run:
    """A run read back: the model, its config.json, the steps behind the model, the measurements so far."""

    model: GPT | ModernGPT
    config: dict
    step: int
    history: list[dict] = field(repr=False)


def load_run(folder, step: int | None = None) -> Run:
    """The model of the run kept in `folder`, on the CPU, as it was left, or as it was after `step` steps.

    Raises RunError or CheckpointError when the folder holds no such run, or files that do not belong together.
    """
    folder = Path(folder)
    config = read_config(folder)
    path = folder / (CHECKPOINT if step is None else snapshot_name(step))
    tensors, header = _read_checkpoint(path, config)
    _, family = FAMILIES[config["family"]]
    model = family(_model_config(config))
    checkpoint.load_weights(model, _weights_of(tensors), path)
    return Run(model, config, header["step"], _read_history(folder, header["step"]))


def open_run(
    folder, model: GPTConfig | ModernConfig, training: dict, extra: dict | None = None, resume: bool = False
) -> "Keeper":
    """A Keeper for a run of a model of this configuration; config.json comes with the first measurement.

    `training` and `extra` are JSON objects.

    Raises RunError, and changes nothing, when the folder holds a run that this one would overwrite, or does not hold
    the one to resume. A resumed run has the settings it had; only its steps may be more.
    """
    folder = Path(folder)
    versions = {"python": platform.python_version(), "torch": str(torch.__version__), "gptbook": __version__}
    family = next(name for name, (kind, _) in FAMILIES.items() if isinstance(model, kind))
    config = {"family": family, "model": asdict(model), "training": training, **(extra or {}), "versions": versions}
    config = json.loads(json.dumps(config, allow_nan=False))  # as it will be read back: tuples are lists
    if resume:
        there = read_config(folder)
        _, header = _read_checkpoint(folder / CHECKPOINT, there)
        if _key(there) != _key(config):
            raise RunError(f"{folder}: the run there has {_difference(there, config)}: resume it with its own settings")
        if training["steps"] < header["step"]:
            raise RunError(f"{folder}: the run there has done {header['step']} steps: ask for at least as many")
    elif is_run(folder):
        raise RunError(f"{folder}: holds a run already: resume it, or choose another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise RunError(f"{folder}: a file is in the way, and a run needs a folder: choose another name") from None
    except OSError as error:
        raise RunError(f"{folder}: cannot be made ({error.strerror}): choose another folder") from None
    return Keeper(folder, config, resume)


class Keeper:
    """Writes down a run as it goes."""

    def __init__(self, folder: Path, config: dict, resumes: bool = False):
        self.folder, self.config, self.key = folder, config, _key(config)
        self.resumes, self.described = resumes, False  # is config.json written?

    def keep(self, row: dict, model, optimizer, random: torch.Generator):
        """Write down a measurement, and the state of the run with it: the step is row["step"].

        Raises RunError when the folder cannot be written to, or another run has begun there meanwhile.
        """
        try:
            self._keep(row, model, optimizer, random)
        except OSError as error:
            why = f"step {row['step']} could not be kept ({error.strerror})"
            raise RunError(f"{self.folder}: {why}: make room or choose another folder; what was there stays") from error

    def _keep(self, row, model, optimizer, random):
        if not self.described and not self.resumes and is_run(self.folder):
            raise RunError(f"{self.folder}: another run has begun here meanwhile: choose another folder")
        if not self.described:  # not before: a run that could not start is none
            text = json.dumps(self.config, indent=1, ensure_ascii=False) + "\n"
            checkpoint.write_aside(self.folder / CONFIG, text)
            self.described = True
        with (self.folder / METRICS).open("a", encoding="utf-8", newline="\n") as file:
            file.write(json.dumps(row, allow_nan=False) + "\n")
        header = {"run": self.key, "step": row["step"], "seconds": row["seconds"]}
        weights = checkpoint.weights(model)
        if row["step"] in self.config["training"]["snapshots"]:
            checkpoint.save(self.folder / snapshot_name(row["step"]), weights, header)

        # What going on needs besides the weights. No weight has "/" in its name.
        state = {"random/torch": torch.get_rng_state(), "random/batches": random.get_state()}
        device = next(model.parameters()).device
        if device.type == "cuda":
            state["random/cuda"] = torch.cuda.get_rng_state(device)
        for name, parameter in model.named_parameters():
            for moment, tensor in optimizer.state.get(parameter, {}).items():  # none before the first step
                state[f"optimizer/{name.replace('_orig_mod.', '')}/{moment}"] = tensor
        checkpoint.save(self.folder / CHECKPOINT, weights | state, header)

    def restore(self, model, optimizer, random: torch.Generator) -> tuple[int, float, list[dict]]:
        """Put everything back to the last checkpoint: its step, the seconds so far, and the measurements so far."""
        path = self.folder / CHECKPOINT
        tensors, header = _read_checkpoint(path, self.config)
        if "random/batches" not in tensors:
            raise RunError(f"{path}: holds weights alone, nothing to go on from: put back the one that was written")
        checkpoint.load_weights(model, _weights_of(tensors), path)
        parameters = {name.replace("_orig_mod.", ""): p for name, p in model.named_parameters()}
        for name, tensor in tensors.items():
            if name.startswith("optimizer/"):
                _, parameter, moment = name.split("/")
                parameter = parameters[parameter]
                counter = moment == "step" and parameter.device.type != "cuda"  # AdamW counts on the CPU elsewhere
                optimizer.state[parameter][moment] = tensor if counter else tensor.to(parameter.device)
        torch.set_rng_state(tensors["random/torch"])
        random.set_state(tensors["random/batches"])
        device = next(model.parameters()).device
        if device.type == "cuda" and "random/cuda" in tensors:
            torch.cuda.set_rng_state(tensors["random/cuda"], device)

        # A killed run may have measured once more after its last checkpoint: that will be measured again.
        history = _read_history(self.folder, header["step"])
        checkpoint.write_aside(self.folder / METRICS, "".join(json.dumps(row) + "\n" for row in history))
        return header["step"], header["seconds"], history


def _key(config: dict) -> str:
    """The sha256 of what must not change in a run: all but its length, and the versions."""
    training = {name: value for name, value in config["training"].items() if name != "steps"}
    fixed = {name: value for name, value in config.items() if name != "versions"} | {"training": training}
    fixed["model"] = {name: value for name, value in config["model"].items() if (name, value) not in LATER.items()}
    if fixed.get("family") == "gpt":  # left out, as a run from before does
        del fixed["family"]
    return hashlib.sha256(json.dumps(fixed, sort_keys=True).encode()).hexdigest()


def _difference(there: dict, here: dict, before: str = "") -> str:
    """The first setting in which two descriptions differ, in words."""
    for key in sorted(there.keys() | here.keys()):
        old, new = there.get(key), here.get(key)
        if old == new or key in ("versions", "steps"):
            continue
        if isinstance(old, dict) and isinstance(new, dict):
            return _difference(old, new, f"{before}{key}.")
        old, new = (text if len(text := repr(value)) < 40 else f"{text[:36]} ..." for value in (old, new))
        return f"{before}{key} {old} and not {new}"
    return "other settings"


def _weights_of(tensors: dict) -> dict:
    return {name: tensor for name, tensor in tensors.items() if "/" not in name}


def _read_checkpoint(path: Path, config: dict) -> tuple[dict, dict]:
    tensors, header = checkpoint.load(path)
    if header.get("run") != _key(config):
        raise RunError(f"{path}: does not belong to the {CONFIG} beside it: put back the one it was written with")
    return tensors, header


def _read_history(folder: Path, last_step: int) -> list[dict]:
    """The measurements up to `last_step`; a line that is none, cut short by a kill for example, is passed over."""
    rows = []
    path = folder / METRICS
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror}): put back the one that was written") from None
    for line in lines:
        try:
            row = json.loads(line)
            whole = all(isinstance(row[name], float) for name in ("seconds", "train_loss", "val_loss"))
            step = row["step"] if whole and type(row["step"]) is int else -1
        except (ValueError, TypeError, KeyError, RecursionError):
            continue
        if (rows[-1]["step"] if rows else -1) < step <= last_step:  # two trainers in one folder write each step twice
            rows.append(row)
    return rows
