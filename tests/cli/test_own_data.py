"""`--data mine.csv --client-column hospital --label-column sick`: one's own data on the command line."""

import csv
import gzip
import re
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax
from fljax.cli import main
from fljax.cli.compare import OWN
from fljax.data import scale
from fljax.data.padding import same_shapes
from fljax.data.scale import ScaleWarning
from fljax.jobs.job import read_job
from fljax.jobs.own_data import client_names, moments
from fljax.jobs.parts import make_federation, make_model, make_parts
from fljax.jobs.remarks import many_classes
from fljax.jobs.seeds import Seed, plans, scaling_of, together
from fljax.run.seeds import advance_all, begin_all
from fljax.run.together import as_program

FEW = ("--rounds", "2", "--epochs", "1", "--model", "logistic_regression", "--algorithm", "fedavg")


@pytest.fixture
def table(tmp_path):
    """A CSV of 6 hospitals with 20 patients each; the label follows from the age, which is not scaled."""
    rng = np.random.default_rng(0)
    with (tmp_path / "mine.csv").open("w") as file:
        file.write("hospital,age,noise,sick,cost\n")
        for i in range(120):
            age = rng.uniform(20, 90)
            file.write(f"h{i % 6},{age:.1f},{rng.normal():.3f},{'yes' if age > 55 else 'no'},{3 * age + 7:.2f}\n")
    return tmp_path / "mine.csv"


def arguments(table, *options):
    return ["--data", str(table), "--client-column", "hospital", *options]


