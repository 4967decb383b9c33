"""ClusterFL by its authors' scripts of server and clients (Ouyang et al., MobiSys 2021), written for TensorFlow 1.

Each client's script runs in a thread, one at a time, from its beginning to its test; sockets and data are stood in for.
Omega and U come from the server's `server_update`: with a large rho there Omega is F' W and U is 2 beta F' W, and with
rho 0 at the clients these descend the penalty itself. F is the indicator of k-means' clusters; theirs, of the principal
components of a divergence between outputs, has no counterpart here.
"""

import contextlib
import os
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, Lock
from typing import Any
from unittest import mock

import numpy as np
from same_steps import N_CLASSES, N_HIDDEN, N_INPUTS, Outputs, clients, examples, torch_outputs, uneven
from sklearn.cluster import KMeans

import fljax
from authors.case import Case, altered, modules_of
from authors.tf1 import NEEDS, Arrays, arrays, loaded, tensorflow_1
from fljax import tree
from fljax.types import Federation, State

N_CLIENTS, K, EVERY = 7, 2, 3  # clients of theirs, and rounds from one F to the next
ROUNDS, EPOCHS, LR, ALPHA, BETA, RHO = 8, 3, 0.1, 0.2, 0.1, 1e6
SHAPES = ((N_INPUTS, N_HIDDEN), (N_HIDDEN,), (N_HIDDEN, N_CLASSES), (N_CLASSES,))
N_PARAMETERS = sum(int(np.prod(shape)) for shape in SHAPES)
STUBS = ("nest_asyncio", "communication", "data_pre", "tqdm", "matplotlib", "matplotlib.pyplot", "model_alex_full")
STUBS += ("server_model_alex_full",)

SIZE = {r"W_DIM = 271203( ?#)": f"W_DIM = {N_PARAMETERS} #"}
SERVER = SIZE | {r"beta = 5\*\(1e-4\)": f"beta = {BETA}", r"rho = 2\*\(1e-3\)": f"rho = {RHO}"}
CLIENT = SIZE | {
    r"\nalpha = 1\*\(1e-3\)": f"\nalpha = {ALPHA}",
    r"\nrho = 2\*\(1e-3\)": "\nrho = 0.0",
    "_BATCH_SIZE = 5": "_BATCH_SIZE = 1000",
    "local_iter = 20": f"local_iter = {EPOCHS}",
    "oueter_iter = 50": f"oueter_iter = {ROUNDS}",
    "initial_learning_rate = 1e-2": f"initial_learning_rate = {LR}",
    "NUM_OF_CLASS = 3": f"NUM_OF_CLASS = {N_CLASSES}",
    "coe_1 = alpha ": "coe_1 = alpha * tf.sign(tf.reduce_sum(F_i_tensor)) ",  # nobody is held before the first F
    r"regular_2 \+= ": "regular_2 -= ",  # as the Lagrangian has it
}
NETWORK = {
    "_IMAGE_SIZE = 900": f"_IMAGE_SIZE = {N_INPUTS}",
    "output_size=300": f"output_size={N_HIDDEN}",
    "_NUM_CLASSES = 3": f"_NUM_CLASSES = {N_CLASSES}",
}


