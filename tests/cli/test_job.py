"""A job from words: the main job, what is refused before anything runs, and the library's own sentences."""

import re
import warnings

import jax
import numpy as np
import pytest
import tomli_w
from jax.errors import JaxRuntimeError

from fljax import tree
from fljax.algorithms import ALGORITHMS, compose
from fljax.catalogue.entries import entry, names
from fljax.cli import correctable
from fljax.jobs.assemble import make_algorithm, make_sampling, split_section
from fljax.jobs.config import as_toml
from fljax.jobs.job import read_job
from fljax.jobs.parts import make_model, make_parts
from fljax.jobs.remarks import headline, noises, slips, without_time
from fljax.jobs.unlike import not_alike
from fljax.models import lenet, mlp, resnet18, variational_cnn
from fljax.numbers import check_numbers, numbers_of
from fljax.rounds import uniform
from fljax.run.privacy import epsilons
from fljax.types import Work

HUGE = "99999999999"


def test_the_main_job_is_the_default():
    settings = read_job([]).settings
    five = ("fedtsdp", "layercfl", "dcpfl", "fedcps", "fesem")
    assert settings[""]["algorithm"] == ("standalone", "fedavg", *five)
    assert settings["partition"]["n_groups"] == settings["fesem"]["n_clusters"] == 4
    assert settings["dcpfl"]["momentum"] is settings["fedcps"]["identity_examples"] is None
    assert {settings[name]["lr"] for name in five} == {0.1}
    assert {settings[name]["batch_size"] for name in five} == {16}


def test_another_partition_or_model_starts_from_its_own_defaults():
    settings = read_job(["--algorithm", "fedavg", "--partition", "dirichlet", "--model", "cnn"]).settings
    assert settings["partition"]["n_clients"] == 12
    assert settings["partition"]["min_size"] == 10
    assert settings["model"]["hidden"] == (512,)


def test_the_users_of_a_data_set_are_its_clients_unless_a_partition_is_chosen():
    job = read_job(["--dataset", "synthetic_1_1"])
    assert job.run.partition == "natural"
    assert "fedavg" in job.run.algorithm
    assert "fedtsdp" not in job.run.algorithm  # it needs public examples, of which natural clients leave none
    assert read_job(["--dataset", "synthetic_1_1", "--partition", "dirichlet"]).run.partition == "dirichlet"
    assert read_job(["--dataset", "mnist"]).run.partition == "rotated_groups"


