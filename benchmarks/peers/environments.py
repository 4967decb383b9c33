"""A virtual environment for each system, made once; of each the last version that works."""

import subprocess
import sys
import venv
from functools import cache
from pathlib import Path

from peers.process import Failed

FOLDER = Path(__file__).parent / ".env"
TORCH = ["torch==2.13.0", "numpy"]  # first and alone, so that no system brings a build of its own
INSTALL = {
    "torch": [TORCH],
    # 0.0.17 with a current jax is broken: `jax.tree_map` is gone.
    "fedjax": [["fedjax==0.0.17", "jax==0.5.3", "jaxlib==0.5.3", "dm-haiku<0.0.15"]],
    "pfl": [TORCH, ["pfl[pytorch]==0.6.0"]],
    "flower": [TORCH, ["flwr[simulation]==1.41.0"]],
    # It asks for torchvision, which would replace torch.
    "fedlab": [TORCH, ["--no-deps", "fedlab==1.3.0"], ["pandas", "pynvml", "tqdm", "scikit-learn", "pillow"]],
}
"""Arguments of `pip install`, one call after another. fljax and naive vmap are not here: they run where this does."""


@cache
def python_of(system: str) -> str:
    """The interpreter that runs a system.

    Raises:
        Failed: its environment cannot be made.
    """
    if system not in INSTALL:
        return sys.executable
    folder = FOLDER / system
    marker = folder / "made"
    if not marker.exists():
        print(f"making the environment of {system}", flush=True)
        venv.create(folder, with_pip=True)
        for arguments in INSTALL[system]:
            command = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", *arguments]
            outcome = subprocess.run(command, capture_output=True, text=True, check=False)
            if outcome.returncode:
                errors = [line for line in outcome.stderr.splitlines() if line.startswith("ERROR")] or ["pip failed"]
                raise Failed(f"pip install {' '.join(arguments)}: {errors[-1]}")
        marker.touch()
    return str(folder / "bin" / "python")