def test_a_table_is_run_with_its_own_clients(table, tmp_path, capsys):
    options = arguments(table, "--label-column", "sick", "--feature-column", "age", "noise", "--lr", "0.5", *FEW)
    assert main(["run", *options, "--rounds", "5", "--folder", str(tmp_path / "out")]) == 0
    assert "mine.csv, natural: 6 clients, 16 training examples each" in capsys.readouterr().out
    with (tmp_path / "out" / "summary.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert float(row["accuracy_macro"]) > 0.85  # raw ages would not be learnt in 5 rounds
    with (tmp_path / "out" / "clients.csv").open() as file:
        clients = list(csv.DictReader(file))
    assert [client["client"] for client in clients] == [f"h{i}" for i in range(6)]
    assert np.mean([float(client["fedavg client_accuracy"]) for client in clients]) == pytest.approx(
        float(row["accuracy_macro"])
    )


@pytest.mark.slow
def test_categories_of_a_table_are_features_whose_names_are_kept(table, tmp_path, capsys):
    options = arguments(table, "--label-column", "cost", "--feature-column", "sick", "age", *FEW, "--rounds", "1")
    assert main(["run", *options, "--folder", str(tmp_path / "no")]) == 2
    assert "'sick' is 'no'" in (message := capsys.readouterr().err.replace("yes", "no"))
    assert "--category-column" in message
    options = arguments(table, "--label-column", "cost", "--ignored-column", "noise", *FEW, "--rounds", "1")
    assert main(["run", *options, "--category-column", "sick", "--folder", str(tmp_path / "out")]) == 0
    run = fljax.load_run(tmp_path / "out")
    assert run.inputs == ("age", "sick=no", "sick=yes")
    assert run.scales["inputs"]["mean"].shape == (3,)
    assert main(["run", "--folder", str(tmp_path / "out"), "--rounds", "2"]) == 0  # its categories are kept


@pytest.mark.parametrize(
    "options", [("--new-clients", "0.4"), ("--n-clients", "3"), ("--n-clients", "4", "--new-clients", "0.5")]
)
def test_names_are_those_of_the_clients_that_train(tmp_path, options):
    """Hospitals are told apart by their numbers of patients."""
    with (tmp_path / "sizes.csv").open("w") as file:
        file.write("hospital,age,sick\n")
        file.writelines(f"h{i},{j},{j % 2}\n" for i in range(6) for j in range(10 * (i + 1)))
    job = read_job(arguments(tmp_path / "sizes.csv", "--label-column", "sick", *options, *FEW))
    federation, newcomers = make_parts(job)
    splits = [split for split in (federation.train, federation.val, federation.test) if split is not None]
    sizes = sum(np.asarray(split.size) for split in splits)
    assert client_names(job).training == tuple(f"h{size // 10 - 1}" for size in sizes)
    assert len(sizes) < 6
    assert (newcomers is None) == ("--new-clients" not in options)
    if newcomers is not None:
        sizes = sum(np.asarray(split.size) for split in newcomers if split is not None and hasattr(split, "size"))
        assert client_names(job).new == tuple(f"h{size // 10 - 1}" for size in sizes)


@pytest.mark.slow
def test_a_comparison_scales_each_seed_by_its_own_training_examples(table, tmp_path, programs_of_seeds):
    options = arguments(table, "--label-column", "sick", "--feature-column", "age", "noise", "--lr", "0.5", *FEW)
    programs_of_seeds.clear()
    assert main(["compare", *options, "--seeds", "2", "--folder", str(tmp_path / "both")]) == 0
    assert len(programs_of_seeds) == 1  # for both seeds
    assert main(["run", *options, "--seed", "1", "--folder", str(tmp_path / "one")]) == 0
    runs = [fljax.load_run(path) for path in (tmp_path / "both/seed_0", tmp_path / "both/seed_1", tmp_path / "one")]
    for name in ("accuracy_macro", "client_loss", "loss"):
        np.testing.assert_allclose(runs[1]["fedavg"].metrics[name], runs[2]["fedavg"].metrics[name], rtol=1e-5)
    mean_of_seed_0, mean_of_seed_1, mean = (run.scales["inputs"]["mean"] for run in runs)
    np.testing.assert_array_equal(mean_of_seed_1, mean)
    assert mean_of_seed_0[0] != mean[0]  # the premise: another split has another mean age
    federation, _ = make_parts(read_job([*options, "--seed", "1"]))
    (layer,) = runs[2]["fedavg"].client_model("h3").values()
    x, y = (np.asarray(array)[federation.test.index[3, : federation.test.size[3]]] for array in federation.test.pool)
    logits = (x - mean) / runs[2].scales["inputs"]["deviation"] @ layer["kernel"] + layer["bias"]  # taken elsewhere
    assert (logits.argmax(axis=1) == y).mean() == pytest.approx(runs[2]["fedavg"].metrics["client_accuracy"][-1, 3])


@pytest.mark.slow
def test_a_comparison_of_regressions_scales_targets_by_seed(table, tmp_path, programs_of_seeds):
    options = arguments(table, "--label-column", "cost", "--feature-column", "age", "noise", "--lr", "0.1", *FEW)
    options += ["--algorithm", "fedavg_ft"]  # whose clients' models are made after the last round
    programs_of_seeds.clear()
    assert main(["compare", *options, "--seeds", "2", "--folder", str(tmp_path / "both")]) == 0
    assert len(programs_of_seeds) == 1
    assert main(["run", *options, "--seed", "1", "--folder", str(tmp_path / "one")]) == 0
    seed_0, seed_1, run_alone = (
        fljax.load_run(path) for path in (tmp_path / "both/seed_0", tmp_path / "both/seed_1", tmp_path / "one")
    )
    for kind in ("inputs", "targets"):
        for number in ("mean", "deviation"):
            np.testing.assert_array_equal(seed_1.scales[kind][number], run_alone.scales[kind][number])
            assert not np.array_equal(seed_1.scales[kind][number], seed_0.scales[kind][number])  # the premise
    for name in ("r2_macro", "client_loss", "loss"):
        compared_values, run_values = (run["fedavg_ft"].metrics[name] for run in (seed_1, run_alone))
        np.testing.assert_allclose(compared_values, run_values, rtol=1e-5)
    assert seed_1["fedavg_ft"].metrics["r2_macro"][-1] > 0.5
    models = (run["fedavg_ft"].models for run in (seed_1, run_alone))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), *models)


