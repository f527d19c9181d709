"""What this machine is, in a reader's words."""

import platform
from pathlib import Path

BFLOAT16 = {"avx512_bf16", "amx_bf16", "bf16", "svebf16"}  # what processors call instructions that multiply it


def multiplies_bfloat16() -> bool:
    """Whether this processor has instructions for bfloat16: without them it is no gain, but many times slower."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    return any(BFLOAT16 & set(line.split()) for line in lines if line.startswith(("flags", "Features")))


def processor() -> str:
    """The name of this machine's processor."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
