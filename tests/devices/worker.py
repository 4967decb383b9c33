"""One of several processes of `test_hosts.py`: runs methods over all devices of all hosts and on one, and compares.

python -m tests.devices.worker DEVICES HOSTS HOST PORT METHOD...     prints the largest difference of each method,
                                                                     "sweep" or "common test"
python -m tests.devices.worker DEVICES HOSTS HOST PORT --folder X    a long run of FedAvg into a folder
python -m tests.devices.worker DEVICES HOSTS HOST PORT --search X    a search into a folder, twice
python -m tests.devices.worker DEVICES HOSTS HOST PORT --plan        prints what a plan foretells and what is compiled
"""

import json
import os
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

import fljax
from fljax.algorithms.fedavg import fedavg
from fljax.data.synthetic import linear_groups
from fljax.devices.hosts import at_home, join_hosts
from fljax.devices.memory import peak
from fljax.devices.mesh import device_mesh, over_devices
from fljax.models import mlp
from fljax.run.plan import Probe, plan
from fljax.run.simulate import simulate
from fljax.run.sweep import search, sweep
from fljax.run.train import train
from fljax.types import Examples, Work
from tests.algorithms.table import CASES

ROUNDS = 5


class Recorded:
    """Images that remember which rows were read."""

    def __init__(self, x):
        self.x, self.read, self.shape, self.dtype = np.asarray(x), set(), x.shape, np.asarray(x).dtype

    def __getitem__(self, rows):
        self.read |= set(rows.tolist())
        return self.x[rows]


def make_federation():
    """As in `tests/algorithms/conftest.py`: eight ragged clients, the server has 16 unlabelled images."""
    federation = linear_groups(8, 2, examples=24, ragged=0.4)
    return federation._replace(public=Examples(federation.train.pool.x[:16], jnp.full(16, -1)))