def theirs(clone: Path, first_state: State, federation: Federation) -> list[Outputs]:
    """Runs the clients' scripts, and the server's update when all have sent their models."""
    outputs: list[Outputs] = []
    with tensorflow_1() as tf, modules_of(clone / "client", *STUBS) as module, in_a_folder():
        code = altered((clone / "client" / "client_cfmtl.py").read_text(), CLIENT)
        server, network = server_of(clone), {}
        exec(altered((clone / "client" / "model_alex_full.py").read_text(), NETWORK), network)

        def update() -> None:
            outputs.append(torch_outputs([loaded(split(vector)) for vector in server["W"]], federation))
            if (server["iteration_count"] + 1) % EVERY == 0:
                server["F"][:, :K] = indicator(server["W"])
            server["server_update"]()

        turn, all_came = Lock(), Barrier(N_CLIENTS, action=update)
        first = arrays(tree.take(first_state.server.models, 0))
        names: list[dict[str, Any]] = [{"__name__": "client"} for _ in range(N_CLIENTS)]

        class Wire:
            """The client's end of a connection."""

            def __init__(self, address: str, port: int, client: int) -> None:
                self.client = client
                for variable, value in zip(tf.trainable_variables(), first, strict=True):
                    variable.load(value, names[client]["sess"])

            def send2server(self, content: Any, kind: int) -> None:
                if kind == 0:
                    server["W"][self.client] = content

            def recvfserver(self) -> str:
                return "start"

            def recvOUF(self) -> tuple[Any, ...]:
                turn.release()
                try:
                    all_came.wait()
                finally:
                    turn.acquire()
                return server["Omega"], server["U"], server["F"], 0

            def disconnect(self, kind: int) -> None:
                pass

        def run(client: int) -> None:
            with turn:
                sys.argv[1:] = [str(client)]
                try:
                    exec(code, names[client])
                except BaseException:
                    all_came.abort()
                    raise

        vars(module("model_alex_full")).update(model=network["model"])
        vars(module("communication")).update(COMM=Wire)
        vars(module("data_pre")).update(vars(data_of(federation)))
        vars(module("tqdm")).update(tqdm=iter)
        with (
            mock.patch.object(sys, "argv", [""]),
            mock.patch.object(np, "int", int, create=True),
            ThreadPoolExecutor(N_CLIENTS) as threads,
        ):
            list(threads.map(run, range(N_CLIENTS)))
    return outputs


@contextlib.contextmanager
def in_a_folder() -> Iterator[None]:
    """Where scripts may leave files, which go with it."""
    previous_folder = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            Path("loss_record").mkdir()
            yield
        finally:
            os.chdir(previous_folder)


def server_of(clone: Path) -> dict[str, Any]:
    """What their server's script defines."""
    names: dict[str, Any] = {"__name__": "server"}
    with mock.patch.object(np, "loadtxt", mock.Mock()):  # examples whose outputs tell clients apart
        exec(altered((clone / "server" / "server_cfmtl.py").read_text(), SERVER), names)
    names["server_update_F"] = lambda: None
    return names


def data_of(federation: Federation) -> Namespace:
    """What stands for their module of data."""

    def generate_data(n_train: int, n_test: int, client: int, _: None) -> tuple[np.ndarray, ...]:
        (x, y), (x_test, y_test) = (examples(federation, client, is_train) for is_train in (True, False))
        return x, x_test, y, y_test

    return Namespace(
        load_data=lambda client: (client, None, None), generate_data=generate_data, count_analysis=lambda y: None
    )


def indicator(models: np.ndarray) -> np.ndarray:
    """(clients, K) F of k-means' clusters: 1 over the root of their size for members."""
    label = KMeans(K, n_init=20, random_state=0).fit_predict(models)
    member = (label[:, None] == np.arange(K)).astype(float)
    return member / np.sqrt(member.sum(0))


def split(flat: np.ndarray) -> Arrays:
    """The parameters that are in one vector."""
    ends = np.cumsum([np.prod(shape) for shape in SHAPES])[:-1]
    return [part.reshape(shape) for part, shape in zip(np.split(flat, ends), SHAPES, strict=True)]


CASES = {
    "ClusterFL": Case(
        "xmouyang/ClusterFL@93639fa",
        "server/server_cfmtl.py",
        lambda model: fljax.clusterfl(model, fljax.Work(EPOCHS, 1000), K),
        fljax.clusterfl.Hyper(lr=LR, alpha=ALPHA, beta=BETA, warmup=float(EVERY), every=float(EVERY)),
        theirs,
        lambda: uneven(clients(N_CLIENTS, n_groups=2, seed=12)),  # one of whom the second F moves
        ROUNDS,
        "F is the indicator of k-means' clusters, and found before Omega and U, there of principal components of "
        "outputs' divergence, and after; a large rho at the server and none at clients, so that Omega is F' W and U "
        "2 beta F' W; the inner product with these is taken from clients' loss, there it is added; no norm in it "
        "before the first F",
        needs=NEEDS,
    )
}