OTHERS = ("fedbn", "fedcr", "fedmd", "fedsr", "fedsr_ft", "fedtsdp", "flis")
"""Methods for networks with normalisation or a Gaussian body, or that need public data."""


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in fljax.ALGORITHMS if name not in OTHERS])
def test_every_method_takes_the_scales_of_each_seed(table, name, tmp_path):
    """Traced, not compiled: the scales are the program's inputs, and no method wants to know them when it is made."""
    options = arguments(table, "--label-column", "sick", "--feature-column", "age", "noise", "--model", "mlp")
    job = read_job([*options, "--algorithm", name, "--rounds", "2", "--hidden", "6", "5"], OWN)
    jobs = [job.with_setting("seed", seed) for seed in range(2)]
    federations = same_shapes([make_federation(parts) for parts in jobs])
    seeds = [Seed(*parts, tmp_path) for parts in zip(jobs, federations, strict=True)]
    ((section, plan),) = plans(seeds[0])[0].items()
    runs = together(section, plan, seeds, [scaling_of(seed) for seed in seeds])
    assert runs.varied is not None
    setting, inputs, _ = as_program(runs, None)
    assert inputs.numbers["inputs"].shape == (2, 2, 2)  # seeds, mean and deviation, features
    states = jax.eval_shape(begin_all, setting, inputs)
    _, metrics = jax.eval_shape(advance_all, setting, inputs, states, jnp.int32(0), jnp.int32(1))
    assert metrics["accuracy_macro"].shape[1:] == (2,)


def test_a_column_of_numbers_is_regressed_on(table):
    job = read_job(arguments(table, "--label-column", "cost", "--feature-column", "age", "noise", *FEW))
    federation, _ = make_parts(job)
    model = make_model(job, federation)
    assert dict(model.about)["task"] == "regression"
    assert dict(model.about)["target_mean"][0] == pytest.approx(np.asarray(federation.train.pool.y).mean(), rel=0.1)


def with_signs(table):
    """The table with two columns of 0 and 1 in place of words: is the age above 55, is it above 70?"""
    header, *rows = table.read_text().splitlines()
    ages = [float(row.split(",")[1]) for row in rows]
    signs = [f"{row},{int(age > 55)},{int(age > 70)}" for row, age in zip(rows, ages, strict=True)]
    table.write_text("\n".join([f"{header},old,very_old", *signs]) + "\n")
    return arguments(table, "--label-column", "old", "very_old", "--feature-column", "age", "noise", *FEW)


def test_several_columns_of_0_and_1_are_labels_side_by_side(table):
    job = read_job([*with_signs(table), "--task", "labels"])
    federation, _ = make_parts(job)
    model = make_model(job, federation)
    assert federation.train.pool.y.shape == (120, 2)
    assert dict(model.about)["task"] == "labels"
    assert model.apply(model.init(jax.random.key(0)), jnp.ones((3, 2)), None)[0].shape == (3, 2)


@pytest.mark.slow
def test_several_labels_with_a_target_epsilon_are_planned(table, capsys):
    words = ["plan", *with_signs(table), "--task", "labels", "--algorithm", "fedavg+client_dp"]
    words += ["--target-epsilon", "8", "--delta", "0.01", "--at-once", "1", "--compile", "fast"]
    assert main(words) == 0
    assert "fedavg+client_dp" in capsys.readouterr().out


@pytest.mark.slow
def test_several_labels_are_learnt_from_a_table(table, tmp_path):
    options = [*with_signs(table), "--task", "labels", "--lr", "0.5", "--epochs", "5", "--rounds", "10"]
    assert main(["run", *options, "--folder", str(tmp_path / "out")]) == 0
    run = fljax.load_run(tmp_path / "out")["fedavg"]
    assert run.metrics["accuracy_macro"][-1] > 0.9  # the mean over the two labels
    federation, _ = make_parts(read_job(options))
    assert run.metrics["client_accuracy"].shape == (10, len(federation.train.size))


