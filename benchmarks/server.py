"""What telling clients apart costs: distances and clusterings against NumPy, SciPy and scikit-learn on the same input.

    python benchmarks/server.py [--check] [--repeats 5]
        [--only distances angles dbscan linkage kmeans points round spread]

Both sides of a row are alternated in one process after a first call of each (compilation is timed apart); the ratio is
the median of the pairs' ratios. Peak memory is what a call adds to the process's resident memory (Linux only). The
`round` rows compare the clustering of 1,000 clients with the round it follows: each trains LeNet (212,542 parameters)
for one epoch of 100 examples; 200 clients are trained and count five times, since a CPU trains one after another.
The `spread` rows compare what the server computes of models spread over all devices with the same on one.

The row with the cosines of whole models misses its bar on a CPU whatever is done: all pairs of them are 1e11
multiply-adds, an eighth of the training's 9e11, and run at the speed of NumPy's product (the row "half the work").
"""

import sys
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding, PartitionSpec
from timing import alternate, machine, parser, peak_mib, ratio, seconds_of

from fljax import server
from fljax.client.local import train_clients
from fljax.client.objectives import training_loss
from fljax.devices.collectives import collectives
from fljax.devices.mesh import over_devices, replicated, use_all_cores
from fljax.models import lenet
from fljax.placement import CLIENTS
from fljax.server.angles import subspace_distance
from fljax.tree import size
from fljax.types import ClientData, Examples, Trained, Work

N_TRAINED, TIMES = 200, 5


class Row(NamedTuple):
    """Two ways to do the same work."""

    name: str
    ours: Callable[[], Any]
    theirs: Callable[[], Any]
    bar: float  # the largest ratio of our time to theirs that passes; inf: shown only
    scale: float = 1.0  # how often theirs counts
    same: Callable[[Any, Any], str] = lambda ours, theirs: ""  # what their results have in common


def distances() -> Iterator[Row]:
    """1,000 models of 200,000 parameters: all pairs, against one product of two matrices of that size."""
    x = np.random.default_rng(0).standard_normal((1000, 200_000), np.float32)
    y = x[::-1].copy()  # another matrix: for x @ x.T NumPy computes only half of the product
    models = jnp.asarray(x)

    def same(ours: Any, theirs: np.ndarray) -> str:
        cosine = theirs[:, ::-1] / np.outer(norm := np.linalg.norm(x, axis=1), norm)
        return f"largest difference of cosines {np.abs(np.asarray(ours) - cosine).max():.0e}"

    yield Row("cosine / X @ Y.T", lambda: server.pairwise_cosine(models), lambda: x @ y.T, 1.3, same=same)
    yield Row("L2 / X @ Y.T", lambda: server.pairwise_l2(models), lambda: x @ y.T, 1.3)
    yield Row("cosine / X @ X.T (half the work)", lambda: server.pairwise_cosine(models), lambda: x @ x.T, np.inf)


def angles() -> Iterator[Row]:
    """500 subspaces of three directions: the smallest principal angle of all pairs, against a batch of LAPACK's."""
    basis = np.linalg.qr(np.random.default_rng(0).standard_normal((500, 64, 3)))[0].astype(np.float32)
    subspaces, ours = jnp.asarray(basis), jax.jit(subspace_distance)

    def theirs() -> np.ndarray:
        across = np.einsum("idp,jdq->ijpq", basis, basis, optimize=True)
        return np.degrees(np.arccos(np.minimum(np.linalg.svd(across, compute_uv=False)[..., 0], 1)))

    def same(ours: Any, theirs: np.ndarray) -> str:
        return f"largest difference of degrees {np.abs(ours - theirs)[~np.eye(500, dtype=bool)].max():.0e}"

    yield Row("smallest angles, n = 500", lambda: ours(subspaces), theirs, 0.5, same=same)


def dbscan() -> Iterator[Row]:
    """2,000 clients, against scikit-learn on the same matrix."""
    from sklearn.cluster import DBSCAN

    distance = _distance(2000, 2)
    matrix = jnp.asarray(distance)
    for eps in (0.05, 0.15, 0.5):
        oracle = DBSCAN(eps=eps, min_samples=4, metric="precomputed")
        yield Row(
            f"DBSCAN, n = 2,000, eps = {eps}",
            lambda eps=eps: server.dbscan(matrix, eps, 4),
            lambda oracle=oracle: oracle.fit(distance).labels_,
            1.5,
            same=lambda a, b: f"equal labels: {bool((a == server.canonical(jnp.asarray(b, jnp.int32))).all())}",
        )


