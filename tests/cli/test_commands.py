"""The commands around `run`: help, list, data, and starting fast."""

import inspect
import io
import json
import subprocess
import sys
import threading
from importlib import metadata
from pathlib import Path

import pytest

from fljax.algorithms import ALGORITHMS
from fljax.catalogue import entries
from fljax.catalogue.datasets import ABOUT
from fljax.catalogue.entries import names
from fljax.cli import main
from fljax.data.datasets import NAMES, available
from fljax.data.partition import PARTITIONS
from fljax.models import MODELS
from fljax.rounds.bricks import BRICKS
from fljax.rounds.named_samplings import SAMPLINGS
from fljax.run.compile_ahead import NAME as COMPILES_AHEAD

HEAVY = {
    "jax",
    "numpy",
    "scipy",
    "sklearn",
    "matplotlib",
    "rich",
    "tyro",
    "flax",
    "optax",
    "tensorflow_datasets",
    "PIL",
}


@pytest.mark.parametrize("arguments", [(), ("--help",), ("-h",)])
def test_usage(fljax, arguments):
    status, out, err = fljax(*arguments)
    assert (status, err) == (0, "")
    assert out.startswith("usage: fljax COMMAND")


def test_version(fljax):
    assert fljax("--version")[:2] == (0, f"fljax {metadata.version('fljax')}\n")


def test_an_error_beside_threads_that_compile_ends_with_its_own_status(monkeypatch):
    """The interpreter would abort at its end."""
    ended, goes_on, output = [], threading.Event(), io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    monkeypatch.setattr("os._exit", lambda status: ended.append((status, output.buffer.getvalue().decode())))
    monkeypatch.setattr("sys.argv", ["fljax", "nothing"])
    monkeypatch.setattr("sys.stderr", output)
    thread = threading.Thread(target=goes_on.wait, name=COMPILES_AHEAD)
    thread.start()
    assert main() == 2
    goes_on.set()
    thread.join()
    ((status, text),) = ended
    assert status == 2
    assert "no command 'nothing'" in text
    assert main() == 2  # as any program ends
    assert len(ended) == 1


@pytest.mark.slow
def test_a_process_beside_threads_that_compile_ends_with_its_own_status():
    """The interpreter would abort at its end."""
    program = (
        "import sys, threading, time, fljax.cli as cli, fljax.run.compile_ahead as ahead\n"
        "threading.Thread(target=time.sleep, args=(60,), name=ahead.NAME).start()\n"
        "sys.argv = ['fljax', 'nothing']; sys.exit(cli.main())"
    )
    process = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=50)
    assert process.returncode == 2
    assert "no command 'nothing'" in process.stderr


def test_module_is_the_command():
    command = [sys.executable, "-m", "fljax", "lst"]
    process = subprocess.run(command, check=False, capture_output=True, text=True)
    assert process.returncode == 2
    assert process.stderr == "fljax: no command 'lst'; the nearest is 'list'\n"
    assert process.stdout == ""


def forget():
    """The catalogue, in whatever folder, is read again."""
    for function in (entries.names, entries._of_fljax, entries._catalogue):
        function.cache_clear()


@pytest.fixture(scope="package")
def full_catalogue(cache) -> str:
    """A catalogue that has everything on disk."""
    forget()  # of another folder
    for words in ("list", "list fedcps", "run --help", "plan --algorithm fedavg+krum --help"):
        assert main(words.split()) == 0
    return cache


QUICK = {
    "--help": 0,
    "list": 0,
    "list fedcps": 0,
    "list --markdown": 0,
    "run --help": 0,
    "sweep --help": 0,
    "plan --algorithm fedavg+krum --help": 0,
    "data show --help": 0,
    "run --lr abc": 2,
    "run --mu -1 --algorithm fedprox": 2,
    "run --algorithm ifcaa": 2,
    "run --config nowhere.toml": 2,
}
"""Command lines that run nothing -> their status."""


