"""What a process holds after sweeps of several networks: as it is, and after `programs.let_go` (bytes in memory).

Each sweep of another network is another program. A process that has compiled many lets go of them where memory runs
short; this script tells how much comes back. The limit is what the process held after its first sweep, of one program.

    python benchmarks/held.py --networks 12
"""

import argparse
import os
import statistics
from pathlib import Path

import jax
import jax.numpy as jnp
from timing import count

import fljax
from fljax.devices import programs


def megabytes() -> float:
    """Megabytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--networks", type=count, default=12, help="sweeps, each of another network")
    parser.add_argument("--repeats", type=count, default=5, help="times that programs are made and let go")
    options = parser.parse_args()
    federation = fljax.PARTITIONS["iid"](*fljax.load("digits"), n_clients=4)
    hypers = fljax.fedavg.Hyper(lr=jnp.array([0.1, 0.2]))
    first, before, after = 0.0, [], []
    for repeat in range(options.repeats):
        for width in range(options.networks):
            model = fljax.MODELS["mlp"]((8, 8, 1), (8 + width,), 10)
            fljax.sweep(fljax.fedavg(model, fljax.Work(1, 32)), hypers, federation, jax.random.key(0), 1, 2)
            first = first or megabytes()
        before.append(megabytes())
        programs.let_go()
        after.append(megabytes())
        print(f"{repeat + 1}: {before[-1]:.0f} MB after {options.networks} sweeps, {after[-1]:.0f} MB after letting go")
    held_mb, left_mb = statistics.median(before), statistics.median(after)
    print(f"after the first sweep {first:.0f} MB; with all {held_mb / first:.2f} of that, let go {left_mb / first:.2f}")


if __name__ == "__main__":
    main()