@pytest.mark.parametrize(("words", "has_public"), [("", False), ("true", False), ("false", True)])
def test_one_test_set_for_all_leaves_out_what_needs_public_examples(words, has_public):
    job = read_job(["--partition", "iid", "--common-test", *words.split()])
    assert "fedavg" in job.run.algorithm
    assert ("fedtsdp" in job.run.algorithm) is has_public


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--algorithm ifcaa", "no algorithm 'ifcaa'; the nearest is 'ifca'"),
        ("--algorithm", "--algorithm: give at least one"),
        ("--algorithm fedavg,ditto", "no algorithm 'fedavg,ditto'; separate several by spaces: fedavg ditto"),
        ("--algorithm fedavg, ditto", "no algorithm 'fedavg,'; separate several by spaces: fedavg"),
        ("--learning-rate 0.1", "no setting --learning-rate; the nearest is --lr"),
        ("--algorithm fedavg fedprox fedavg", "fedavg is given twice"),
        ("--algorithm fedavg+adm", "no brick 'adm'; the nearest is 'adam'; bricks that fit fedavg: prox, dp_sgd,"),
        ("--algorithm fedavg+", "no brick ''"),
        ("--algorithm fedprx+adam", "no algorithm 'fedprx'; the nearest is 'fedprox'"),
        ("--algorithm standalone+krum", "has no slot 'combine' for krum"),
        ("--algorithm fedavg+adam+krum", "krum would replace adam"),
        ("--algorithm fedprox+prox", "both have a hyperparameter 'mu'"),
        ("--partition rotated", "the nearest is 'rotated_groups'"),
        ("--model nlp", "the nearest is 'mlp'"),
        ("--sampling by-size", "the nearest is 'by_size'"),
        ("--dataset digit", "no data set 'digit'; the nearest is 'digits'"),
        ("--alg ifca", "no setting --alg; the nearest is --algorithm"),
        ("--algoritm ifca", "no setting --algoritm; the nearest is --algorithm"),
        ("--fedavg.l 3", "the nearest is --fedavg.lr"),
        (
            "--beta 0.2",
            "the partitions dirichlet, dominant_label_groups, dirichlet_sizes: add --partition dirichlet, or of",
        ),
        ("--partition.beta 1", "no setting --partition.beta; it is a setting of the partitions dirichlet"),
        (
            "--algorithm fedavg --mu 3",
            "more: name one in --algorithm, or of the brick prox: write --algorithm fedavg+prox",
        ),
        ("--algorithm fedavg --fedavg.mu 3", "--fedavg.mu; it is a setting of the brick prox"),
        ("--algorithm standalone --standalone.mu 3", "--standalone.mu; it is a setting of the brick prox"),
        ("--kernel 3", "it is a setting of the model cnn: add --model cnn"),
        ("--ifca.lr 1", "the job does not run ifca; add it to --algorithm"),
        ("--fedavg+yogi.lr 1", "the job does not run fedavg+yogi; add it"),
        ("--server-lr 1", "no setting --server-lr"),
        ("--rounds 2.5", "--rounds 2.5: give a whole number"),
        ("--rounds 0", "rounds=0 is not positive"),
        ("--seed -1", "seed=-1 is negative"),
        ("--seed 4294967296", "--seed 4294967296: choose at most 4294967295"),
        ("--participation 0", "participation=0 is out of its range; choose participation in (0, 1]"),
        ("--participation 1.5", "participation=1.5"),
        ("--dropout 1", "dropout=1 is out of its range; choose dropout in [0, 1), or None"),
        ("--evaluate-every 0", "evaluate_every=0"),
        ("--new-clients 0", "new_clients=0 is out"),
        ("--new-clients 1", "new_clients=1 is out"),
        ("--new-client-rounds -1", "new_client_rounds=-1 is negative"),
        (f"--rounds {HUGE}", f"--rounds {HUGE}: choose at most 2147483647"),
        (f"--epochs {HUGE}", f"--epochs {HUGE}: choose at most"),
        (f"--n-clients {HUGE}", f"--n-clients {HUGE}: choose at most"),
        (f"--hidden 8 {HUGE}", f"--hidden {HUGE}: choose at most"),
        ("--batch-size 0", "batch_size=0 is not positive"),
        ("--epochs 0", "epochs=0 is not positive"),
        ("--at-once 0", "at_once=0 is not positive"),
        ("--optimizer lion", "optimizer='lion' is unknown; choose one of 'sgd', 'adam', 'adamw'"),
        ("--weighting fair", "weighting='fair' is unknown; choose one of 'size', 'uniform'"),
        ("--combine mean", "no setting --combine"),
        ("--lr abc", "--lr abc: give a number"),
        ("--lr 0", "lr=0 is out of its range; choose lr > 0"),
        ("--lr nan", "lr=nan is not a number"),
        ("--lr inf", "lr=inf is out of its range; choose a finite number, lr > 0"),
        ("--lr 1e39", "lr=1e+39 is too large for float32"),
        ("--momentum 1", "momentum=1 is out of its range; choose momentum in [0, 1), or None"),
        ("--partition dirichlet --beta inf", "--beta inf: give a finite number"),
    ],
)
def test_what_cannot_be_run_is_refused_by_its_words(arguments, message):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(ValueError, match=r".") as error:
            read_job(["--algorithm", "fedavg", *arguments.split()])
    assert message in str(error.value)
    assert not caught


def test_a_files_section_of_a_method_that_is_not_run_is_read(tmp_path):
    path = tmp_path / "x.toml"
    path.write_text('algorithm = ["fedavg"]\n[ditto]\nlrr = 0.1')
    for arguments in ([], ["--algorithm", "fedavg"]):
        with pytest.raises(ValueError, match=r"no setting --ditto\.lrr; the nearest is --ditto\.lr"):
            read_job(["--config", str(path), *arguments])
    path.write_text('algorithm = ["fedavg"]\n[ditto]\nlr = 0.1')
    with pytest.raises(ValueError, match=r"x\.toml: \[ditto\]: the job does not run ditto; add it"):
        read_job(["--config", str(path)])
    # The arguments choose among the methods that a file has numbers of.
    assert read_job(["--config", str(path), "--algorithm", "ditto"]).settings["ditto"]["lr"] == 0.1
    job = read_job(["--config", str(path), "--algorithm", "fedavg"])
    assert ([*job.methods], job.unused) == (["fedavg"], f"{path}: not used by this job: [ditto]")