def test_settings_of_the_partition_hold_for_the_tables_clients(table):
    options = ("--label-column", "sick", "--feature-column", "age", "--partition.val-fraction", "0.2")
    federation, _ = make_parts(read_job(arguments(table, *options, "--partition.n-clients", "4")))
    assert federation.train.size.tolist() == [12] * 4
    assert federation.val is not None
    words = ["--data", str(table), "--label-column", "sick", "--feature-column", "age", "--partition", "dirichlet"]
    federation, _ = make_parts(read_job([*words, "--partition.n-clients", "3", "--seed", "1"]))
    assert federation.train.size.shape == (3,)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--label-column", "ill"), "there is no column 'ill'; the columns are hospital, age"),
        ((), "name the column of the labels: --label-column or Columns(label=...)"),
        ((), "the columns are hospital, age"),
        (("--label-column", "sick", "--split-column", "noise"), "), column 'noise' is "),
        (
            ("--label-column", "sick", "--category-column", "sick"),
            "the label 'sick' is not a feature, its words are classes",
        ),
        (
            ("--label-column", "sick", "--feature-column", "age", "--task", "regression"),
            "names can only be classes: --task",
        ),
        (("--label-column", "sick", "--feature-column", "age", "--model", "lstm"), "--model lstm: the network takes"),
        (("--label-column", "sick", "--partition", "iid"), "--client-column names the clients already"),
        (("--label-column", "sick", "--client-column", "None", "--feature-column", "age"), "does not name the clients"),
        (("--label-column", "sick", "--partition.min-size", "99"), "the largest has 20"),
        (("--label-column", "sick"), "line 2 (client 'h0'), column 'cost'"),
        (("--dataset", "mine.npz", "--data", "None"), "for your own data write --data mine.npz"),
        (("--dataset", "MINE.csv.GZ", "--data", "None"), "for your own data write --data MINE.csv.GZ"),
    ],
)
def test_what_is_wrong_is_one_line(table, capsys, options, message):
    if message.startswith("line 2"):
        table.write_text(table.read_text().replace(table.read_text().split("\n")[1].split(",")[4], "dear"))
    assert main(["run", *arguments(table, *options)]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("ending", ["csv", "npz"])
@pytest.mark.parametrize(
    ("labels", "classes", "encoded"),
    [
        ([0, 1, 2, 1], (), [0, 1, 2, 1]),
        ([0, 1, 4, 1], (), [0, 1, 4, 1]),  # 2 and 3 are missing
        ([1, 2, 3, 1], ("1", "2", "3"), [0, 1, 2, 0]),
        ([0, 100, 20, 0], ("0", "20", "100"), [0, 2, 1, 0]),
        ([1, -1, 1, 1], ("-1", "1"), [1, 0, 1, 1]),
    ],
)
def test_whole_numbers_that_do_not_count_from_0_are_names_of_classes(tmp_path, ending, labels, classes, encoded):
    """In a table and in arrays alike."""
    path, columns = tmp_path / f"mine.{ending}", fljax.Columns("y", "client")
    x, client = np.arange(12, dtype=np.float32), np.arange(12) % 2
    if ending == "npz":
        np.savez(path, x=x[:, None], y=np.array(labels * 3), client=client)
    else:
        rows = "".join(f"{a},{y},{owner}\n" for a, y, owner in zip(x, labels * 3, client, strict=True))
        path.write_text(f"a,y,client\n{rows}")
    data = fljax.read_own(path, columns)
    assert data.classes == classes
    assert np.asarray(data.examples.y)[:4].tolist() == encoded
    targets = fljax.read_own(path, columns, "regression")
    assert (targets.classes, np.asarray(targets.examples.y)[:4].tolist()) == ((), labels)


@pytest.mark.parametrize("name", ["clients.csv", "config.toml"])
def test_results_take_the_place_of_no_file_of_ones_own(table, refused, name):
    folder = table.parent / "own"
    folder.mkdir()
    table.rename(folder / name)
    content = (folder / name).read_bytes()
    (table.parent / "x.csv").write_bytes(content)
    options = arguments(table.parent / "x.csv", "--label-column", "sick", "--feature-column", "age", *FEW)
    for command in ("run", "compare"):
        assert f"own has a {name} of its own, which results would replace" in refused(
            command, *options, "--folder", str(folder)
        )
    assert {path.name for path in folder.iterdir()} <= {name, ".lock"}
    assert (folder / name).read_bytes() == content


@pytest.mark.parametrize("separator", [";", "\t", "|"])
def test_a_table_is_separated_by_what_its_first_line_has(table, separator):
    """A comma that it has is what separates it; a value may hold any of the others."""
    options = ("--label-column", "sick", "--feature-column", "age")
    expected, _ = make_parts(read_job(arguments(table, *options)))
    text = table.read_text()
    table.write_text(text.replace(",", separator))
    federation, _ = make_parts(read_job(arguments(table, *options)))
    np.testing.assert_array_equal(federation.train.pool.x, expected.train.pool.x)
    table.write_text(text.replace("h0", f'"h{separator}0"').replace("noise", f'"noise{separator}"', 1))
    assert make_parts(read_job(arguments(table, *options)))[0].train.size.tolist() == expected.train.size.tolist()


def test_a_packed_table_is_run_as_the_table_is(table):
    """With the same defaults, such as inputs that are scaled."""
    options = ("--label-column", "sick", "--feature-column", "age")
    plain = read_job(arguments(table, *options))
    packed = table.with_name("MINE.CSV.gz")
    packed.write_bytes(gzip.compress(table.read_bytes()))
    job = read_job(arguments(packed, *options))
    assert job.run == plain.run._replace(data=str(packed))
    (federation, _), (expected, _) = make_parts(job), make_parts(plain)
    np.testing.assert_array_equal(federation.train.pool.x, expected.train.pool.x)


@pytest.mark.parametrize(
    ("labels", "task", "message"),
    [
        (["yes"] * 6, "auto", "column 'y' has one label only, 'yes'; give examples of two classes or more"),
        ([3] * 6, "auto", "column 'y' has one label only, '3'"),
        ([0.5, 1.25, 2.5, 3.5, 4.5, 5.5], "classification", "has 6 different numbers in 6 rows; say task 'regression'"),
    ],
)
def test_labels_that_nothing_can_be_learnt_of_are_refused(tmp_path, labels, task, message):
    (tmp_path / "d.csv").write_text("x,y\n" + "".join(f"{i},{label}\n" for i, label in enumerate(labels)))
    with pytest.raises(ValueError, match=re.escape(message)):
        fljax.read_own(tmp_path / "d.csv", fljax.Columns("y"), task)


@pytest.mark.slow
def test_a_setting_of_several_words_that_stands_twice_is_said(fljax):
    options = ("--algorithm", "fedavg", "--rounds", "1", "--partition", "iid", "--n-clients", "3", "--epochs", "1")
    repeated = ("--score", "brier", "--score", "top3", "--lr", "1", "--lr", "0.1")
    _, out, err = fljax("run", *options, *repeated, "--folder", "x")
    assert err == "fljax: not used: --score brier (--score is given again); give all words at once\n"
    assert "top3" in out


def test_pixels_that_are_not_scaled_are_a_warning_unless_the_network_scales_them(tmp_path, monkeypatch):
    x = np.random.default_rng(0).integers(256, size=(40, 3, 3, 1)).astype(np.float32)
    np.savez(tmp_path / "a.npz", x=x, y=np.arange(40) % 2, client_ids=np.arange(40) % 4)
    options = ["--data", str(tmp_path / "a.npz"), *FEW]
    for more_options in ((), ("--normalize", "centred"), ("--partition", "iid", "--partition.n-clients", "4")):
        with pytest.warns(ScaleWarning, match="is not scaled.*--normalize standard"):
            make_parts(read_job([*options, *more_options]))
    make_parts(read_job([*options, "--normalize", "standard"]))  # a warning would be an error
    warning_texts = []

    def format_warnings(arguments):
        for file in (scale.__file__, "/other/file.py"):
            warning_texts.append(warnings.formatwarning(UserWarning("x goes"), UserWarning, file, 3))

    monkeypatch.setattr("fljax.cli.command", lambda name: format_warnings)
    main(["run"])
    assert warning_texts == ["fljax: x goes\n", "/other/file.py:3: UserWarning: x goes\n"]
    assert warnings.formatwarning(UserWarning("x"), UserWarning, scale.__file__, 3) != "fljax: x\n"  # outside it


def test_whole_numbers_reach_a_network_as_they_are_or_normalized(tmp_path):
    """A network of one's own: as tokens for an embedding, and as what a normalised image is for a convolution."""
    (tmp_path / "net.py").write_text(
        "from flax import linen as nn\n\n\nclass Words(nn.Module):\n    n_classes: int\n\n    @nn.compact\n"
        "    def __call__(self, x):\n        return nn.Dense(self.n_classes)(nn.Embed(9, 4)(x).mean(axis=1))\n\n\n"
        "class Image(nn.Module):\n    n_classes: int\n\n    @nn.compact\n    def __call__(self, x):\n"
        "        return nn.Dense(self.n_classes)(nn.Conv(2, (2, 2))(x).reshape(x.shape[0], -1))\n"
    )
    x = np.random.default_rng(0).integers(9, size=(40, 4))
    for name, examples in (("words", x), ("image", 30 * x.reshape(40, 2, 2, 1)), ("uint8", x.astype(np.uint8))):
        np.savez(tmp_path / f"{name}.npz", x=examples, y=np.arange(40) % 2, client_ids=np.arange(40) % 4)

    def model_of(data, net, *options):
        all_options = ["--data", str(tmp_path / f"{data}.npz"), "--model", f"{tmp_path}/net.py:{net}", *options]
        job = read_job([*all_options, "--algorithm", "fedavg"])
        return make_model(job, make_parts(job)[0])

    assert dict(model_of("words", "Words").about)["input_dtype"] == "int32"
    assert "mean" in dict(model_of("image", "Image", "--normalize", "standard").about)
    for data, options in (("uint8", ()), ("words", ("--normalize", "standard"))):
        with pytest.raises(
            ValueError, match=r"Words takes whole numbers.*examples as int32, not normalized .uint8 are p"
        ):
            model_of(data, "Words", *options)


def test_an_archive_whose_clients_have_a_name_of_their_own(tmp_path, capsys):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "a.npz", images=rng.normal(size=(40, 3)), labels=np.arange(40) % 2, user=np.arange(40) % 4)
    options = ["--data", str(tmp_path / "a.npz"), *FEW]
    assert main(["run", *options]) == 2
    message = capsys.readouterr().err
    assert "give --client-column NAME, one of its arrays images, labels, user, or --partition iid" in message
    federation, _ = make_parts(read_job([*options, "--client-column", "user"]))  # what is advised is right
    assert federation.train.size.tolist() == [8] * 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--client-column", "hospital"), "--client-column hospital is for data of your own; give --data FILE"),
        (("--task", "regression"), "--task regression is for data of your own"),
    ],
)
def test_columns_of_no_data_are_refused(capsys, options, message):
    assert main(["run", *options]) == 2
    assert message in capsys.readouterr().err