def spread_out(federation):
    """Each client's examples on its own device; sees that this host read no others."""
    images = Recorded(federation.train.pool.x)
    mesh = device_mesh()
    distributed = at_home(federation, mesh, images)
    local_devices = [
        i for i, device in enumerate(mesh.devices.reshape(-1)) if device.process_index == jax.process_index()
    ]
    share = -(-8 // mesh.size)
    local_clients = [client for client in range(8) if client // share in local_devices]
    rows = {
        int(row)
        for data in (federation.train, federation.test)
        for client in local_clients
        for row in np.asarray(data.index)[client, : int(data.size[client])]
    }
    assert images.read == rows, "a host reads its own clients' images and no others"
    return distributed


def difference(a, b):
    """Largest difference, relative to 1 or the value; both are NaN in the same places."""
    a, b = np.asarray(a), np.asarray(b)
    if a.dtype == bool:
        return float((a != b).any())
    assert (np.isnan(a) == np.isnan(b)).all()
    return float(np.nanmax(np.abs(a - b) / np.maximum(1.0, np.abs(b)), initial=0.0))


def compare(name, federation, distributed):
    """The largest difference between all devices and one in any metric of any round."""
    case = CASES[name]
    algorithm = case.make(mlp(input_shape=(4, 4, 1), hidden=(6,), n_classes=4), Work(epochs=2, batch_size=8))
    options = {"participation": 0.75}
    run = train(algorithm, case.hyper, distributed, jax.random.key(0), ROUNDS, **options)
    _, expected = simulate(algorithm, case.hyper, federation, jax.random.key(0), ROUNDS, **options)
    return max(difference(run.metrics[metric], expected[metric]) for metric in expected)


def compare_common_test(federation):
    """As `compare`, with one test set for all clients, against one device where each client has a row of its own."""
    common = fljax.with_common_test(federation, Examples(*(part[:20] for part in federation.train.pool)))
    of_one_device = common._replace(test=common.test.with_own_rows())
    places = common, at_home(common, device_mesh())
    return max(compare(name, of_one_device, clients) for name in ("fedavg", "ifca", "standalone") for clients in places)


def compare_sweep(federation):
    """As `compare`, for a sweep over groups of two devices, each group's examples spread over its two."""
    algorithm = CASES["fedavg"].make(mlp(input_shape=(4, 4, 1), hidden=(6,), n_classes=4), Work(epochs=2, batch_size=8))
    lr, key = (0.05, 0.1, 0.3), jax.random.key(0)
    with over_devices(n_sweep=jax.device_count() // 2) as mesh:
        hypers = fljax.fedavg.Hyper(lr=np.asarray(lr))
        sweep_metrics = jax.device_get(
            sweep(algorithm, hypers, at_home(federation, mesh), key, 2, ROUNDS, participation=0.75)
        )
    largest = 0.0
    for point in range(3):
        for seed in range(2):
            run = (fljax.fedavg.Hyper(lr=lr[point]), federation, jax.random.fold_in(key, seed), ROUNDS)
            _, expected = simulate(algorithm, *run, participation=0.75)
            largest = max(largest, *(difference(sweep_metrics[name][point, seed], expected[name]) for name in expected))
    return largest


def compare_search(federation, folder):
    """As `compare`, for a halved search into a folder, and again from what it left there."""
    algorithm = CASES["fedavg"].make(mlp(input_shape=(4, 4, 1), hidden=(6,), n_classes=4), Work(epochs=2, batch_size=8))
    lr, key = (0.05, 0.1, 0.3), jax.random.key(0)
    options = {"halving": 2, "folder": folder, "participation": 0.75}
    searches = [search(algorithm, fljax.fedavg.Hyper(lr=lr), federation, key, 2, ROUNDS, **options) for _ in range(2)]
    largest = 0.0
    for point, rounds in enumerate(searches[0].rounds):
        for seed in range(2):
            run = (fljax.fedavg.Hyper(lr=lr[point]), federation, jax.random.fold_in(key, seed), ROUNDS)
            _, expected = simulate(algorithm, *run, participation=0.75)
            pairs = [
                (result.metrics[name][point, seed, :rounds], expected[name][:rounds])
                for result in searches
                for name in expected
            ]
            largest = max(largest, *(difference(a, b) for a, b in pairs))
    return largest


def foretold():
    """Bytes of a round of all clients, and of those that fit into four fifths: as planned, and as compiled."""
    federation, model = linear_groups(48, 2, examples=24), mlp(input_shape=(4, 4, 1), hidden=(2000,), n_classes=4)
    arguments = (partial(fedavg, model), Work(1, 8), model, fljax.fedavg.Hyper(), federation, jax.random.key(0))
    plan_of_all = plan(*arguments, participation=0.1)
    plan_of_some = plan(*arguments, memory=plan_of_all.needs(48) * 4 // 5)
    with over_devices() as mesh:
        probe = Probe(fedavg(model, Work(1, 8)), *arguments[3:], mesh)
        bytes_compiled = [peak(probe.compiled(n)) for n in (48, plan_of_some.largest_cohort)]
    return {
        "said": [plan_of_all.needs(48), plan_of_some.limit],
        "compiled": bytes_compiled,
        "per client": plan_of_all.per_client,
    }


def main(n_devices, n_hosts, host, port, *arguments):
    jax.config.update("jax_num_cpu_devices", int(n_devices))
    jax.config.update("jax_disable_most_optimizations", True)  # compilation is most of the work
    if cache := os.environ.get("FLJAX_TEST_CACHE"):
        jax.config.update("jax_compilation_cache_dir", cache)
    if int(n_hosts) > 1:
        join_hosts(f"localhost:{port}", int(n_hosts), int(host))
    if arguments[0] == "--plan":
        print(json.dumps(foretold()), flush=True)
        return
    federation = make_federation()
    if arguments[0] == "--search":
        print(json.dumps({"search": compare_search(federation, arguments[1])}), flush=True)
        return
    distributed = spread_out(federation)
    if arguments[0] == "--folder":
        case = CASES["fedavg"]
        algorithm = case.make(mlp(input_shape=(4, 4, 1), hidden=(6,), n_classes=4), Work(epochs=2, batch_size=8))
        options = {"folder": arguments[1], "seconds_per_checkpoint": 0.0, "seconds_per_chunk": 0.2}
        try:
            train(algorithm, case.hyper, distributed, jax.random.key(0), int(arguments[2]), **options)
        except ConnectionError as error:
            print(f"fljax: {error}", file=sys.stderr, flush=True)
            os._exit(2)  # a host that waits for the dead to say goodbye would wait for ever
        return
    for name in arguments:
        special = {"sweep": compare_sweep, "common test": compare_common_test}.get(name)
        largest = special(federation) if special else compare(name, federation, distributed)
        print(json.dumps({name: largest}), flush=True)
        jax.clear_caches()  # the programs of all methods for eight devices do not fit into one process's mappings


if __name__ == "__main__":
    main(*sys.argv[1:])
