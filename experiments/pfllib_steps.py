"""PFLlib's own code and fljax from the same models on the same examples: how far apart their clients' outputs are.

    git clone https://github.com/TsingZ0/PFLlib
    python experiments/pfllib_steps.py PFLlib
    python experiments/pfllib_steps.py PFLlib --only GPFL FedCP
    python experiments/pfllib_steps.py PFLlib --clients half --sizes unequal

Needs PyTorch; the case FedPAC cvxpy too. Clients, network and steps: same_steps.py; three rounds of three steps. With
``--clients half`` two of the four clients take part in each of five rounds; with ``--sizes unequal`` clients have 8,
16, 24 and 40 examples, with ``--sizes steps`` as many, all of a client alike, in batches of 8; with ``--sizes dropped``
9, 20, 30 and 44, in batches of 8, the rest of which both leave out. A line has the largest difference, over clients,
test examples and classes, between what the two take the largest of in a test after a round. float32 rounds to about
1e-7 of the largest output. Where the two differ by what their files say, `pfllib_cases.py` sets PFLlib's code to what
is here, or ours to what is there, and says so; methods that differ in more (APFL, APPLE, FedDistill) or draw what
matters (FedGen) are not there. Lines are in results/pfllib/steps-synthetic.csv.
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
from pfllib_cases import CASES, LR, N_CLIENTS, PLAIN, SIZES, Case, Setting
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
    algorithm = method(
        model, fljax.Work(epochs, case.batch(setting), drop_last=setting.sizes == "dropped"), **case.here.choices
    )

    def of_server(algorithm: Algorithm, hyper: Any, state: State, federation: Federation) -> Outputs:
        theta = shared_part(state.server)
        return np.stack([model.apply(theta, jnp.asarray(x), None)[0] for x in tests(federation)])

    outputs = of_server if case.tests_server else deployed_outputs
    sampling = fljax.rounds.table(setting.joined[:-1])
    first_state, _, by_round = same_steps.ours(algorithm, hyper, federation, setting.n_rounds, outputs, sampling)
    return first_state, by_round


def with_val(federation: Federation) -> Federation:
    """The last fifth of each client's training examples is its validation split."""
    train = federation.train
    n_val = train.size // 5
    places = train.index.shape[1]
    last = jnp.minimum((train.size - n_val)[:, None] + jnp.arange(places)[None], places - 1)
    val = train._replace(index=jnp.take_along_axis(train.index, last, axis=1), size=n_val)
    return federation._replace(train=train._replace(size=train.size - n_val), val=val)


def theirs(
    case: Case, first_state: State, first: Mapping[str, Any], federation: Federation, setting: Setting = PLAIN
) -> list[Outputs]:
    """PFLlib's outputs after 0, 1, ... rounds: it tests at the beginning of each."""
    import torch
    from flcore.clients import clientbase  # pyrefly: ignore[missing-import]

    def read(dataset: str, client: int, is_train: bool = True, few_shot: int = 0) -> list[Any]:
        x, y = examples(federation, client, is_train)
        return (list if is_train else Tests)(zip(torch.tensor(x), torch.tensor(y).long(), strict=True))

    file, name = case.server.split(".")
    module = importlib.import_module(f"flcore.servers.{file}")
    for loaded_module in list(sys.modules.values()):
        if loaded_module.__name__.startswith(("flcore", "utils")) and hasattr(loaded_module, "read_client_data"):
            loaded_module.read_client_data = read  # pyrefly: ignore[missing-attribute]
    from flcore.trainmodel.models import BaseHeadSplit  # pyrefly: ignore[missing-import]

    network = load_network(torch_network()(), first)
    defaults = {
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
    arguments = Arguments(**defaults | dict(case.arguments))
    if case.is_parted:
        arguments.head = arguments.model.head
    by_round: list[list[np.ndarray]] = []
    loader = partial(in_order, may_drop=setting.sizes == "dropped")

    def noted(watched: Callable[..., Any], outputs: Any, *options: Any, **more: Any) -> Any:
        if by_round and len(outputs) == N_TESTS:  # no batch of training examples is as large
            by_round[-1].append(outputs.detach().numpy().copy())
        return watched(outputs, *options, **more)

    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
        stack.enter_context(warnings.catch_warnings(action="ignore"))  # of PFLlib's calls
        for function in ("argmax", "argmin"):
            spy = partial(noted, getattr(torch, function))
            stack.enter_context(mock.patch.object(torch, function, spy))
        stack.enter_context(mock.patch.object(clientbase, "DataLoader", loader))
        server = getattr(module, name)(arguments, 0)
        server.save_results = server.save_global_model = lambda: None
        if case.change:
            case.change(server, first_state)
        participants = iter([row for row in setting.joined for _ in range(case.n_draws)])

        def begin_round() -> Any:
            by_round.append([])
            return [server.clients[i] for i in next(participants)]

        server.select_clients = begin_round
        server.train()
    first_output = case.nth_test * N_CLIENTS
    return [
        np.stack(round_outputs[first_output : first_output + N_CLIENTS]) for round_outputs in by_round if round_outputs
    ]


def last_as_infinite(our_outputs: Outputs, their_outputs: Outputs) -> Outputs:
    """Ours, infinite where theirs are and ours come after all others: classes without a prototype."""
    last = np.where(np.isposinf(their_outputs), -np.inf, our_outputs).max(-1, keepdims=True)
    return np.where(np.isposinf(their_outputs) & (our_outputs > last), np.inf, our_outputs)


def main() -> None:
    """Runs every case on both sides and keeps how far apart they are."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, help="a clone of PFLlib")
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES), metavar="METHOD")
    parser.add_argument("--clients", choices=("all", "half"), default="all", help="who takes part in a round")
    parser.add_argument("--sizes", choices=("equal", *SIZES), default="equal", help="of the clients")
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
        federation = clients(N_CLIENTS, alike=case.alike or setting.is_alike, sizes=setting.examples)
        with case.around():
            first_state, our_outputs = ours(case, model, federation, setting)
            their_outputs = theirs(case, first_state, first, federation, setting)
        n_rounds = setting.n_rounds
        pairs = zip(our_outputs[-n_rounds:], their_outputs[-n_rounds:], strict=True)
        comparable = [last_as_infinite(case.as_theirs(here), there) for here, there in pairs]
        settings = described(True, n_rounds, n_rounds, steps=EPOCHS, torch=torch.__version__, but=case.but or "nothing")
        result_lines = lines(
            name, setting.name, comparable, their_outputs, n_rounds, time.perf_counter() - began, settings
        )
        keep(options.results, "PFLlib", "steps", "synthetic", result_lines)
        print(f"{name:10} " + ", ".join(f"{line.metric} {line.value:.1e}" for line in result_lines), flush=True)


if __name__ == "__main__":
    main()
