"""The layers of settings of a command line: the main job, a file's or a folder's own, and the arguments."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from fljax.catalogue.entries import entry
from fljax.catalogue.file_words import short_name
from fljax.catalogue.job import RUN, STEPS, WORK
from fljax.jobs.chains import spelled_out
from fljax.jobs.kinds import KINDS, RESULTS, begun_by, check_kind, check_made, made_by
from fljax.jobs.main_job import main_job, numbers_of_main_job, own_defaults
from fljax.jobs.settings import Layer, last, of_arguments, of_file
from fljax.sealed import check_text, naming

MAY_CHANGE = ("rounds", "patience", "algorithm", "data_folder", "new_client_rounds", "folder", "config", "force_resume")
"""Settings that may change when a results folder is resumed."""
MAY_BE_MORE = ("seeds", "baseline", "measure")
"""Further such settings of a comparison."""


def read_layers(arguments: Sequence[str], command: str, methods: Sequence[str] = ()) -> list[Layer]:
    """The layers of the main job, then of the TOML file (empty if there is none), and last of the arguments.

    ``methods`` replace the methods of the main job, for when nothing else names any; (): its own.

    Raises:
        ValueError: the folder holds results of another command than ``command``.
    """
    main, arguments_layer = main_job(), of_arguments(arguments)
    layers = [main, _file_layer(arguments_layer, main, command), arguments_layer]
    main += numbers_of_main_job(layers)
    if methods:
        main.append(("algorithm", list(methods)))
    return spelled_out([main, *own_defaults(layers), *layers[1:]])


def _file_layer(arguments: Layer, main: Layer, command: str) -> Layer:
    """The layer of the file of ``--config``; without it, of the folder's own file; [] if there is neither."""
    config, folder = (
        None if (words := last([arguments], name)) is None else RUN[name].read(name, words)
        for name in ("config", "folder")
    )
    begun = None if folder is None else begun_by(Path(folder))
    if folder is not None and begun is not None:
        check_kind(folder, f"the results of {KINDS[begun]}", begun, command)
    if config is not None:
        if Path(config).is_file() and (maker := made_by(Path(config))) in ("sweep", "compare"):
            check_made(config, maker, command)
        return of_file(Path(config))
    return [] if folder is None else _folder_layer(folder, begun, arguments, main, command)


def _folder_layer(folder: str, begun: str | None, arguments: Layer, main: Layer, command: str) -> Layer:
    """The layer of a folder's config.toml, if the folder has results, of the command ``begun``, or is resumed."""
    stored, given_names = Path(folder, "config.toml"), {name for name, _ in arguments}
    allowed_names = {*MAY_CHANGE, "memory", "resume", *(MAY_BE_MORE if any(Path(folder).glob("seed_*")) else ())}
    if given_names <= allowed_names - {"algorithm"}:
        _check_there(stored)
    # Any other setting means a new start in a folder without results.
    if not stored.exists() or (begun is None and not given_names <= allowed_names):
        return []
    remedy = f"restore it from a copy, or use it as it is with --config {stored}"
    check_text(stored, remedy, required=begun is not None)
    if begun is None and (maker := made_by(stored)) in ("sweep", "compare"):
        check_kind(folder, f"the settings of {KINDS[maker]}", maker, command)
    layer = of_file(stored)
    return [*layer, *as_the_others(layer, main, last([arguments], "algorithm") or ())]


def _check_there(file: Path) -> None:
    """Raises ValueError if a folder has results but no config.toml."""
    if not file.exists() and any(any(file.parent.glob(pattern)) for pattern in RESULTS.values()):
        raise ValueError(f"{file} is missing; restore it from a copy, or give all settings that it had")


def as_the_others(stored: Layer, main: Layer, methods: Sequence[str]) -> Layer:
    """The settings of further ``methods`` of a folder: the local work and `STEPS` on which its own methods agree."""
    stored_methods = last([stored], "algorithm") or []
    new_methods = [word for word in methods if short_name(word) not in map(short_name, stored_methods)]
    sections = [WORK | entry("algorithm", word).section for word in new_methods]
    layer: Layer = []
    for name in (*WORK, *STEPS) if new_methods else ():
        stored_words = [words for word in stored_methods if (words := _stored_words(stored, word, name)) is not None]
        default_words = last([main], name) or [str(WORK[name].default if name in WORK else None)]
        if stored_words and all(words == stored_words[0] != default_words for words in stored_words):
            pairs = zip(new_methods, sections, strict=True)
            layer += [(f"{short_name(word)}.{name}", stored_words[0]) for word, section in pairs if name in section]
    return layer


def _stored_words(stored: Layer, method: str, name: str) -> list[str] | None:
    """A method's hyperparameter in a folder's config.toml, which leaves out those of `STEPS` that are None."""
    words = last([stored], f"{short_name(method)}.{name}")
    left_out = words is None and name in STEPS[1:] and name in entry("algorithm", method).section
    return ["None"] if left_out else words


@contextlib.contextmanager
def naming_file(layers: Sequence[Layer], i: int) -> Iterator[None]:
    """Puts the file's name in front of an error of the block, if the layer ``i`` is that of the file."""
    with naming(file_of(layers)) if i % len(layers) == len(layers) - 2 else contextlib.nullcontext():
        yield


def file_of(layers: Sequence[Layer]) -> str:
    """The file of the settings of the last layer but one."""
    config, folder = (last(layers[-1:], name) for name in ("config", "folder"))
    return config[0] if config else str(Path(folder[0], "config.toml")) if folder else "the file"