def test_what_a_file_says_in_vain_is_named(tmp_path, fljax):
    path = tmp_path / "x.toml"
    sections = '[partition]\nname = "dirichlet"\nbeta = 0.3\nn_clients = 3\n[model]\nhidden = [8]\n'
    path.write_text(f"{sections}[ditto]\nlr = 0.1\nlam = 1\n")
    arguments = ["--config", str(path), "--algorithm", "fedavg", "--partition", "iid"]
    message = f"{path}: not used by this job: partition.beta, [ditto]"
    assert read_job(arguments).unused == message
    assert read_job([*arguments[:-2], "--algorithm", "ditto"]).unused == ""
    assert read_job(arguments[2:]).unused == ""
    status, _, err = fljax("plan", *arguments, "--quick")  # as every command
    assert (status, err) == (0, f"fljax: {message}\n")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("roundz = 3", "no setting --roundz; the nearest is --rounds"),
        ('rounds = "ten"', "--rounds ten: give a whole number"),
        ("rounds = [3]", "rounds = [3] is a list; give one value, rounds = 3"),
        ("fedavg.lr = [0.1]", "fedavg.lr = [0.1] is a list; give one value, fedavg.lr = 0.1"),
        ('model = ["mlp"]', "model = [mlp] is a list; give one value, model = mlp"),
        ('model = "nlp"', "no model 'nlp'; the nearest is 'mlp'"),
        ('dataset = "digit"', "no data set 'digit'; the nearest is 'digits'"),
        ("ditto.lrr = 1", "no setting --ditto.lrr; the nearest is --ditto.lr"),
    ],
)
def test_what_is_wrong_in_a_file_is_said_with_its_name(tmp_path, text, message):
    path = tmp_path / "x.toml"
    path.write_text(f'algorithm = ["fedavg"]\n{text}')
    with pytest.raises(ValueError, match=re.escape(f"{path}: {message}")):
        read_job(["--config", str(path)])
    with pytest.raises(ValueError, match=r"^no setting --roundz"):  # which the file does not have
        read_job(["--roundz", "3"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--n-clients 5000", "n_clients=5000"),
        ("--new-clients 0.01", "new_clients=0.01 of 12 clients leaves no new client"),
        ("--new-clients 0.99", "new_clients=0.99 of 12 clients leaves no client to train"),
        ("--epochs 1000000000", "--fedavg.epochs 1000000000: of 7 batches each; choose at most 306783378"),
        ("--dtype foo", "dtype='foo': choose"),
        ("--dtype float64", "dtype='float64': choose"),
        ("--optimizer adamw --momentum 0.5", "momentum is given but optimizer='adamw' has none"),
        ("--sampling fixed --ids 0 99", "client 99 participates but there are 12 clients"),
        ("--sampling table --rows", "rows name no client"),
        ("--sampling fixed --ids 0 --participation 0.5", "--sampling fixed decides who participates"),
        ("--epochs 2 --local-steps 3", "epochs=2 and local_steps=3 of work"),
        ("--epochs None", "epochs=None and local_steps=None of work"),
        ("--hidden 2000000000", "out of memory (two copies of --model mlp need"),
    ],
)
def test_what_cannot_be_made_is_refused_before_anything_runs(refused, tmp_path, arguments, message):
    assert message in refused("run", "--algorithm", "fedavg", *arguments.split())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("method", ["fedprox", "fedprox+adam"])
def test_ranges_are_refused_in_the_librarys_own_words(method):
    for name, value in (("mu", -1.0), ("lr", 0.0), ("momentum", 1.0), ("lr_decay", 0.0)):
        with pytest.raises(ValueError, match=name) as library:
            check_numbers(compose(method).Hyper(**{name: value}))
        with pytest.raises(ValueError, match=name) as line:
            read_job(["--algorithm", method, f"--{name}", str(value)])
        assert str(line.value) == str(library.value)
    with pytest.raises(ValueError, match="weighting") as line:
        read_job(["--algorithm", method, "--weighting", "fair"])
    with pytest.raises(ValueError, match="weighting") as library:
        compose(method)(lenet((8, 8, 1), 10), Work(1, 8), weighting="fair")
    assert str(line.value) == str(library.value)


