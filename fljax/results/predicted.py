"""Predictions of a results folder's trained models for their clients' examples, or for new ones, as a table."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from fljax import tree
from fljax.choices import check_choices, there_are
from fljax.data.federation import as_arrays, on_host
from fljax.data.own.new_examples import Known, NewExamples, read_new
from fljax.data.split import client_data
from fljax.drift.stages import at
from fljax.folder.checkpoint import standing_of
from fljax.jobs.assemble import method_named
from fljax.jobs.job import Job, read_job
from fljax.jobs.origins import rows_before_changes
from fljax.jobs.own_data import columns_of
from fljax.metrics.predictions import predictions
from fljax.report.frames import ColumnArrays
from fljax.results.joining import Held, Joining, models_for, models_of_joining, read_joining
from fljax.results.load import LoadedRun, load_run
from fljax.results.predicted_columns import prediction_columns
from fljax.results.remake import Remade, remake
from fljax.results.result import Result
from fljax.run.identity import sums_of_examples
from fljax.run.models_on_disk import OF_NEW
from fljax.types import ClientData, Federation, ModelTable

Split = Literal["test", "val", "train", "new"]


def predicted(folder: str | Path, split: Split = "test", methods: Sequence[str] = ()) -> ColumnArrays:
    """Predictions for each client's examples by the model with which it was last tested, method after method.

    Columns: ``method``; ``client``, its name or number; ``example``, the row number in the pool, which for data that
    names its clients is the row of the file, from 0 (also for examples that a drift or an attack has changed);
    ``label`` and ``predicted``. In classification also a probability for each class (``p_NAME``, the softmax of the
    outputs); for several labels ``label_NAME``, ``p_NAME`` and ``predicted_NAME`` for each (p of 0.5 and more); for
    several targets ``label_NAME`` and ``predicted_NAME``. For a client without a model, and if an output is not
    finite, ``predicted`` is empty or NaN.

    Args:
        folder: results folder of ``fljax run``, or of a seed of ``fljax compare``.
        split: the examples; if clients change over the rounds, those of the last round. "new": the test examples of the
            clients that ``--new-clients`` held out, with the models that these got.
        methods: some of the folder's methods; (): all.

    Raises:
        ValueError: the folder holds no finished run, or no such method or split, the data has changed since, or as
            `fljax.remake`.
    """
    check_choices(predicted, {"split": split})
    run, remade, job = load_run(folder), remake(folder), read_job(["--folder", str(folder)])
    return _concatenated([_of_clients(run, remade, run[name], split, job) for name in methods or run])


def predicted_of_new(
    folder: str | Path,
    path: str | Path,
    client: str | None = None,
    methods: Sequence[str] = (),
    join: str | Path | None = None,
    n_rounds: int | None = None,
) -> ColumnArrays:
    """Predictions of trained models for new examples, with or without labels: columns as in `predicted`.

    If the file names the client of each example, as the run's data did, the model of that client predicts it; else the
    model of ``client``, or the one that all clients share. ``example`` is the row of the file, from 0, or the image's
    name; labels are there if the file has them, as they are written there.

    Args:
        folder: results folder of ``fljax run``, or of a seed of ``fljax compare``.
        path: a table, ``.npz`` or folder of images, see `fljax.data.own.new_examples.read_new`.
        client: the client whose model predicts all examples, by its name or its number; None: see above.
        methods: some of the folder's methods; (): all.
        join: such a file of labelled examples of clients that did not participate in the run: each gets a model from
            `fljax.new_client_models`. If it names no clients, it is one client with the file's name, and the new
            examples belong to it unless they or ``client`` name another.
        n_rounds: rounds of work of the clients that join; None: the run's ``--new-client-rounds``.

    Raises:
        ValueError: as `predicted` and `read_new`; or there is no such client; or clients have different models and no
            client is given; or a client that joins participated in the run.
    """
    run, remade, job = load_run(folder), remake(folder), read_job(["--folder", str(folder)])
    x = remade.federation.train.pool.x
    known = Known(columns_of(job), x.shape[1:], x.dtype, run.inputs, run.words, remade.fills)
    joining = None if join is None else read_joining(join, known, remade.federation, run.classes)
    new_examples, n_rounds = read_new(path, known), job.run.new_client_rounds if n_rounds is None else n_rounds
    if joining is not None and new_examples.client is None and client is None and len(joining.names) == 1:
        (client,) = joining.names
    parts = []
    for name in methods or run:
        held = _holders(remade, run[name], joining, n_rounds)
        parts.append(_of_new(run, remade, run[name], new_examples, client, held))
    return _concatenated(parts)


def _holders(remade: Remade, result: Result, joining: Joining | None, n_rounds: int) -> list[Held]:
    """The clients with their models of a method: the run's clients, its new clients, and those that join."""
    models = result.models
    held = [Held(result.clients or tuple(map(str, range(len(models.row)))), models)]
    if result.new_clients and result.folder.joinpath(OF_NEW).exists():
        held.append(Held(result.new_clients, result.new_models))
    if joining is None:
        return held
    if in_run := sorted(set(joining.names) & set(held[0].names)):
        raise ValueError(f"client {in_run[0]!r} cannot join: it was in the run and has a model; leave it out")
    _checked_federation(remade, result)
    with method_named(result.name, remade.runs):
        models = models_of_joining(remade.runs[result.name], result.folder, joining, n_rounds)
    return [*held, Held(joining.names, models)]


