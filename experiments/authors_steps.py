"""The code of methods' authors and fljax from the same models on the same examples: how far apart they are.

    mkdir clones; git -C clones clone https://github.com/felisat/clustered-federated-learning     # and the others
    python experiments/authors_steps.py clones
    python experiments/authors_steps.py clones --only CFL IFCA

Needs PyTorch, TensorFlow for FeSEM and ClusterFL, and the repositories of `CASES` in the folder; what is not there is
named, and the methods are left out. Clients, network and steps: same_steps.py. A line has the largest difference, over
clients, test examples and classes, between what the two take the largest of in a test after a round; models that differ
would show, and clients in other clusters. The code was read at the commit that is named; a later one may need other
changes.
Where the two differ by what a method's file says, one is set to the other, and the line says so. Lines are in
results/authors/steps-synthetic.csv.
"""

import argparse
import importlib.util
import time
from pathlib import Path

import same_steps
from authors import (
    apple,
    cfl,
    clusterfl,
    fedadmm,
    fedcr,
    feddrift,
    fedem,
    fedma,
    fednova,
    fedrc,
    fedsoft,
    fesem,
    flexcfl,
    flis,
    heterofl,
    ifca,
    knn_per,
    pacfl,
    stocfl,
    superfed,
)
from authors.case import Case
from outcomes import RESULTS, described, keep
from same_steps import lines, pytorch, small_network

CLUSTERED = (cfl, ifca, pacfl, flis, flexcfl, stocfl, feddrift, fesem, clusterfl)
OTHERS = (fedem, fedrc, fedsoft, fedcr, fedma, fednova, knn_per, apple, superfed, heterofl, fedadmm)
CASES: dict[str, Case] = {}
for repository in CLUSTERED + OTHERS:
    CASES |= repository.CASES


def main() -> None:
    """Runs every case on both sides and keeps how far apart they are."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clones", type=Path, help="a folder with clones of the authors' repositories")
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES), metavar="METHOD")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    available = {name: case for name, case in CASES.items() if (options.clones / case.clone / case.file).exists()}
    missing_clones = sorted({CASES[name].address for name in options.only if name not in available})
    chosen_names = [name for name in options.only if name in available]
    if not chosen_names:
        parser.error(f"{options.clones} has no clone of {' '.join(missing_clones)}")
    missing_modules = {
        name: [module for module in available[name].needs if not importlib.util.find_spec(module)]
        for name in chosen_names
    }
    chosen = {name: available[name] for name in chosen_names if not missing_modules[name]}
    pytorch(parser)
    for name, case in chosen.items():
        federation, began = case.clients(), time.perf_counter()
        with case.around():
            algorithm = case.make(small_network())
            first_state, _, our_outputs = same_steps.ours(
                algorithm, case.hyper, federation, case.n_rounds, **case.outputs
            )
            their_outputs = case.theirs((options.clones / case.clone).resolve(), first_state, federation)
        versions = {module: importlib.import_module(module).__version__ for module in ("torch", *case.needs)}
        settings = described(True, case.n_rounds, case.n_rounds, **versions, but=case.but or "nothing")
        seconds = time.perf_counter() - began
        result_lines = lines(name, case.repository, our_outputs, their_outputs, case.n_rounds, seconds, settings)
        keep(options.results, "authors", "steps", "synthetic", result_lines)
        print(f"{name:10} " + ", ".join(f"{line.metric} {line.value:.1e}" for line in result_lines), flush=True)
    for address in missing_clones:
        print(f"not there, so not compared: {address}")
    for name, modules in missing_modules.items():
        if modules:
            print(f"not compared: {name}, whose code needs {' '.join(modules)}")


if __name__ == "__main__":
    main()