def linkage() -> Iterator[Row]:
    """1,000 clients, against SciPy's C code on the condensed matrix."""
    from scipy.cluster.hierarchy import linkage as oracle
    from scipy.spatial.distance import squareform

    distance = _distance(1000, 20)
    matrix, condensed = jnp.asarray(distance), squareform(distance.astype(float), checks=False)
    for method, bar in (("average", 5.0), ("complete", np.inf), ("single", np.inf)):
        yield Row(
            f"{method} linkage, n = 1,000",
            lambda method=method: server.linkage(matrix, method),
            lambda method=method: oracle(condensed, method),
            bar,
            same=lambda a, b: f"largest relative difference of heights {np.abs(a[:, 2] / b[:, 2] - 1).max():.0e}",
        )


def kmeans() -> Iterator[Row]:
    """1,000 points of 10,000 coordinates, 10 clusters, 20 restarts, against scikit-learn."""
    from sklearn.cluster import KMeans

    rng = np.random.default_rng(0)
    for name, spread in (("no groups", 0.0), ("10 groups", 0.1)):
        centers = spread * rng.standard_normal((10, 10_000), np.float32)
        x = centers[rng.integers(0, 10, 1000)] + rng.standard_normal((1000, 10_000), np.float32)
        points, key = jnp.asarray(x), jax.random.key(0)
        yield Row(
            f"k-means, {name}",
            lambda points=points, key=key: server.kmeans(key, points, 10, n_init=20),
            lambda x=x: KMeans(10, n_init=cast(Any, 20), random_state=0).fit(x),
            1.0,
            same=lambda a, b: f"inertia / theirs {float(a.inertia) / b.inertia_:.6f}",
        )


def points() -> Iterator[Row]:
    """3,000 points of 650 coordinates, as small models of many clients are, 2 clusters, 20 restarts."""
    from sklearn.cluster import KMeans

    x = np.random.default_rng(0).standard_normal((3000, 650), np.float32)
    x[:1500] += 0.3
    coordinates, key = jnp.asarray(x), jax.random.key(0)
    yield Row(
        "k-means of more points",
        lambda: server.kmeans(key, coordinates, 2, n_init=20),
        lambda: KMeans(2, n_init=cast(Any, 20), random_state=0).fit(x),
        1.0,
        same=lambda a, b: f"inertia / theirs {float(a.inertia) / b.inertia_:.6f}",
    )


def round() -> Iterator[Row]:
    """Clusterings of 1,000 clients against the round in which they were trained."""
    model = lenet(input_shape=(28, 28, 1), n_classes=10)
    rng = np.random.default_rng(0)
    pool = Examples(
        jnp.asarray(rng.standard_normal((2000, 28, 28, 1), np.float32)),
        jnp.asarray(rng.integers(0, 10, 2000), jnp.int32),
    )
    index = jnp.asarray(rng.integers(0, 2000, (N_TRAINED, 100)), jnp.int32)
    with over_devices() as mesh:
        data = replicated(ClientData(pool, index, jnp.full(N_TRAINED, 100, jnp.int32)), mesh)
        keys = jax.random.split(jax.random.key(0), N_TRAINED)
        key, start = replicated((keys, jax.vmap(model.init)(keys)), mesh)

    @jax.jit
    def trained(key: jax.Array, start: Any, data: ClientData) -> Trained:
        return train_clients(key, start, data, training_loss(model), optax.sgd(0.01), Work(1, 32))

    def train() -> Trained:
        with over_devices():
            return jax.block_until_ready(trained(key, start, data))

    models = jax.vmap(model.init)(jax.random.split(jax.random.key(1), 1000))
    outputs = jax.nn.softmax(jnp.asarray(rng.standard_normal((1000, 50, 10), np.float32)))
    once = jnp.zeros(1000, jnp.int32)

    matrix = jnp.asarray(_distance(1000, 20))

    @jax.jit
    def given(matrix: jax.Array) -> jax.Array:
        return server.cut_k(server.linkage(matrix, "average"), 5)

    @jax.jit
    def output(outputs: jax.Array) -> jax.Array:
        return server.dbscan(server.js_divergence(outputs), 0.15, 2)

    @jax.jit
    def layer(models: Any) -> jax.Array:
        return server.bipartition(server.pairwise_cosine(models, layers=("conv2",)), once)

    @jax.jit
    def whole(models: Any) -> jax.Array:
        return given(1 - server.pairwise_cosine(models))

    bar = 0.05
    yield Row("linkage of given distances + cut", lambda: given(matrix), train, bar, TIMES)
    yield Row("JS of 50 outputs + DBSCAN", lambda: output(outputs), train, bar, TIMES)
    yield Row("cosine of conv2 + bipartition", lambda: layer(models), train, bar, TIMES)
    yield Row(f"cosine of {size(start) // N_TRAINED:,} + linkage", lambda: whole(models), train, bar, TIMES)


