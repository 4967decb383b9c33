"""Trained models on disk: the deployed models of a run, and files for other programs, safetensors or flax bytes."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, cast
from urllib.parse import unquote

import jax
import jax.numpy as jnp
import numpy as np
from flax import serialization
from flax.traverse_util import unflatten_dict
from jax import Array

from fljax import tree
from fljax.argument_kinds import checked_kinds
from fljax.checks.arguments import check_count, fields_of, whole
from fljax.checks.network import check_subjects
from fljax.checks.state import check_state
from fljax.drift.stages import at
from fljax.files import as_path, read_arrays, restored, save_arrays
from fljax.numbers import check_numbers
from fljax.ranges import said
from fljax.run.one_round import as_traced, last_models
from fljax.types import Algorithm, Federation, Key, ModelTable, Params, State

FILE, OF_NEW = "models.npz", "new_models.npz"
_ROW, _ROUNDS = "row", "n_rounds"
_RESERVED = (_ROW, _ROUNDS, "file", "allow_pickle")
"""Names that no leaf of an .npz may have: the row numbers, the rounds, and the parameters of ``np.savez``."""
Format = Literal["safetensors", "flax"]


def deployed(
    algorithm: Algorithm, hyper: Any, state: State, federation: Federation, key: Key, n_rounds: int | None = None
) -> ModelTable:
    """The models with which clients were last tested, in a run that ended in ``state``.

    Args:
        algorithm: the run's method.
        hyper: its hyperparameters.
        state: the final state.
        federation: the run's federation.
        key: the run's key.
        n_rounds: the run's number of rounds, if the federation changes over the rounds; None: after its last change.

    Returns:
        The models, and the row number of each client; `client_model` returns one client's model.

    Raises:
        ValueError: as `fljax.simulate`, or ``state`` does not belong to such a run.
    """
    check_subjects(algorithm, federation, key)
    check_numbers(hyper)
    if n_rounds is not None:
        check_count("n_rounds", n_rounds)
    numbers = as_traced(hyper)
    last_stage = at(federation, np.iinfo(np.int32).max if n_rounds is None else n_rounds - 1)
    with fields_of(hyper, algorithm):
        check_state(algorithm, numbers, state, federation.train, key, same_clients=True)
        return last_models(algorithm.deploy, key, numbers, state, last_stage.train)


@checked_kinds
def client_model(models: ModelTable, client: int) -> Params:
    """The parameters of a client's model, as NumPy arrays.

    Raises:
        ValueError: ``models`` are no `ModelTable`, there is no such client, or it has no model.
    """
    n_clients = len(models.row)
    if not 0 <= whole("client", client) < n_clients:
        raise ValueError(f"client={client} does not exist; choose 0 to {n_clients - 1}")
    if not _has_model(models)[client]:
        raise ValueError(f"client={client} holds no model: its row is {models.row[client]}; choose another client")
    return jax.device_get(tree.row(models.params, jnp.asarray(models.row[client])))


def _has_model(models: ModelTable) -> np.ndarray:
    """(clients,) whether a client has a model: its row number is in the table, or the table has a single row."""
    n_rows, row = tree.n_rows(models.params), np.asarray(models.row)
    return (row >= 0) & (row < n_rows) | (n_rows == 1)


@checked_kinds
def save_models(path: str | Path, models: ModelTable, n_rounds: int | None = None) -> None:
    """Writes models as arrays ``layer/.../leaf`` (rows, ...) and ``row`` (clients,).

    Ambiguous characters of a name are percent-encoded, such as the slash of a layer ``b/c`` (``b%2Fc``).

    Args:
        path: of the file.
        models: the models and the clients' row numbers.
        n_rounds: the number of rounds of the run so far; None: not recorded.

    Raises:
        ValueError: ``models`` are no `ModelTable`, their parameters are not nested dicts of arrays, or ``n_rounds`` is
            not a number of rounds.
    """
    if n_rounds is not None:
        check_count("n_rounds", n_rounds)
    arrays = {_quoted(name): np.asarray(leaf) for name, leaf in tree.named_leaves(models.params).items()}
    rounds = {} if n_rounds is None else {_ROUNDS: np.asarray(n_rounds)}
    save_arrays(as_path("path", path), arrays | rounds | {_ROW: np.asarray(models.row)})


def read_models(path: str | Path, n_rounds: int | None = None) -> ModelTable:
    """Reads models written by `save_models`, as NumPy arrays.

    Args:
        path: of the file.
        n_rounds: the number of rounds of the run so far, for a check; None: not checked.

    Raises:
        ValueError: the file does not exist, is damaged, or was written after another number of rounds.
    """
    path = as_path("path", path)
    if not path.exists():
        raise ValueError(f"there is no file {path}; fljax run writes it, and after fljax.train call fljax.save_models")
    arrays, _ = read_arrays(path, "run again into another folder")
    if _ROW not in arrays:
        raise ValueError(f"{path} has no models: the array {_ROW!r} with the clients' row numbers is missing")
    row, written_after = arrays.pop(_ROW), arrays.pop(_ROUNDS, None)
    if written_after is not None and n_rounds is not None and int(written_after) != n_rounds:
        raise ValueError(
            f"{path} was written after {int(written_after)} rounds, but the run was interrupted after {n_rounds}; "
            "resume it first"
        )
    params = unflatten_dict({_unquoted(name): restored(leaf) for name, leaf in arrays.items()})
    return ModelTable(params, cast(Array, row))


def _quoted(name: tuple[str, ...]) -> str:
    joined = "/".join(part.replace("%", "%25").replace("/", "%2F") for part in name)
    if joined in _RESERVED or joined.endswith(".npy"):
        return f"{joined[:-1]}%{ord(joined[-1]):02X}"
    return joined


def _unquoted(name: str) -> tuple[str, ...]:
    return tuple(unquote(part) for part in name.split("/"))


@checked_kinds
def export_models(
    models: ModelTable,
    folder: str | Path,
    *,
    format: Format = "safetensors",
    each: Literal["client", "model"] = "client",
    names: Sequence[str] = (),
) -> list[Path]:
    """Writes trained models for other programs: one file per client, or one per model that some client has.

    A safetensors file has one tensor per leaf, named by its path with dots; running statistics are under
    ``batch_stats``. ``models.json`` maps clients to files, null for no model. To load a model elsewhere::

        from flax.traverse_util import unflatten_dict
        from safetensors.numpy import load_file
        params = unflatten_dict(load_file("models/client_3.safetensors"), sep=".")

    and for flax bytes ``flax.serialization.msgpack_restore(open(path, "rb").read())``. In an nnx module ::

        stored, held = load_file("models/client_3.safetensors"), nnx.to_flat_state(nnx.state(module))
        name = lambda path, v: ".".join(map(str, ("batch_stats", *path) if isinstance(v, nnx.BatchStat) else path))
        known = [(path, v.replace(stored[name(path, v)])) for path, v in held if name(path, v) in stored]
        nnx.update(module, nnx.from_flat_state(known))

    Args:
        models: from `deployed` or `fljax.load_run`.
        folder: created if it does not exist.
        format: "safetensors" (needs the package safetensors, in the extra 'export') or "flax" (msgpack).
        each: "client" or "model".
        names: the clients' names, for the file names; (): their numbers.

    Returns:
        The files that were written.

    Raises:
        ValueError: ``models`` are no `ModelTable`, ``format`` or ``each`` is unknown, a package is missing, ``names``
            has another length, or safetensors cannot name the parameters: they are not nested dicts, or two leaves have
            the same name.
    """
    if isinstance(names, str) or not np.iterable(names):
        raise ValueError(f"{said('names', names)} are not names; give one for each client, or ()")
    if names and len(names) != len(models.row):
        raise ValueError(f"{len(names)} names for {len(models.row)} clients; give one for each")
    if len(set(map(str, names))) < len(names):
        raise ValueError("two clients have the same name; give other names, or none")
    folder = as_path("folder", folder)
    table = ModelTable(jax.device_get(models.params), cast(Array, np.asarray(models.row)))
    folder.mkdir(parents=True, exist_ok=True)
    ending = ".safetensors" if format == "safetensors" else ".msgpack"
    paths = {}
    for client in np.flatnonzero(_has_model(models)).tolist():
        row = 0 if tree.n_rows(table.params) == 1 else int(table.row[client])
        stem = f"client_{_safe_name(names[client]) if names else client}" if each == "client" else f"model_{row}"
        paths[client] = folder / f"{stem}{ending}"
    if each == "client" and len(set(paths.values())) < len(paths):
        raise ValueError("two clients would have the same file name; give other names, or none")
    for path, client in {path: client for client, path in paths.items()}.items():
        _write(path, tree.row(table.params, table.row[client]), format)
    files = [paths[client].name if client in paths else None for client in range(len(table.row))]
    index = dict(zip(map(str, names or range(len(files))), files, strict=True))
    folder.joinpath("models.json").write_text(json.dumps(index, indent=1) + "\n")
    return list(dict.fromkeys(paths.values()))


def _write(path: Path, params: Params, format: Format) -> None:
    params = jax.tree.map(np.asarray, params)
    if format == "flax":
        path.write_bytes(serialization.msgpack_serialize(params))
        return
    try:
        from safetensors.numpy import save_file
    except ImportError:
        raise ValueError("format='safetensors' needs the package safetensors: pip install 'fljax[export]'") from None
    leaves = tree.named_leaves(params)
    flat = {".".join(name): np.ascontiguousarray(leaf) for name, leaf in leaves.items()}
    if len(flat) < len(leaves):
        raise ValueError("two leaves have the same dotted name; rename a layer, or choose format='flax'")
    save_file(flat, path)


def _safe_name(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in name)