def test_the_ends_of_ranges_are_inside():
    arguments = "--algorithm fedavg+trimmed_mean --trim 0.5 --momentum 0 --lr-decay 1 --lr 3e38 --seed 4294967295"
    numbers = read_job([*arguments.split(), "--rounds", "2147483647"]).settings["fedavg+trimmed_mean"]
    assert (numbers["trim"], numbers["momentum"], numbers["lr_decay"]) == (0.5, 0.0, 1.0)


@pytest.mark.parametrize("name", [*ALGORITHMS, "fedprox+momentum", "ditto+yogi"])
def test_every_number_of_a_method_can_be_set_and_its_defaults_make_it(name):
    job = read_job(["--algorithm", name, "--epochs", "1"])
    numbers = numbers_of(compose(name).Hyper)
    assert set(numbers) <= set(job.schema[name])
    assert {*Work._fields} - {"terms"} <= set(job.schema[name])
    defaults = {field: parameter.default for field, parameter in job.schema[name].items()} | {"epochs": 1}
    networks = {"fedbn": resnet18, "fedsr": variational_cnn, "fedsr_ft": variational_cnn, "fedcr": variational_cnn}
    model = networks.get(name, lenet)((32, 32, 3), 10)
    algorithm, hyper, _ = make_algorithm(name, job._replace(settings=job.settings | {name: defaults}), model, 12)
    assert hyper == compose(name).Hyper()
    assert algorithm.about.name == name
    check_numbers(hyper)


@pytest.mark.parametrize("name", names("partition"))
def test_every_parameter_of_a_partition_is_explained(name):
    section = entry("partition", name).section
    assert "n_clients" in section
    assert all(parameter.help for parameter in section.values())


def test_settings_become_what_they_say():
    words = (
        "--algorithm fedavg+krum --sampling poisson --participation 0.5 --optimizer adamw --hidden 8 --n-attackers 2"
    )
    job = read_job([*words.split(), "--new-clients", "0.5"])
    federation, newcomers = make_parts(job)
    assert newcomers is not None
    assert len(federation.train.size) == len(newcomers.train.size) == 6
    model = make_model(job, federation)
    assert jax.eval_shape(model.init, jax.random.key(0))["fc1"]["kernel"].shape == (64, 8)
    assert dict(make_sampling(job).about) == {"sampling": "poisson", "participation": 0.5}
    work, hyper, static = split_section("fedavg+krum", job)
    assert (work.optimizer, hyper.n_attackers, static) == ("adamw", 2.0, {"weighting": "size"})
    table = read_job(["--algorithm", "fedavg", "--sampling", "table", "--rows", "0 1", "2"])
    assert dict(make_sampling(table).about)["rows"] == ((0, 1), (2,))


def test_networks_that_differ_are_settings_of_one_model():
    words = ["--model", "heterogeneous", "--networks", "mlp", "lenet", "mlp", "--n-features", "8"]
    job = read_job(["--algorithm", "fedproto", *words])
    federation, _ = make_parts(job)
    model = make_model(job, federation)
    assert (model.layers, model.n_networks) == (("mlp", "lenet", "mlp_2", "head"), 3)
    n_numbers = tree.size(jax.eval_shape(model.init, jax.random.key(0)))
    assert f"heterogeneous of {n_numbers:,} parameters in 3 networks, " in headline(job, federation, model)
    refused = read_job(["--algorithm", "fedavg", *words])
    with pytest.raises(ValueError, match="fedavg: clients have 3 different networks, and it combines whole networks"):
        make_algorithm("fedavg", refused, model, 12)
    unknown = read_job(["--algorithm", "fedproto", "--model", "heterogeneous", "--networks", "mpl"])
    with pytest.raises(ValueError, match="--model heterogeneous: networks='mpl': no model 'mpl'; the nearest is 'mlp'"):
        make_model(unknown, federation)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OverflowError("int too large"), "a number is too large (int too large); choose a smaller one"),
        (MemoryError("Unable to allocate 7 TiB"), "out of memory (Unable to allocate 7 TiB); choose smaller batches"),
        (MemoryError(), "out of memory (no memory is left)"),
        (JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes.\nBuffers: 1"), "g 9 bytes); choose"),
        (JaxRuntimeError("INTERNAL: Generated function failed: Out of memory allocating 9 bytes."), "g 9 bytes); ch"),
        (ValueError("lr=0"), "lr=0"),
    ],
)
def test_what_other_settings_avoid_is_said(fljax, monkeypatch, error, message):
    def fail(*_):
        raise error

    monkeypatch.setattr("fljax.cli.command", lambda name: fail)
    status, out, err = fljax("run")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert message in err


