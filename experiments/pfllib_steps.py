"""PFLlib's own code and fljax from the same models on the same examples: how far apart their clients' outputs are.

    git clone https://github.com/TsingZ0/PFLlib
    python experiments/pfllib_steps.py PFLlib
    python experiments/pfllib_steps.py PFLlib --only GPFL FedCP
    python experiments/pfllib_steps.py PFLlib --clients half --sizes unequal

Needs PyTorch; the case FedPAC cvxpy too. Clients, network and steps: same_steps.py; three rounds of three steps. With
``--clients half`` two of the four clients take part in each of five rounds; with ``--sizes unequal`` clients have 8,
16, 24 and 40 examples, with ``--sizes steps`` as many, all of a client alike, in batches of 8. A line has the largest
difference, over clients, test examples and classes, between what the two take the largest of in a test after a round.
float32 rounds to about 1e-7 of the largest output. Where the two differ by what their files say, `pfllib_cases.py` sets
PFLlib's code to what is here, or ours to what is there, and says so; methods that differ in more (APFL, APPLE,
FedDistill) or draw what matters (FedGen) are not there. Lines are in results/pfllib/steps-synthetic.csv.
"""

import argparse
import contextlib
import importlib
import io
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import same_steps
from outcomes import RESULTS, described, keep
from pfllib_alike import EPOCHS, Tests, in_order
from pfllib_authors import Arguments, parted
from pfllib_cases import CASES, LR, N_CLIENTS, PLAIN, Case, Setting
from same_steps import (
    N_CLASSES,
    N_TESTS,
    Outputs,
    clients,
    deployed_outputs,
    examples,
    lines,
    load_network,
    pytorch,
    small_network,
    tests,
    torch_network,
)

import fljax
from fljax.rounds.averaging import shared_part
from fljax.types import Algorithm, Federation, Model, State


def ours(case: Case, model: Model, federation: Federation, setting: Setting = PLAIN) -> tuple[State, list[Outputs]]:
    """The first state, and outputs after 0, 1, ... rounds."""
    method, epochs = getattr(fljax, case.here.name), case.here.epochs if case.here.epochs > 1 else EPOCHS
    federation = with_val(federation) if case.has_val else federation
    hyper = method.Hyper(**{"lr": LR, **case.here.numbers})
    algorithm = method(model, fljax.Work(epochs, case.batch(setting)), **case.here.choices)

    def of_server(algorithm: Algorithm, hyper: Any, state: State, federation: Federation) -> Outputs:
        theta = shared_part(state.server)
        return np.stack([model.apply(theta, jnp.asarray(x), None)[0] for x in tests(federation)])

    outputs = of_server if case.tests_server else deployed_outputs
    who = fljax.rounds.table(setting.joined[:-1])
    begun, _, found = same_steps.ours(algorithm, hyper, federation, setting.n_rounds, outputs, who)
    return begun, found


def with_val(federation: Federation) -> Federation:
    """The last fifth of each client's training examples is its validation split."""
    train = federation.train
    n_val = train.size // 5
    places = train.index.shape[1]
    last = jnp.minimum((train.size - n_val)[:, None] + jnp.arange(places)[None], places - 1)
    val = train._replace(index=jnp.take_along_axis(train.index, last, axis=1), size=n_val)
    return federation._replace(train=train._replace(size=train.size - n_val), val=val)


