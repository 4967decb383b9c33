"""What each method keeps and sends, read off its program without running it: for the table of methods.

    python docs/costs.py [METHOD ...]

writes `costs.json`, of the named methods or of all. A test compares the file with the library.
"""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import partial_eval

import fljax
from fljax.data.federation import build, on_host
from fljax.rounds.cohort import sample_cohort
from fljax.rounds.named_samplings import uniform
from fljax.types import State

N_CLIENTS, K, SHAPE, N_CLASSES = 6, 3, (8, 8, 1), 4
KEPT = Path(__file__).parent / "costs.json"


class Cost(NamedTuple):
    """In models: 1 is as many floats as the network has. None: it changes from round to round, or with the data."""

    server: float
    client: float
    uplink: float | None
    downlink: float | None

    def cells(self) -> tuple[str, ...]:
        """For a table."""
        return tuple("varies" if value is None else f"{value:.3g}" for value in self)

    def sentence(self) -> str:
        """For a page."""
        server, client, up, down = (cell if cell != "varies" else "an amount that varies" for cell in self.cells())
        return (
            f"In models of a small network, for {N_CLIENTS} clients and K = {K}: the server keeps {server}, each "
            f"client keeps {client} between rounds; in the second round a participant sends {up} and receives {down}."
        )


def of_methods() -> dict[str, Cost]:
    """Of every method that `KEPT` has."""
    return {name: Cost(*numbers) for name, numbers in json.loads(KEPT.read_text()).items()}


def measure(names: Iterable[str]) -> None:
    """Writes the costs of these methods into `KEPT`, one after another."""
    for name in names:
        kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
        known = {one: numbers for one, numbers in kept.items() if one in fljax.ALGORITHMS}
        known[name] = [value if value is None else float(f"{value:.3g}") for value in cost(name)]
        lines = [f"  {json.dumps(one)}: {json.dumps(known[one])}" for one in sorted(known)]
        KEPT.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def cost(name: str) -> Cost:
    """Of one method, from its program for a small network; traced, not run."""
    method = fljax.ALGORITHMS[name]
    probabilistic = name in ("fedsr", "fedsr_ft", "fedcr")
    if name == "fedbn":  # what it is about is normalisation
        shape, kind, options = (16, 16, 1), "celeba_cnn", {"norm": "group"}
    elif probabilistic:
        shape, kind, options = (16, 16, 1), "variational_cnn", {"channels": (4, 4), "hidden": (8,)}
    else:
        shape, kind, options = SHAPE, "mlp", {"hidden": (16, 8)}
    model = fljax.MODELS[kind](input_shape=shape, n_classes=N_CLASSES, **options)
    counts = {one: K for one in ("n_clusters", "n_groups", "n_learners", "n_edges") if one in method.static}
    compared = {"layers": model.layers[0]} if name == "layercfl" else {}  # its default is a name of VGG16's
    algorithm = method(model, fljax.Work(1, 4), **counts, **compared)
    return _traced(algorithm, method.Hyper(), _federation(shape), model)


def _federation(shape: tuple[int, ...]) -> Any:
    rng = np.random.default_rng(0)
    n = 20 * N_CLIENTS
    pool = on_host(rng.integers(0, 255, (n, *shape), np.uint8), np.arange(n) % N_CLASSES)
    return build(pool, np.split(rng.permutation(n), N_CLIENTS), (0.6, 0.2, 0.2), public=pool)


def _traced(algorithm: Any, hyper: Any, federation: Any, model: Any) -> Cost:
    key = jax.random.key(0)
    numbers = jax.tree.map(jnp.float32, hyper)
    state = jax.eval_shape(algorithm.init, key, numbers, federation.train)
    draw = uniform(1.0).of(N_CLIENTS)
    cohort = jax.eval_shape(lambda key: sample_cohort(key, jnp.int32(1), federation, draw, None), key)
    size = _floats(jax.eval_shape(model.init, key))

    def sent(round: Any, key: Any, numbers: Any, state: State, cohort: Any) -> tuple[Any, Any]:
        _, metrics = algorithm.round(key, numbers, state, cohort._replace(round=round))
        return metrics["uplink"], metrics["downlink"]

    made = jax.make_jaxpr(sent)(jnp.int32(1), key, numbers, state, cohort)
    sends = [_value(made, place) for place in range(2)]
    client = _floats(state.clients) / N_CLIENTS
    return Cost(_floats(state.server) / size, client / size, *(one if one is None else one / size for one in sends))


def _value(made: Any, place: int) -> float | None:
    """An output of a program that depends on the round's number alone; None where it depends on more."""
    wanted = [i == place for i in range(len(made.jaxpr.outvars))]
    small, used = partial_eval.dce_jaxpr(made.jaxpr, wanted)
    if any(used[1:]):
        return None
    given = [jnp.int32(1)] * sum(used)
    (value,) = jax.core.eval_jaxpr(small, made.consts[: len(small.constvars)], *given)
    return float(value) if np.ndim(value) == 0 else float(np.mean(value))


def _floats(value: Any) -> int:
    leaves = [leaf for leaf in jax.tree.leaves(value) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return sum(int(np.prod(leaf.shape)) for leaf in leaves)


if __name__ == "__main__":
    measure(sys.argv[1:] or fljax.ALGORITHMS)