def spread() -> Iterator[Row]:
    """20 models of a million parameters over all devices, against the same on one device."""
    models = jnp.asarray(np.random.default_rng(0).standard_normal((20, 1_000_000), np.float32))
    matrix = jnp.asarray(np.random.default_rng(1).random((20, 20), np.float32))
    center = jnp.zeros((1, models.shape[1]))

    def row(name: str, function: Callable[[jax.Array], jax.Array]) -> Row:
        with over_devices() as mesh:
            if mesh is None:
                raise SystemExit("the rows `spread` need two devices or more")
            spread_models = jax.device_put(models, NamedSharding(mesh, PartitionSpec(CLIENTS)))
            program = jax.jit(function).lower(spread_models).compile()
            exchanges = sum(collective.times for collective in collectives(program, mesh.size))
        alone = jax.jit(function)
        return Row(
            f"{name} / of one device",
            lambda: program(spread_models),
            lambda: alone(models),
            2.0,
            same=lambda a, b: f"{exchanges} exchanges, difference {np.abs(np.asarray(a) - np.asarray(b)).max():.0e}",
        )

    yield row("weighted mean", lambda x: server.weighted_mean(x, matrix[0]))
    yield row("mixture of all", lambda x: server.mix(matrix, x))
    yield row("median", server.coordinate_median)
    yield row("trimmed mean", lambda x: server.trimmed_mean(x, 0.2))
    yield row("distances to a centre", lambda x: server.cross_squared_l2(x, center))
    yield row("cosines", server.pairwise_cosine)
    yield row("Euclidean distances", server.pairwise_l2)
    yield row("model discrepancies", server.model_discrepancy)


def _distance(n: int, d: int) -> np.ndarray:
    x = np.random.default_rng(0).standard_normal((n, d))
    square = (x * x).sum(1)
    distance = np.sqrt(np.maximum(square[:, None] + square[None] - 2 * x @ x.T, 0)).astype(np.float32)
    np.fill_diagonal(distance, 0)
    return np.maximum(distance, distance.T)


def measure(row: Row, repeats: int) -> float:
    """Prints one line; returns the ratio."""
    first, ours = seconds_of(row.ours)
    agreement = row.same(ours, seconds_of(row.theirs)[1])
    del ours
    seconds = alternate({"ours": row.ours, "theirs": row.theirs}, repeats)
    seconds["theirs"] = [row.scale * value for value in seconds["theirs"]]
    share = ratio(seconds["ours"], seconds["theirs"])
    ours_ms, theirs_ms = (1e3 * median(values) for values in seconds.values())
    bar = f"{row.bar:6.2f}" if np.isfinite(row.bar) else "     -"
    print(
        f"{row.name:<34}{ours_ms:10.1f}{theirs_ms:10.1f}{share:8.3f}{bar}{first:7.1f} s"
        f"{peak_mib(row.ours):8.0f}{peak_mib(row.theirs):8.0f}  {agreement}",
        flush=True,
    )
    return share


def main() -> int:
    """Prints the table; 1 if ``--check`` and a ratio is above its bar."""
    parts = {f.__name__: f for f in (distances, angles, dbscan, linkage, kmeans, points, round, spread)}
    arguments = parser(__doc__, parts)
    options = arguments.parse_args()
    use_all_cores()
    print(machine(), "(times in ms, memory in MiB)")
    print(f"{'':<34}{'fljax':>10}{'other':>10}{'ratio':>8}{'bar':>6}{'first':>9}{'peak':>8}{'other':>8}")
    above = [row.name for name in options.only for row in parts[name]() if measure(row, options.repeats) > row.bar]
    if above:
        print("above the bar:", "; ".join(above))
    return 1 if options.check and above else 0


if __name__ == "__main__":
    sys.exit(main())