def test_folders_of_data_and_files_of_devices_are_found_from_everywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert read_job(["--data-folder", "mine"]).run.data_folder == str(tmp_path / "mine")
    assert read_job(["--data-folder", "None"]).run.data_folder is None
    job = read_job(["--clock", "wait", "--clock.devices", "~/phones.csv"])
    assert job.settings["clock"]["devices"] == str(tmp_path / "home" / "phones.csv")


@pytest.mark.parametrize("value", [np.uint8(11), np.float32(0.1), np.int32(7), np.float32(0)])
def test_a_column_of_one_value_has_a_deviation_of_1(value):
    mean, deviation = moments(np.full((3, 1), value))
    assert deviation == (1.0,)
    assert mean == (pytest.approx(float(value) / (255 if isinstance(value, np.uint8) else 1)),)


def test_moments_are_those_of_what_a_batch_has():
    x = np.random.default_rng(0).integers(256, size=(50, 2)).astype(np.uint8)
    mean, deviation = moments(x)
    np.testing.assert_allclose(mean, (x / 255).mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(deviation, (x / 255).std(axis=0), rtol=1e-6)


def test_fractions_beside_a_column_that_says_the_split_are_refused(tmp_path):
    rows = [f"{i},{i % 3},{i % 2},{'test' if i % 5 == 0 else 'train'}" for i in range(60)]
    (tmp_path / "parts.csv").write_text("\n".join(["x,hospital,sick,fold", *rows]))
    options = f"--data {tmp_path}/parts.csv --client-column hospital --label-column sick --split-column fold".split()
    assert make_parts(read_job(options))[0].test.size.sum() == 12
    for name in ("val", "test"):
        message = rf"--partition.{name}-fraction 0.3: the data assigns each example to a split already; leave it out"
        with pytest.raises(ValueError, match=message):
            make_parts(read_job([*options, f"--partition.{name}-fraction", "0.3"]))


def test_validation_rows_of_a_table_are_refused_with_a_partition(tmp_path):
    with (tmp_path / "parts.csv").open("w") as file:
        file.write("age,fold,sick\n")
        file.writelines(f"{i},{['train', 'val', 'test'][i % 3]},{i % 2}\n" for i in range(30))
    options = ["--data", str(tmp_path / "parts.csv"), "--label-column", "sick", "--partition", "iid", *FEW]
    with pytest.raises(ValueError, match="--split-column fold with --partition iid: 10 examples are marked as val"):
        make_parts(read_job([*options, "--split-column", "fold", "--partition.n-clients", "2"]))


@pytest.mark.slow
def test_relabelled_rows_and_a_second_data_set_are_told(fljax, refused):
    rows = [f"{i},{i % 2},{'uv'[i // 4]}" for i in range(8)]
    Path("mine.csv").write_text("\n".join(["cost,sick,site", *rows]))
    options = ["--client-column", "site", "--label-column", "sick", "--algorithm", "fedavg", "--rounds", "1"]
    options += ["--folder", "x"]
    assert fljax("run", "--data", "mine.csv", *options)[0] == 0
    Path("mine.csv").write_text("\n".join(["cost,sick,site", "0,1,u", *rows[1:]]))
    message = refused("run", "--folder", "x", "--rounds", "2")
    assert (
        "x/fedavg holds a run on other labels, or on another split of the examples among clients; use another folder"
        in message
    )
    message = refused("run", "--data", "mnist", *options[:-2])
    assert "mnist; for the data set of that name write --dataset mnist" in message
    message = refused("run", "--data", "mine.csv", "--dataset", "mnist", *options)
    assert "--dataset mnist and --data" in message
    assert "are two data sets; leave one out" in message


@pytest.mark.parametrize(
    ("task", "n", "is_said"), [("auto", 31, True), ("auto", 30, False), ("classification", 31, False)]
)
def test_whole_numbers_that_have_become_many_classes_are_remarked_on(tmp_path, task, n, is_said):
    rows = "".join(f"h{i % 2},{i},{20 + i % n},{'abcdefghijklmnopqrstuvwxyzABCDEFGHIJ'[i % n]}\n" for i in range(8 * n))
    (tmp_path / "ages.csv").write_text("site,x,age,word\n" + rows)
    options = ["--data", str(tmp_path / "ages.csv"), "--client-column", "site", "--task", task, "--feature-column", "x"]
    job_of_ages = read_job([*options, "--label-column", "age"])
    lines = many_classes(job_of_ages, make_parts(job_of_ages)[0])
    assert lines == ([f"age has {n} classes; if it is an amount, use --task regression"] if is_said else [])
    job_of_words = read_job([*options, "--label-column", "word"])
    assert many_classes(job_of_words, make_parts(job_of_words)[0]) == []
