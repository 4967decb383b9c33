"""A folder that was stopped: what is promised on the screen is what the next command does, and nothing is lost."""

import os
import re
import shlex
import shutil
import tomllib
from pathlib import Path

import jax
import numpy as np
import platformdirs
import pytest
import tomli_w

import fljax
from fljax.algorithms import ALGORITHMS
from fljax.catalogue.job import WORK
from fljax.cli import main
from fljax.cli.run import cache_compilations
from fljax.folder import surroundings, writer
from fljax.folder.checkpoint import read_rounds
from fljax.folder.writer import LOCK
from fljax.jobs import config, going_on
from fljax.jobs.job import read_job
from fljax.jobs.kinds import begun_by
from fljax.jobs.layers import MAY_CHANGE, STEPS, read_layers
from fljax.jobs.sweep import read_sweep
from fljax.numbers import LocalHyper, numbers_of
from fljax.rounds.named_samplings import uniform
from fljax.sealed import with_checksum
from tests.cli.conftest import leave_figures_empty

pytestmark = pytest.mark.xdist_group("small run")  # of the program of test_run.py

BEGUN = ("--algorithm", "fedprox", "--model", "logistic_regression", "--partition", "dirichlet")
BEGUN += ("--n-clients", "5", "--mu", "0.3")
SMALL = ("--algorithm", "fedavg", "--rounds", "2", "--partition.n-clients", "4", "--epochs", "1")
SMALL += ("--model", "logistic_regression")


def interrupted(*_, **__):
    raise KeyboardInterrupt


