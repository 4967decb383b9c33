"""What FedCPS's Table 2 hangs on: numbers of a run and of its last rounds."""

import jax
import numpy as np
import pytest
from fedcps_settings import EFFORTS, Contender, Effort, measured
from final_round import with_own_layers_trained
from reporting import Scale

import fljax
from fljax.algorithms.fedavg import fedavg
from fljax.data import partition
from fljax.data.federation import on_host
from fljax.models import mlp
from fljax.run.train import train
from fljax.types import Work

MODEL, WORK, LR, N_ROUNDS = mlp((4, 4, 1), (6,), 3), Work(1, 8), 0.05, 3


def test_the_learning_rate_after_250_rounds_of_the_codes_defaults():
    assert Effort(10).last_lr(250) == 0.05
    assert EFFORTS["fashion_mnist"]["2 epochs, decay 0.997"].last_lr(250) == pytest.approx(
        0.05 * np.exp(250 * np.log1p(-0.003))
    )


@pytest.mark.slow
def test_accuracies_are_of_the_rounds_and_of_the_models_after_a_last_round(tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.integers(256, size=(120, 4, 4, 1), dtype=np.uint8), np.arange(120) % 3
    x[:, 0] = 80 * y[:, None, None]  # something to learn
    federation = partition.iid(on_host(x[:90], y[:90]), on_host(x[90:], y[90:]), 6, seed=0)
    algorithm, hyper = fedavg(MODEL, WORK), fljax.fedavg.Hyper(lr=LR)
    with_last_round = with_own_layers_trained(algorithm, MODEL, WORK, 0.5, MODEL.layers)
    scale = Scale(paper=False, n_seeds=1, folder=tmp_path)
    contender = Contender(algorithm, hyper, {"acc_pct_all": with_last_round})
    numbers = measured(scale, "settings", "fedavg", contender, N_ROUNDS, 50, 0.0, 0, federation)
    run = train(algorithm, hyper, federation, jax.random.key(0), N_ROUNDS, participation=0.5)
    assert numbers["acc_pct"] == pytest.approx(100 * run.metrics["accuracy_macro"].mean(), rel=1e-5)
    assert numbers["rounds_to_published"] == 1
    models = with_last_round.deploy(jax.random.key(0), hyper, run.state, federation.train)
    accuracies = []
    for client, row in enumerate(np.asarray(models.row)):
        rows = np.asarray(federation.test.index)[client, : int(federation.test.size[client])]
        params = jax.tree.map(lambda leaf, row=row: leaf[row], models.params)
        logits = algorithm.predict(params, federation.test.pool.x[rows])
        accuracies.append(np.mean(np.argmax(logits, axis=1) == np.asarray(federation.test.pool.y)[rows]))
    assert numbers["acc_pct_all"] == pytest.approx(100 * np.mean(accuracies), rel=1e-5)
    assert abs(numbers["acc_pct_all"] - numbers["acc_pct"]) > 1