def test_what_runs_nothing_starts_nothing(full_catalogue):
    """All in one process: what one of them imported, those after it would have too."""
    code = (
        "import sys, json, fljax.cli; "
        "told = [[fljax.cli.main(words.split()), sorted({name.partition('.')[0] for name in sys.modules})] "
        "for words in sys.argv[1:]]; print(); print(json.dumps(told))"
    )
    for _ in range(2):  # a source file may have been edited since the catalogue was made
        process = subprocess.run([sys.executable, "-c", code, *QUICK], check=True, capture_output=True, text=True)
        results = dict(zip(QUICK, json.loads(process.stdout.splitlines()[-1]), strict=True))
        if not any(HEAVY & set(modules) for _, modules in results.values()):
            break
    assert {words: status for words, (status, _) in results.items()} == QUICK
    assert not {words: sorted(HEAVY & set(modules)) for words, (_, modules) in results.items() if HEAVY & set(modules)}


def test_the_catalogue_is_read_again_when_it_is_damaged_or_old(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    forget()
    first = entries.entry("algorithm", "fedavg")
    entries.save()
    (path,) = tmp_path.rglob("catalogue-*.json")
    content = path.read_bytes()
    for damaged in (
        b"",
        content[:-1],
        content[:40] + bytes([content[40] ^ 1]) + content[41:],
        b"[" * 9,
        b"00000000" + content[8:],
    ):
        path.write_bytes(damaged)
        forget()
        assert list(entries._catalogue(path)) == ["stamp"]
        assert entries.entry("algorithm", "fedavg") == first
    path.write_bytes(content)
    forget()
    assert "algorithm fedavg" in entries._catalogue(path)
    monkeypatch.setattr(entries, "_stamp", lambda: "another")
    forget()
    assert list(entries._catalogue(path)) == ["stamp"]
    path.parent.rename(tmp_path / "gone")
    path.parent.write_text("no folder")
    entries.entry("algorithm", "fedavg")
    entries.save()  # cannot be kept: nobody's business
    forget()


@pytest.mark.parametrize("name", ["fedavg", "fedprox+adam", "fedper"])
def test_what_is_read_from_disk_is_what_the_library_says(name, full_catalogue):
    entries.entry("algorithm", name)
    entries.save()
    forget()
    from fljax.algorithms import compose

    assert entries.entry("algorithm", name) == entries.describe("algorithm", compose(name))


def test_list_has_everything(fljax):
    status, out, _ = fljax("list")
    assert status == 0
    for name in (*ALGORITHMS, *BRICKS, *PARTITIONS, *MODELS, *SAMPLINGS):
        assert f"\n  {name} " in out
    assert all(name in out for name, _ in available())
    assert "mu=0.1" in out
    assert "flatten - [hidden - ReLU]*" in out
    order = [out.index(f"\n {kind}\n") for kind in ("baseline", "one model", "personalised", "clustered")]
    assert order == sorted(order)


def test_list_one_kind_or_one_thing(fljax, refused):
    assert "ifca" not in fljax("list", "partitions")[1]
    assert "--ifca.lr FLOAT" in fljax("list", "ifca")[1]
    assert "--partition.beta" in fljax("list", "dirichlet")[1]
    assert "--model.hidden" in fljax("list", "mlp")[1]
    assert "--sampling.ids INT ..." in fljax("list", "fixed")[1]
    assert "--n-attackers FLOAT" in fljax("list", "krum")[1]
    texts = {word: fljax("list", word)[1] for word in ("fedavg", "fedavg+krum", "ifca", "cfl", "fedmd")}
    bricks = {word: set(text.partition("bricks that fit: ")[2].splitlines()[0].split()) for word, text in texts.items()}
    assert {"prox", "top_k", "median", "client_dp", "secure_sum"} <= bricks["fedavg"]
    assert "median" not in bricks["fedavg+krum"]  # it would replace krum
    assert {"dp_sgd", "secure_sum"} <= bricks["ifca"] - {"client_dp"} == bricks["ifca"]
    assert not {"client_dp", "secure_sum"} & bricks["cfl"]
    different = "clients can have different networks: --model heterogeneous\n"
    assert [word for word, text in texts.items() if different in text] == ["fedmd"]
    assert "defaults in fljax run that differ from those below: n-clusters=4 lr=0.1\n" in texts["ifca"]
    assert fljax("list", "--help")[1].startswith("usage: fljax list")
    assert fljax("list", "--markdown")[1].startswith("| `--algorithm` |")
    assert "the nearest is 'fesem'" in refused("list", "fesm")


@pytest.mark.parametrize("name", NAMES)
def test_list_one_data_set(fljax, name):
    """What it is, and where it is or how to get it."""
    status, out, err = fljax("list", name)
    assert (status, err) == (0, "")
    assert out.startswith(f"{name}: {ABOUT[name]}\n  --dataset {name} ")
    assert dict(available())[name].split()[-1] in out


@pytest.mark.parametrize("name", ALGORITHMS)
def test_methods_have_a_summary_and_a_paper(name):
    method = ALGORITHMS[name]
    assert method.title
    assert method.summary
    assert method.paper
    assert method.link in (inspect.getmodule(method.factory).__doc__ or "")


def test_data_list(fljax, refused):
    assert fljax("data")[1] == fljax("data", "list")[1]
    assert "inside scikit-learn" in fljax("data", "list")[1]
    assert fljax("data", "--help")[1].startswith("usage: fljax data")
    assert "takes no settings" in refused("data", "list", "digits")


def test_data_show_draws(fljax, drawn):
    status, out, _ = fljax(
        "data", "show", "--partition", "dirichlet", "--beta", "0.3", "--n-clients", "5", "--file", "p.png"
    )
    assert status == 0
    assert out.startswith("5 clients, ")
    assert Path("p.png").read_bytes().startswith(b"\x89PNG")
    assert "--partition.n-groups" in fljax("data", "show", "--help")[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("shw",), "the nearest is 'show'"),
        (("show", "--lr", "1"), "no setting --lr"),
        (("show", "--partition", "iidd"), "the nearest is 'iid'"),
        (("show", "--n-clients", "0"), "n_clients=0"),
        (("show", "--n-clients", "99999999999"), "--n-clients 99999999999: choose at most"),
        (("show", "--seed", "-1"), "seed=-1 is negative"),
        (("show", "--file", ""), "--file '': give text"),
        (("show", "--data-folder", "a\0b"), "--data-folder 'a\\x00b': give text or None"),
        (("prepare",), "name a data set"),
        (("prepare", "digits"), "cannot be prepared"),
        (("prepare", "mnis"), "'mnist'"),
        (("prepare", "mnist", "--to", "x"), "takes --folder only"),
    ],
)
def test_data_refuses_in_one_line(refused, arguments, message):
    assert message in refused("data", *arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "--data", ""), "--data '': give text or None"),
        (("run", "--data-folder", ""), "--data-folder '': give text or None"),
        (("run", "--clock", "wait", "--clock.devices", ""), "--clock.devices '': give"),
        (("show", ""), "name a folder: fljax show FOLDER"),
        (("show", "results", ""), "name a folder: fljax show FOLDER"),
        (("show", "results", "--out", ""), "--out '': fljax show takes --measure, "),
        (("predict", "results", "--join", ""), "--join '': fljax predict takes --method, "),
    ],
)
def test_an_empty_word_is_not_the_folder_where_the_command_runs(refused, arguments, message):
    assert message in refused(*arguments)


def test_a_data_set_that_is_not_there_is_said_with_how_to_get_it(refused):
    for command in ("run", "plan", "compare"):
        message = refused(command, "--dataset", "cifar10", "--data-folder", "x")
        assert "/x; get it by: fljax data prepare cifar10" in message


def test_preparing_asks_for_tensorflow(refused, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "pip install 'fljax[prepare]'" in refused("data", "prepare", "mnist", "--folder", "x")


def test_a_path_of_thousands_of_letters_is_cut(refused):
    assert len(refused("show", "x" * 5000)) < 400


def test_no_two_things_have_one_name():
    """`fljax list NAME` shows one of them."""
    kinds = ("algorithm", "model", "partition", "sampling", "attack", "drift", "clock", "brick")
    all_names = [name for kind in kinds for name in names(kind) if name != "none"]
    assert sorted(set(all_names)) == sorted(all_names)
