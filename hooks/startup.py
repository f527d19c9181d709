"""Runs in every page's kernel before the first cell: how tensors print, figures as SVG that is the same each time, and
shape comments that are held against their tensors (shapes.py).

A module is set up when the page imports it, so that a page which does not need it does not wait for it.
"""

import importlib.abc
import importlib.util
import sys
import types


def _set_up_torch(torch):
    torch.set_printoptions(linewidth=80, precision=4, sci_mode=False)


def _set_up_pyplot(pyplot):
    from matplotlib_inline.backend_inline import set_matplotlib_formats

    set_matplotlib_formats("svg", metadata={"Date": None, "Creator": None})
    pyplot.rcParams.update({"svg.hashsalt": "gptbook", "svg.fonttype": "none"})


class _AfterImport(importlib.abc.MetaPathFinder):
    """Calls set_up(module) right after the module of this name was imported."""

    def __init__(self, name, set_up):
        self.name, self.set_up = name, set_up

    def find_spec(self, name, path=None, target=None):
        if name != self.name:
            return None
        sys.meta_path.remove(self)  # so that the next line asks the others
        spec = importlib.util.find_spec(name)
        if spec is not None:
            run = spec.loader.exec_module

            def exec_module(module):
                run(module)
                self.set_up(module)

            spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, _AfterImport("torch", _set_up_torch))
sys.meta_path.insert(0, _AfterImport("matplotlib.pyplot", _set_up_pyplot))


def _hold_shapes(source):
    module = sys.modules["_shapes"] = types.ModuleType("_shapes")
    exec(compile(source, "shapes.py", "exec"), module.__dict__)
    module.ledger = module.install(get_ipython())  # noqa: F821