@pytest.fixture(scope="module")
def two_rounds(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("two_rounds") / "x"
    with pytest.MonkeyPatch.context() as patch:
        leave_figures_empty(patch)
        assert main(["run", *SMALL, "--folder", str(folder)]) == 0
    return folder


@pytest.fixture
def finished_run(fljax, two_rounds) -> None:
    """Where commands run, a folder "x" with a run of two rounds."""
    shutil.copytree(two_rounds, "x", copy_function=shutil.copy2)


def promised_command(out: str) -> list[str]:
    """The arguments of the command that resumes."""
    line = next(line for line in out.splitlines() if line.startswith("stopped; "))
    return shlex.split(line.removeprefix("stopped; resume with: fljax "))


def test_a_run_stopped_before_its_first_result_goes_on(fljax, monkeypatch):
    monkeypatch.setattr("fljax.cli.execute.train", interrupted)
    folder = "a long name with spaces " * 8
    status, out, _ = fljax("run", *BEGUN, "--rounds", "7", "--folder", folder)
    assert status == 130
    settings = Path(folder, "config.toml").read_text()

    command = promised_command(out)
    assert read_job(command[1:]).settings == read_job([*BEGUN, "--rounds", "7", "--folder", folder]).settings
    assert read_job([*command[1:], "--rounds", "9"]).settings[""]["model"] == "logistic_regression"
    assert fljax(*command)[0] == 130
    assert Path(folder, "config.toml").read_text() == settings
    assert fljax("plan", "--folder", folder, "--memory", "nan")[0] == 2

    # Without results a new start may still be another's.
    assert read_job([*command[1:], "--lr", "0.2"]).settings[""]["model"] == "mlp"


def test_what_is_left_of_a_file_that_was_being_written_is_no_result(tmp_path):
    tmp_path.joinpath("config.toml").write_text("rounds = 2\n")
    rounds = tmp_path / "fedavg" / "rounds"
    rounds.mkdir(parents=True)
    rounds.joinpath("00000000.npz.part").touch()
    assert begun_by(tmp_path) is None
    rounds.joinpath("00000000.npz").touch()
    assert begun_by(tmp_path) == "run"


def test_a_sweep_stopped_before_its_first_result_goes_on(fljax, monkeypatch):
    monkeypatch.setattr("fljax.cli.search.search", interrupted)
    options = ("--mu", "0.1", "1", "--seeds", "2", "--outer.epochs", "1", "2")
    status, out, _ = fljax("sweep", *BEGUN[:-2], *options, "--folder", "x")
    assert status == 130
    command = promised_command(out)
    assert command == ["sweep", "--folder", "x", "--resume"]
    sweep, expected = read_sweep(command[1:]), read_sweep([*BEGUN[:-2], *options])
    expected = expected._replace(job=expected.job.with_setting("folder", "x").with_setting("resume", True))
    assert sweep == expected
    assert read_sweep([*command[1:], "--seeds", "3"]).own.seeds == 3
    assert read_sweep(command[1:-1]).axes == expected.axes
    status, out, _ = fljax(*command)
    assert status == 130
    assert "2 points x 2 seeds of fedprox" in out


@pytest.mark.parametrize(
    ("results", "command", "given"),
    [
        ("fedavg/rounds", "run", ()),
        ("fedavg/rounds", "run", ("--rounds", "9", "--memory", "4")),
        ("seed_0/fedavg/rounds", "compare", ("--seeds", "3")),
        ("all/parts", "sweep", ("--resume",)),
    ],
)
def test_results_without_their_settings_are_not_gone_on_with_by_others(tmp_path, results, command, given):
    (tmp_path / results).mkdir(parents=True)
    given = ("--folder", str(tmp_path), *given)
    assert read_layers(given, command)  # nothing is there yet
    (tmp_path / results / "00000000.npz").touch()
    with pytest.raises(ValueError, match=r"config\.toml is missing; restore it from a copy"):
        read_layers(given, command)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_method_can_be_gone_on_with(tmp_path, name):
    first_job = read_job(["--algorithm", name, "--epochs", "1", "--folder", str(tmp_path)])
    config.write("run", config.as_toml(first_job), first_job, tmp_path, MAY_CHANGE)
    (tmp_path / name / "rounds").mkdir(parents=True)
    (tmp_path / name / "rounds" / "00000000.npz").touch()
    job = read_job(["--folder", str(tmp_path)])
    config.write("run", config.as_toml(job), job, tmp_path, MAY_CHANGE)  # raises where the settings seem to be others
    job = read_job(["--folder", str(tmp_path), "--epochs", "2"])
    with pytest.raises(ValueError, match=f"holds results with --{name.replace('_', '-')}.epochs 1, not 2"):
        config.write("run", config.as_toml(job), job, tmp_path, MAY_CHANGE)


def test_every_flipped_bit_of_a_folders_settings_is_noticed(tmp_path):
    first_job = read_job(["--algorithm", "fedavg", "--folder", str(tmp_path)])
    config.write("run", config.as_toml(first_job), first_job, tmp_path, MAY_CHANGE)
    (tmp_path / "fedavg" / "rounds").mkdir(parents=True)
    (tmp_path / "fedavg" / "rounds" / "00000000.npz").touch()
    file, content = tmp_path / "config.toml", (tmp_path / "config.toml").read_bytes()
    changed_contents = [content.replace(b"checksum", b"nothing")]  # a file of no checksum
    for position in np.random.default_rng(0).choice(8 * len(content), 200, replace=False).tolist():
        flipped = bytearray(content)
        flipped[position // 8] ^= 1 << position % 8
        changed_contents.append(flipped)
    for changed_content in changed_contents:
        file.write_bytes(changed_content)
        with pytest.raises(
            ValueError, match=r"config.toml has changed since it was written; restore it from a copy, or use"
        ):
            read_job(["--folder", str(tmp_path)])
    # What a person has changed is taken by its name, and sealed again.
    file.write_bytes(content.replace(b"rounds = 80", b"rounds = 82"))
    job = read_job(["--config", str(file), "--folder", str(tmp_path)])
    assert job.run.rounds == 82
    config.write("run", config.as_toml(job), job, tmp_path, MAY_CHANGE)
    assert read_job(["--folder", str(tmp_path)]).settings[""]["rounds"] == job.run.rounds


@pytest.mark.usefixtures("finished_run")
def test_what_is_refused_leaves_the_folder_as_it_is(fljax, refused):
    settings = Path("x/config.toml").read_bytes()
    assert "--rounds 1: x holds 2 rounds of fedavg; choose --rounds 2" in refused(
        "run", "--folder", "x", "--rounds", "1"
    )
    assert "holds results with --dropout None, not 0.5" in refused("run", "--folder", "x", "--dropout", "0.5")
    assert "--fedavg.momentum None, not 0.5" in refused("run", "--folder", "x", "--momentum", "0.5")
    assert Path("x/config.toml").read_bytes() == settings
    metrics = read_rounds(Path("x/fedavg"))
    assert fljax("run", "--folder", "x", "--at-once", "2")[0] == 0  # which changes no result
    for name, value in read_rounds(Path("x/fedavg")).items():
        np.testing.assert_array_equal(value, metrics[name])
    Path("x/fedavg/checkpoints").rename("elsewhere")  # as under a quota
    later_settings = Path("x/config.toml").read_bytes()
    for rounds in "13":
        message = refused("run", "--folder", "x", "--rounds", rounds)
        assert "holds 2 rounds, but x/fedavg/checkpoints, which identifies their run, is missing" in message
    assert Path("x/config.toml").read_bytes() == later_settings
    assert len(read_rounds(Path("x/fedavg"))["loss"]) == 2


@pytest.mark.slow
def test_a_sweep_that_is_refused_leaves_the_folder_as_it_is(fljax, refused, monkeypatch):
    assert fljax("sweep", *SMALL, "--rounds", "1", "--lr", "0.1", "0.2", "--folder", "x")[0] == 0
    settings = Path("x/config.toml").read_bytes()
    arguments = ("sweep", "--folder", "x", "--resume")
    assert "holds results with --rounds 1, not 2" in refused(*arguments, "--rounds", "2")
    assert "--outer.fedavg.epochs unset, not 1 2" in refused(*arguments, "--outer.epochs", "1", "2")
    assert "--halving None, not 2" in refused(*arguments, "--halving", "2")
    assert Path("x/config.toml").read_bytes() == settings
    assert tomllib.loads(settings.decode())["rounds"] == 1


def test_the_cache_of_the_environment_stands(monkeypatch):
    """What the environment says is in JAX's configuration when it starts."""
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = [getattr(jax.config, name) for name in names]
    try:
        jax.config.update(names[0], "/nowhere/mine")
        monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "/nowhere/mine")
        monkeypatch.delenv(names[1].upper(), raising=False)
        cache_compilations()
        assert [getattr(jax.config, name) for name in names] == ["/nowhere/mine", 0.0]
        monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
        cache_compilations()
        assert jax.config.jax_compilation_cache_dir == str(platformdirs.user_cache_path("fljax") / "compiled")
    finally:
        for name, value in zip(names, before, strict=True):
            jax.config.update(name, value)


def test_a_second_writer_is_told_who_holds_the_folder(refused):
    Path("x").mkdir()
    lock = writer._locked(Path("x"))  # not by `only_writer`, which lets its own process in again
    assert f"x is being written by process {os.getpid()} on " in refused("run", *SMALL, "--folder", "x")
    assert "x is being written by" in refused("sweep", "--lr", "0.1", "0.2", *SMALL, "--folder", "x")
    assert "x is being written by" in refused("compare", *SMALL, "--folder", "x")
    os.close(lock)
    assert [path.name for path in Path("x").iterdir()] == [LOCK]


@pytest.mark.usefixtures("finished_run")
def test_another_version_is_refused_unless_it_is_forced(fljax, refused, monkeypatch):
    versions = tomllib.loads(Path("x/config.toml").read_text())["versions"]
    monkeypatch.setattr(surroundings, "_version", lambda package: "0.0.1" if package == "jax" else versions[package])
    arguments = ("run", "--folder", "x", "--rounds", "3")
    assert f"made with jax '{versions['jax']}' (now '0.0.1')" in refused(*arguments)
    assert "history" not in tomllib.loads(Path("x/config.toml").read_text())
    assert fljax(*arguments, "--force-resume")[0] == 0
    stored = tomllib.loads(Path("x/config.toml").read_text())
    assert stored["versions"] == versions
    assert [entry["versions"]["jax"] for entry in stored["history"]] == ["0.0.1"]
    assert fljax(*arguments, "--force-resume")[0] == 0
    assert len(tomllib.loads(Path("x/config.toml").read_text())["history"]) == 1
    assert fljax("run", "--folder", "x")[0] == 0  # finished: only shown


@pytest.mark.usefixtures("finished_run")
def test_a_finished_folder_is_shown_from_a_read_only_disk(fljax, refused, monkeypatch):
    first_out = fljax("run", "--folder", "x")[1]
    files = {path: path.stat().st_mtime_ns for path in Path("x").rglob("*")}
    monkeypatch.setattr(writer, "_locked", lambda folder: None)  # what it says where nothing can be written
    status, out, err = fljax("run", "--folder", "x")
    assert (status, err) == (0, "")
    assert "x is not writable: its summary.csv and plots/ are unchanged" in out
    accuracies = [
        [line.split()[1:3] for line in text.splitlines() if line.startswith("fedavg ") and "\u2501" not in line]
        for text in (first_out, out)
    ]
    assert len(accuracies[0]) == 1
    assert accuracies[0] == accuracies[1]
    assert {path: path.stat().st_mtime_ns for path in Path("x").rglob("*")} == files
    assert "is not writable" in refused("run", "--folder", "x", "--rounds", "3")


@pytest.mark.slow
def test_every_method_is_checked_before_the_first_begins(refused):
    small = ("--model.hidden", "8", "--partition.n-clients", "4", "--epochs", "1")
    arguments = ("--algorithm", "fedavg", "fedtsdp", "--public-batch", "100000", *small)
    assert "choose public_batch at most" in refused("run", *arguments, "--folder", "x")
    assert "choose public_batch at most" in refused("plan", *arguments)
    assert "choose public_batch at most" in refused("compare", *arguments, "--folder", "x")
    outer = ("--algorithm", "fedtsdp", "--lr", "0.1", "0.2", "--outer.public-batch", "10", "100000", *small)
    assert "choose public_batch at most" in refused("sweep", *outer, "--folder", "x")
    assert not Path("x").exists()


@pytest.mark.parametrize("command", ["run", "compare"])
def test_numbers_that_do_not_fit_each_other_are_refused_before_a_folder_is_made(refused, command):
    small = ("--model", "logistic_regression", "--partition.n-clients", "4", "--epochs", "1", "--folder", "x")
    assert "alpha=0.001 is less than beta=1" in refused(
        command, "--algorithm", "clusterfl", "--clusterfl.beta", "1", *small
    )
    assert not Path("x").exists()


@pytest.mark.usefixtures("finished_run")
def test_a_method_is_added_and_none_is_lost(fljax, refused):
    before = Path("x/config.toml").read_bytes()
    assert (
        "--algorithm fedprox: x holds results of fedavg too; choose --algorithm fedavg fedprox or another --folder"
        in refused("run", "--folder", "x", "--algorithm", "fedprox", "--epochs", "1")
    )
    assert Path("x/config.toml").read_bytes() == before
    assert fljax("run", "--folder", "x", "--algorithm", "fedavg", "fedprox", "--fedprox.epochs", "1")[0] == 0
    assert tomllib.loads(Path("x/config.toml").read_text())["algorithm"] == ["fedavg", "fedprox"]
    for name in ("summary.csv", "clients.csv"):
        text = Path("x", name).read_text()
        assert "fedavg" in text
        assert "fedprox" in text
    # Whose results are not there yet may go.
    shutil.rmtree("x/fedprox")
    assert fljax("run", "--folder", "x", "--algorithm", "fedavg")[0] == 0


@pytest.mark.usefixtures("finished_run")
def test_a_further_method_begins_as_those_of_the_folder_were_told():
    stored = tomllib.loads(Path("x/config.toml").read_text())["fedavg"]
    assert stored["epochs"] == 1 != WORK["epochs"].default
    job = read_job(["--folder", "x", "--algorithm", "fedavg", "fedprox", "fedsgd"])
    for name in ("fedprox", "fedsgd"):
        assert {key: job.settings[name][key] for key in ("epochs", "lr")} == {"epochs": 1, "lr": stored["lr"]}
    with_epochs = read_job(["--folder", "x", "--algorithm", "fedavg", "fedprox", "--fedprox.epochs", "3"])
    assert with_epochs.settings["fedprox"]["epochs"] == 3
    assert tuple(numbers_of(LocalHyper)) == STEPS


def test_a_further_method_gets_no_momentum_that_one_of_the_folders_is_without(tmp_path):
    arguments = ["--algorithm", "fedavg", "fedprox", "--folder", str(tmp_path), "--momentum", "0.9"]
    further = ["--folder", str(tmp_path), "--algorithm", "fedavg", "fedprox", "ditto"]
    without = (("--fedavg.momentum", "None"), None), (("--fedprox.momentum", "None"), None)
    for words, momentum in (((), 0.9), *without):
        first_job = read_job([*arguments, *words])
        config.write("run", config.as_toml(first_job), first_job, tmp_path, MAY_CHANGE)
        assert read_job(further).settings["ditto"]["momentum"] == momentum


def test_every_further_method_takes_of_the_folders_numbers_those_that_it_has(tmp_path):
    given = {"momentum": 0.9, "lr": 0.2, "epochs": 3, "batch_size": 4}
    words = [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    begun = read_job(["--algorithm", "fedavg", "--folder", str(tmp_path), *words])
    config.write("run", config.as_toml(begun), begun, tmp_path, MAY_CHANGE)
    settings = read_job(["--folder", str(tmp_path), "--algorithm", *ALGORITHMS]).settings
    for method in ALGORITHMS:
        assert given.items() >= {name: settings[method][name] for name in given if name in settings[method]}.items()


def test_a_further_method_keeps_its_own_defaults_where_those_of_the_folder_have_the_usual_ones(tmp_path):
    begun = read_job(["--algorithm", "fedavg", "--folder", str(tmp_path)])
    config.write("run", config.as_toml(begun), begun, tmp_path, MAY_CHANGE)
    further = read_job(["--folder", str(tmp_path), "--algorithm", "fedavg", "fedtsdp", "fedsgd"]).settings
    alone = read_job(["--algorithm", "fedtsdp", "fedsgd"]).settings
    assert begun.settings["fedavg"]["momentum"] is None != alone["fedtsdp"]["momentum"]
    assert begun.settings["fedavg"]["epochs"] != alone["fedsgd"]["epochs"]
    assert {name: further[name] for name in ("fedtsdp", "fedsgd")} == {
        name: alone[name] for name in ("fedtsdp", "fedsgd")
    }


@pytest.mark.usefixtures("finished_run")
def test_another_run_is_refused_before_anything_is_written(refused):
    other = tomllib.loads(Path("x/config.toml").read_text()) | {"algorithm": ["fedprox"], "fedprox": {"epochs": 2}}
    del other["fedavg"]
    Path("x/config.toml").write_bytes(with_checksum(f"# a checksum\n{tomli_w.dumps(other)}"))
    content = Path("x/config.toml").read_bytes()
    arguments = ("run", "--folder", "x", "--algorithm", "fedavg", "--rounds", "3")
    assert "holds a run with --fedavg.epochs 1, not 2" in refused(*arguments)
    assert Path("x/config.toml").read_bytes() == content
    Path("x/config.toml").unlink()
    assert "x/config.toml is missing; restore it from a copy" in refused("run", "--folder", "x", "--rounds", "9")
    assert "x/config.toml is missing" in refused("plan", "--folder", "x")
    assert "holds a run with --fedavg.epochs 1, not 5" in refused("run", "--folder", "x", "--algorithm", "fedavg")
    assert not Path("x/config.toml").exists()


@pytest.mark.usefixtures("finished_run")
def test_other_versions_are_refused_before_anything_is_written(refused, monkeypatch):
    settings = Path("x/config.toml").read_bytes()
    versions = tomllib.loads(settings.decode())["versions"]
    monkeypatch.setattr(surroundings, "_version", lambda package: "0.0.1" if package == "jax" else versions[package])
    assert "made with jax" in refused("run", "--folder", "x", "--rounds", "3")
    assert Path("x/config.toml").read_bytes() == settings


def test_noise_that_is_found_for_the_rounds_is_no_other_runs(tmp_path):
    (tmp_path / "config.toml").write_text("rounds = 2\n")
    private = ["--algorithm", "fedavg+client_dp", "--target-epsilon", "8", "--rounds"]
    message = going_on.refused_rounds(read_job([*private, "3"]), "fedavg+client_dp", uniform(0.5), tmp_path)
    assert "holds a run of --rounds 2 with --target-epsilon 8" in str(message)
    assert going_on.refused_rounds(read_job([*private, "2"]), "fedavg+client_dp", uniform(0.5), tmp_path) is None
    not_private = read_job(["--algorithm", "fedavg", "--rounds", "3"])
    assert going_on.refused_rounds(not_private, "fedavg", uniform(0.5), tmp_path) is None


@pytest.mark.slow
def test_the_noise_that_a_target_asks_for_is_said_and_not_another_kept(tmp_path, capsys):
    """What a paper has to say; 1.0, the number's default, was in the folder's settings."""
    folder = tmp_path / "x"
    private = ["--algorithm", "fedavg+client_dp", "--target-epsilon", "8", "--delta", "0.001", "--model"]
    job = [*private, "logistic_regression", "--partition.n-clients", "4", "--rounds", "1", "--epochs", "1"]
    assert main(["run", *job, "--folder", str(folder)]) == 0
    (noise,) = re.findall(
        r"fedavg\+client_dp: --noise-multiplier (\S+) follows from --target-epsilon 8\n", capsys.readouterr().out
    )
    hyper = fljax.remake(folder).runs["fedavg+client_dp"]["hyper"]
    assert float(noise) == pytest.approx(float(hyper.noise_multiplier), rel=1e-5) != 1.0
    settings = tomllib.loads((folder / "config.toml").read_text())["fedavg+client_dp"]
    assert settings["target_epsilon"] == 8
    assert "noise_multiplier" not in settings
    assert main(["run", "--config", str(folder / "config.toml"), "--folder", str(tmp_path / "y")]) == 0
    assert main(["run", "--folder", str(folder)]) == 0
    assert capsys.readouterr().out.count(f"--noise-multiplier {noise} follows") == 2