def _concatenated(parts: list[ColumnArrays]) -> ColumnArrays:
    return {column: np.concatenate([part[column] for part in parts]) for column in parts[0]}


def _of_clients(run: LoadedRun, remade: Remade, result: Result, split: Split, job: Job) -> ColumnArrays:
    """Columns of one method."""
    federation, names, models = _checked_federation(remade, result), result.clients, result.models
    algorithm, last_round = remade.runs[result.name]["algorithm"], len(result.metrics["loss"]) - 1
    if split == "new":
        data = None if remade.newcomers is None else remade.newcomers.test
        remedy, names, models = "--new-clients 0.2", result.new_clients, models if data is None else result.new_models
    else:
        data = getattr(at(federation, last_round), split)
        remedy = "--partition.val-fraction 0.1"
    if data is None:
        raise ValueError(f"split={split!r}: {run.folder} has no such examples; run with {remedy}, for example")
    data = data.with_own_rows()
    client, position, outputs = _outputs(remade, result, models, data)
    y = np.asarray(data.pool.y)[np.asarray(data.index)[client, position]]
    label = tuple(y.reshape(len(y), -1).T)
    if run.classes:
        label = (np.array(run.classes)[y],)
    client_names = np.array(names) if names else np.arange(len(data.size))
    rows = np.asarray(data.index) if split == "new" else rows_before_changes(job, algorithm, split, last_round, data)
    first_columns = {"client": client_names[client], "example": rows[client, position]}
    return prediction_columns(run, remade, result, first_columns, label, outputs)


def _of_new(
    run: LoadedRun, remade: Remade, result: Result, new: NewExamples, client: str | None, held: list[Held]
) -> ColumnArrays:
    """Columns of one method; the model of ``client`` predicts all examples; None: those of the clients in the file."""
    federation, (run_clients, models) = _checked_federation(remade, result), held[0]
    clients = new.client if client is None else np.full(len(new.x), client)
    is_shared = _is_shared(models)
    known_names = [name for names, _ in held for name in names]
    if clients is not None:
        client_names, client_index = np.unique(clients, return_inverse=True)
        unknown_names = [name for name in client_names.tolist() if name not in known_names]
        if unknown_names and (client is not None or not is_shared):
            remedy = (
                there_are("clients", known_names, unknown_names[0])
                if result.clients
                else f"choose 0 to {len(run_clients) - 1}"
            )
            raise ValueError(f"there is no client {unknown_names[0]!r}; {remedy}; {_ways_of_others(run)}")
        # An unknown client uses the shared model.
        holders = [run_clients[0] if name in unknown_names else name for name in client_names.tolist()]
    elif is_shared:  # the examples may also be a new client's
        client_index, holders, clients = np.zeros(len(new.x), int), [run_clients[0]], np.full(len(new.x), "")
    else:
        column = f"a column {owner!r} in the file" if (owner := run.config.get("client_column")) else "client ids in it"
        choices = f"give --client NAME, or {column}; {_ways_of_others(run)}"
        raise ValueError(f"{result.name} has different models for its clients, and no client is given; {choices}")
    y = federation.train.pool.y
    pool = as_arrays(on_host(new.x, np.zeros((len(new.x), *y.shape[1:]), y.dtype)))
    data = client_data(pool, [np.flatnonzero(client_index == i) for i in range(len(holders))])
    holder, position, outputs = _outputs(remade, result, models_for(holders, held), data)
    file_order = np.argsort(np.asarray(data.index)[holder, position])  # as in the file
    columns = {"client": clients, "example": new.names}
    return prediction_columns(run, remade, result, columns, new.label, outputs[file_order])


def _is_shared(models: ModelTable) -> bool:
    """Whether all clients have the same model."""
    return tree.n_rows(models.params) == 1 or len(np.unique(models.row)) == 1


def _ways_of_others(run: LoadedRun) -> str:
    """How examples of a client that did not participate are predicted."""
    joins = "a client that was not in the run needs labelled examples, --join FILE"
    shared = [name for name in run if _is_shared(run[name].models)]
    return f"{joins}, or choose a method with one model for all, --method {shared[0]}" if shared else joins


def _checked_federation(remade: Remade, result: Result) -> Federation:
    """The federation of a method's run.

    Raises:
        ValueError: the run was on other examples, whose words and numbers may have another meaning.
    """
    federation = remade.runs[result.name]["federation"]
    identity, sums = standing_of(result.folder).identity or {}, sums_of_examples(federation)
    if any(identity.get(name, value) != value for name, value in sums.items()):
        raise ValueError(f"{result.folder} holds a run on other examples; restore the data of the run")
    return federation


def _outputs(
    remade: Remade, result: Result, models: ModelTable, data: ClientData
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(examples,) clients, (examples,) positions among the client's examples, and (examples, outputs) outputs, client
    after client."""
    predict = remade.runs[result.name]["algorithm"].predict
    outputs, size = np.asarray(predictions(predict, models, data)), np.asarray(data.size)
    client, position = np.nonzero(np.arange(data.index.shape[1]) < size[:, None])
    return client, position, outputs[client, position]
