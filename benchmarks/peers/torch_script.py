"""The script of a researcher who has images in a file: ``python -m peers.torch_script IMAGES ROUNDS RESULT``."""

import sys
from pathlib import Path

import numpy as np
from peers.torch_loop import Loop
from peers.work import WORKLOADS


def main() -> None:
    images, n_rounds, result = sys.argv[1:]
    with np.load(images) as file:
        x, y = file["x"].astype(np.float32) / 255, file["y"]
    owned = np.random.default_rng(0).permutation(len(y)).reshape(500, -1)
    train, test = owned[:, :96], owned[:, 96:].ravel()
    clients = [(x[rows], y[rows]) for rows in train]
    loop = Loop(WORKLOADS["mlp-10"]._replace(n_clients=len(clients)), clients, (x[test], y[test]))
    loop.run(int(n_rounds))
    Path(result).write_text(str(loop.accuracy()))


if __name__ == "__main__":
    main()