def theirs(
    case: Case, begun: State, first: Mapping[str, Any], federation: Federation, setting: Setting = PLAIN
) -> list[Outputs]:
    """PFLlib's outputs after 0, 1, ... rounds: it tests at the beginning of each."""
    import torch  # pyright: ignore[reportMissingImports]
    from flcore.clients import clientbase  # pyright: ignore[reportMissingImports]

    def read(dataset: str, client: int, is_train: bool = True, few_shot: int = 0) -> list[Any]:
        x, y = examples(federation, client, is_train)
        return (list if is_train else Tests)(zip(torch.tensor(x), torch.tensor(y).long(), strict=True))

    file, name = case.server.split(".")
    module = importlib.import_module(f"flcore.servers.{file}")
    for loaded in list(sys.modules.values()):
        if loaded.__name__.startswith(("flcore", "utils")) and hasattr(loaded, "read_client_data"):
            loaded.read_client_data = read
    from flcore.trainmodel.models import BaseHeadSplit  # pyright: ignore[reportMissingImports]

    network = load_network(torch_network()(), first)
    standing = {
        "model": parted(network, BaseHeadSplit) if case.is_parted else network,
        "dataset": "synthetic",
        "device": "cpu",
        "num_classes": N_CLASSES,
        "num_clients": N_CLIENTS,
        "join_ratio": len(setting.joined[0]) / N_CLIENTS,
        "global_rounds": setting.n_rounds,
        "batch_size": case.batch(setting),
        "local_learning_rate": LR,
        "learning_rate_decay_gamma": 1.0,
        "eval_gap": 1,
        "time_threthold": float("inf"),
    }
    arguments = Arguments(**standing | dict(case.arguments))
    if case.is_parted:
        arguments.head = arguments.model.head
    found: list[list[np.ndarray]] = []

    def noted(of: Callable[..., Any], outputs: Any, *options: Any, **more: Any) -> Any:
        if found and len(outputs) == N_TESTS:  # no batch of training examples is as large
            found[-1].append(outputs.detach().numpy().copy())
        return of(outputs, *options, **more)

    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
        stack.enter_context(warnings.catch_warnings(action="ignore"))  # of PFLlib's calls
        for function in ("argmax", "argmin"):
            spy = partial(noted, getattr(torch, function))
            stack.enter_context(mock.patch.object(torch, function, spy))
        stack.enter_context(mock.patch.object(clientbase, "DataLoader", in_order))
        server = getattr(module, name)(arguments, 0)
        server.save_results = server.save_global_model = lambda: None
        if case.change:
            case.change(server, begun)
        joined = iter([row for row in setting.joined for _ in range(case.n_draws)])

        def begin_round() -> Any:
            found.append([])
            return [server.clients[i] for i in next(joined)]

        server.select_clients = begin_round
        server.train()
    begin = case.nth_test * N_CLIENTS
    return [np.stack(each[begin : begin + N_CLIENTS]) for each in found if each]


def last_as_infinite(here: Outputs, there: Outputs) -> Outputs:
    """Ours, infinite where theirs are and ours come after all others: classes without a prototype."""
    last = np.where(np.isposinf(there), -np.inf, here).max(-1, keepdims=True)
    return np.where(np.isposinf(there) & (here > last), np.inf, here)


def main() -> None:
    """Runs every case on both sides and keeps how far apart they are."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, help="a clone of PFLlib")
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES), metavar="METHOD")
    parser.add_argument("--clients", choices=("all", "half"), default="all", help="who takes part in a round")
    parser.add_argument("--sizes", choices=("equal", "unequal", "steps"), default="equal", help="of the clients")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    setting = Setting(options.clients, options.sizes)
    system = options.checkout.resolve() / "system"
    if not (system / "flcore" / "servers" / "serverbase.py").exists():
        parser.error(f"{options.checkout} is no clone of PFLlib: it has no system/flcore/servers/serverbase.py")
    sys.path.insert(0, str(system))
    sys.modules.setdefault("h5py", ModuleType("h5py"))  # servers would save results with it
    torch = pytorch(parser)
    model = small_network()
    first = model.init(jax.random.key(0))
    model = model._replace(init=lambda key: first)
    for name in options.only:
        case, began = CASES[name], time.perf_counter()
        federation = clients(N_CLIENTS, alike=case.alike or setting.sizes == "steps", sizes=setting.examples)
        with case.around():
            begun, mine = ours(case, model, federation, setting)
            yours = theirs(case, begun, first, federation, setting)
        n_rounds = setting.n_rounds
        pairs = zip(mine[-n_rounds:], yours[-n_rounds:], strict=True)
        as_theirs = [last_as_infinite(case.as_theirs(here), there) for here, there in pairs]
        told = described(True, n_rounds, n_rounds, steps=EPOCHS, torch=torch.__version__, but=case.but or "nothing")
        found = lines(name, setting.name, as_theirs, yours, n_rounds, time.perf_counter() - began, told)
        keep(options.results, "PFLlib", "steps", "synthetic", found)
        print(f"{name:10} " + ", ".join(f"{line.metric} {line.value:.1e}" for line in found), flush=True)


if __name__ == "__main__":
    main()
