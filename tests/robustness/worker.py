"""A run of IFCA into a folder, in a process of its own: python -m tests.robustness.worker FOLDER CACHE ROUNDS [BYTES].

With BYTES no file may become larger, as on a disk that is full.
"""

import resource
import sys

import jax

import fljax
from fljax.algorithms.ifca import ifca
from fljax.data.synthetic import linear_groups
from fljax.models import mlp
from fljax.run.train import train
from fljax.types import Work


def main(folder: str, cache: str, n_rounds: str, most_bytes: str | None = None) -> int:
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_compilation_cache_dir", cache)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    federation = linear_groups(9, 3, examples=30, ragged=0.5)
    algorithm = ifca(mlp(input_shape=(4, 4, 1), hidden=(8,), n_classes=4), Work(1, 8), 3)
    if most_bytes is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(most_bytes), int(most_bytes)))
    options = {"participation": 0.5, "seconds_per_checkpoint": 0.0, "seconds_per_chunk": 0.01}
    try:
        train(algorithm, fljax.ifca.Hyper(), federation, jax.random.key(0), int(n_rounds), folder=folder, **options)
    except (ValueError, OSError) as error:
        print(f"fljax: {error}", file=sys.stderr, flush=True)
        return 2
    return 0


def run(*words: str) -> None:
    """`main` as the whole of a process."""
    sys.exit(main(*words))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