def test_a_fault_of_the_program_keeps_its_traceback(fljax, monkeypatch):
    assert correctable(JaxRuntimeError("INTERNAL: x")) is None

    def fail(*_):
        raise JaxRuntimeError("INTERNAL: x")

    monkeypatch.setattr("fljax.cli.command", lambda name: fail)
    with pytest.raises(JaxRuntimeError, match="INTERNAL"):
        fljax("run")


ALL_FOUR = ("fedavg", "ditto", "ifca", "fedem")


def test_what_methods_do_not_have_alike_is_said():
    equal_job = read_job(["--algorithm", "fedavg", "ditto", "ifca", "hypcluster", "scaffold"])
    assert not_alike(equal_job.of_methods) == []  # one learning rate and one number of clusters for all of them
    assert not_alike(read_job([]).of_methods) == ["methods differ in: momentum None, fedtsdp 0.5; epochs 5, fedcps 1"]
    unequal_job = read_job(
        [
            "--algorithm",
            "fedavg",
            "ditto",
            "ifca",
            "fedem",
            "--ditto.lr",
            "0.2",
            "--ifca.n-clusters",
            "3",
            "--batch-size",
            "8",
        ]
    )
    assert "lr 0.1, ditto 0.2" in not_alike(unequal_job.of_methods)[0]


def test_choices_that_are_seldom_meant_are_said():
    job = read_job(["--algorithm", "fedavg", "ifca", "fesem", "--ifca.batch-size", "65", "--fesem.n-clusters", "5"])
    assert slips(job, np.array([64, 32, 64, 7])) == [
        "batches of ifca are larger than any client's data: each epoch is one step, as with --batch-size None",
        "fesem: more clusters than the 4 clients",
    ]
    assert slips(job, np.full(5, 65)) == []


def test_more_attackers_than_an_aggregation_bears_are_said():
    """Krum's m >= 2 f + 3, Bulyan's m >= 4 f + 3, of the models that a round has."""
    arguments = ["--algorithm", "fedavg+krum", "ifca+bulyan", "fedavg+median", "--n-attackers", "2"]
    assert slips(read_job(arguments), np.full(11, 40)) == []
    assert slips(read_job(arguments), np.full(10, 40)) == [
        "ifca+bulyan: with 10 models it tolerates at most 1 attacker, not --n-attackers 2"
    ]
    messages = slips(read_job([*arguments, "--participation", "0.5"]), np.full(12, 40))
    assert [line.partition(":")[0] for line in messages] == ["fedavg+krum", "ifca+bulyan"]


def numbers_of_its_own(method, name):
    """The default of a method's setting."""
    return entry("algorithm", method).section[name].default


def test_numbers_of_the_main_jobs_network_do_not_go_with_another(tmp_path):
    table = tmp_path / "mine.csv"
    job = read_job(["--data", str(table), "--client-column", "who", "--label-column", "sick"])
    assert "fedtsdp" not in job.methods  # it needs public data
    assert job.settings["layercfl"]["layers"] == "fc1"  # the network is the main job's
    assert job.settings["fesem"]["n_clusters"] == 2  # its groups are not
    assert {settings["lr"] for name, settings in job.settings.items() if name in job.methods} == {0.1}
    settings_of_cnn = read_job(["--model", "cnn", "--algorithm", "layercfl", "ifca", "fedtsdp"]).settings
    assert settings_of_cnn["layercfl"]["layers"] == numbers_of_its_own("layercfl", "layers") != "fc1"
    assert settings_of_cnn["fedtsdp"]["psi"] == numbers_of_its_own("fedtsdp", "psi") != 0.995
    assert settings_of_cnn["ifca"]["n_clusters"] == 4


def test_a_body_that_has_all_epochs_leaves_none_for_the_head():
    slips_of = lambda *arguments: slips(read_job(["--algorithm", "fedavg", "fedrep", *arguments]), np.full(10, 100))  # noqa: E731
    assert slips_of("--epochs", "2", "--batch-size", "8") == []
    assert slips_of("--epochs", "1", "--batch-size", "8") == [
        "fedrep: with --body-epochs equal to --epochs, heads are trained only before tests"
    ]


def test_a_clock_says_that_the_way_to_the_cloud_takes_no_time():
    words = ["--algorithm", "fedavg", "hierfavg", "hierfavg+krum"]
    assert without_time(read_job(words)) == []
    assert without_time(read_job(["--algorithm", "fedavg", "--clock", "wait"])) == []
    assert without_time(read_job([*words, "--clock", "wait"])) == [
        "hierfavg, hierfavg+krum: --clock wait counts no time between edge servers and the cloud"
    ]


def test_a_round_is_as_long_as_the_last_word_for_it_says(tmp_path):
    """Of epochs and local steps the one that is given last counts, in a file, in arguments and in an outer loop."""
    length_of = lambda job, name: tuple(job.settings[name][field] for field in ("epochs", "local_steps"))  # noqa: E731
    job = read_job(["--algorithm", "fedavg", "fedcps", "--local-steps", "20"])  # FedCPS has an epoch of its own
    assert [length_of(job, name) for name in ("fedavg", "fedcps")] == [(None, 20)] * 2
    assert slips(job, np.full(10, 100)) == []
    assert length_of(job.with_setting("fedavg.epochs", 2), "fedavg") == (2, None)
    assert length_of(job.with_setting("fedavg.lr", 0.2), "fedavg") == (None, 20)
    file = tmp_path / "job.toml"
    file.write_text(tomli_w.dumps(as_toml(job)), encoding="utf-8")
    assert read_job(["--config", str(file)]).of_methods == job.of_methods
    assert length_of(read_job(["--config", str(file), "--epochs", "3"]), "fedavg") == (3, None)


def test_noise_for_a_target_follows_from_the_clients_number():
    """A pass of a third of ten clients has four rounds."""
    words = ["--algorithm", "fedavg+client_dp", "--target-epsilon", "5", "--delta", "1e-3", "--rounds", "8"]
    job = read_job([*words, "--sampling", "shuffled", "--participation", "0.33"])
    _, hyper, sampling = make_algorithm("fedavg+client_dp", job, mlp((8, 8, 1), (4,), 10), 10)
    np.testing.assert_allclose(epsilons(hyper, sampling.of(10).sampling, None, 8)[-1], 5, rtol=1e-4)
    assert epsilons(hyper, uniform(0.33), None, 8)[-1] > 8


IN_TURN = """
import jax.numpy as jnp
from fljax.rounds import Sampling

def in_turn(n: int = 2):
    def draw(key, round, size, places):
        return (round * places + jnp.arange(places)) % size.shape[0], jnp.ones(places, bool)

    return Sampling(draw, lambda n_clients: n, separation=lambda n_clients: n_clients // n)
"""


def test_correlated_noise_needs_clients_that_rest(refused, tmp_path, monkeypatch):
    """In the library's sentence; how long they rest may follow from their number."""
    monkeypatch.chdir(tmp_path)
    private = ["--algorithm", "fedavg+banded_client_dp", "--rounds", "8", "--target-epsilon", "5", "--bands"]
    sentence = (
        "if no client participates twice in 6 consecutive rounds, but the sampling uniform assures 1; choose least_"
    )
    assert sentence in refused("run", *private, "6", "--participation", "0.1")
    (tmp_path / "mine.py").write_text(IN_TURN)
    model, own = mlp((8, 8, 1), (4,), 10), ["--sampling", "./mine.py:in_turn"]
    job = read_job([*private, "6", *own])
    algorithm, hyper, sampling = make_algorithm("fedavg+banded_client_dp", job, model, 12)
    run = {"algorithm": algorithm, "hyper": hyper, "sampling": sampling}
    assert noises(job, {"fedavg+banded_client_dp": run}) == [
        f"fedavg+banded_client_dp: --noise-multiplier {hyper.noise_multiplier:.6g} follows from --target-epsilon 5"
    ]
    with pytest.raises(ValueError, match=r"^bands=6: .* the sampling one of your own assures 5; choose"):
        make_algorithm("fedavg+banded_client_dp", job, model, 10)
