"""Layers of settings: names, TOML, and which of several wins."""

import pytest

from fljax.catalogue.parameters import REQUIRED, Parameter
from fljax.jobs.job import read_job
from fljax.jobs.settings import full_names, of_arguments, of_text, of_toml, read_layer, values_of

LR = Parameter((("float",),), 0.1, "")
N = Parameter((("int", None, 2**31 - 1),), REQUIRED, "")
SCHEMA = {
    "": {"rounds": N._replace(default=3), "dropout": Parameter((("float",), ("none",)), None, "")},
    "partition": {"n_clients": N, "alpha": LR},
    "model": {"hidden": Parameter((("many", N.kind),), (200,), ""), "dropout": LR},
    "fedavg": {"lr": LR},
    "ifca": {"lr": LR, "alpha": LR, "public": Parameter((("bool",),), True, "")},
}


def test_arguments_by_name():
    layer = of_arguments(["--model.hidden", "64", "-1", "--ifca.n-clusters=4", "--public", "--lr", "a", "--lr", "b"])
    assert layer[:3] == [("model.hidden", ["64", "-1"]), ("ifca.n_clusters", ["4"]), ("public", [])]
    assert layer[3:] == [("lr", ["a"]), ("lr", ["b"])]


def test_a_first_word_without_a_name_is_refused():
    with pytest.raises(
        ValueError, match="'ifca' has no name in front; write settings as --name value, such as --algorithm"
    ):
        of_arguments(["ifca"])


def test_toml_by_name(tmp_path):
    text = """
        rounds = 3
        partition = {name = "iid", public = true}
        model = {hidden = [64, 32], name = "./m.py:net"}
        sampling = {rows = [[0, 1], [2]], ids = []}
        dcpfl = {unset = ["momentum"], lr = 1e-05}
        outer = {epochs = [1, 2], model = {hidden = ["64", "128 64"]}}
        versions = {jax = "1"}
    """
    assert dict(of_text(text, tmp_path)) == {
        "rounds": ["3"],
        "partition": ["iid"],
        "partition.public": ["true"],
        "model.hidden": ["64", "32"],
        "model": [f"{tmp_path}/m.py:net"],
        "sampling.rows": ["0 1", "2"],
        "sampling.ids": ["[]"],
        "dcpfl.momentum": ["None"],
        "dcpfl.lr": ["1e-05"],
        "outer.epochs": ["1", "2"],
        "outer.model.hidden": ["64", "128 64"],
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rounds = [", "x.toml is not TOML: "),
        ("[fedavg]", r"x.toml: \[fedavg\] is empty"),
        ("[nonsense]", r"x.toml: \[nonsense\] is empty"),
        ("fedavg.lr = {}", r"x.toml: \[fedavg.lr\] is empty"),
        ("[a.b]\nc = 1", r"x.toml: \[a.b\] is nested too deeply"),
        ("[outer.a.b]\nc = 1", r"x.toml: \[outer.a.b\] is nested too deeply"),
        (".".join(["a"] * 1500) + " = 1", r"x.toml: \[a.a\] is nested too deeply"),
        ("a = " + "[" * 500 + "]" * 500, "x.toml is nested too deeply"),
        ("a = " + "{a = " * 500 + "1" + "}" * 500, "nested too deeply"),
    ],
)
def test_faulty_toml_is_one_line(tmp_path, text, message):
    path = tmp_path / "x.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as error:
        of_toml(path)
    assert len(str(error.value)) < 400


def test_a_file_that_is_no_text_or_not_there(tmp_path):
    path = tmp_path / "x.toml"
    path.write_bytes(b'dataset = "digits\xff"')
    with pytest.raises(ValueError, match=r"x\.toml is not TOML: not UTF-8 text"):
        of_toml(path)
    with pytest.raises(ValueError, match=r"cannot read .*y\.toml: No such file"):
        of_toml(tmp_path / "y.toml")


def test_a_short_name_sets_every_method_and_a_full_one_wins():
    layer = [("ifca.lr", ["2"]), ("lr", ["1"])]
    assert read_layer(layer, SCHEMA) == read_layer(layer[::-1], SCHEMA) == {"fedavg.lr": 1.0, "ifca.lr": 2.0}
    assert full_names("n_clients", SCHEMA) == ["partition.n_clients"]
    assert full_names("dropout", SCHEMA) == ["dropout"]  # the run's own name is a full one


@pytest.mark.parametrize(
    "words", ["--n-clients abc --partition.n-clients 4", "--lr abc --lr 0.1", "--lr 0.1 --lr abc", "--lr a --ifca.lr 1"]
)
def test_what_another_setting_overrides_is_read_too(words):
    with pytest.raises(ValueError, match=r"abc|--lr a: give"):
        read_layer(of_arguments(words.split()), SCHEMA)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("round", "no setting --round; the nearest is --rounds"),
        ("model.hiden", "no setting --model.hiden; the nearest is --model.hidden"),
        (".rounds", "no setting --.rounds; the nearest is --rounds"),
        ("n_client", "no setting --n-client; the nearest is --n-clients"),
        ("", "a setting has no name; write settings as --name value, see --help"),
        ("alpha", "--alpha is the name of several settings; write --partition.alpha or --ifca.alpha"),
        ("x" * 5000, f"no setting --{'x' * 100}; see --help"),
    ],
)
def test_unknown_and_ambiguous_names(name, message):
    with pytest.raises(ValueError, match=message):
        full_names(name, SCHEMA)


def test_values_default_unless_required():
    values = values_of(SCHEMA, {"partition.n_clients": 7})
    assert values["partition"] == {"n_clients": 7, "alpha": 0.1}
    assert values["model"]["hidden"] == (200,)
    with pytest.raises(ValueError, match=r"--partition\.n-clients is not set; give INT"):
        values_of(SCHEMA, {})


def test_words_of_a_value_are_never_options(tmp_path):
    own_file = tmp_path / "victim"
    own_file.write_text("mine")
    words = ["--tyro-write-completion", "bash", str(own_file)]
    path = tmp_path / "x.toml"
    for name in ("seed", "dataset", "algorithm", "hidden"):
        path.write_text(f"{name} = {words!r}\n" + ('algorithm = "fedavg"\n' if name != "algorithm" else ""))
        with pytest.raises(ValueError, match="tyro-write-completion"):
            read_job(["--config", str(path)])
    with pytest.raises(ValueError, match=r"--seed --tyro-write-completion bash .*: give a whole number"):
        read_job(["--algorithm", "fedavg", f"--seed={words[0]}", *words[1:]])
    assert own_file.read_text() == "mine"
    assert set(tmp_path.iterdir()) == {path, own_file}


def test_toml_sets_what_the_command_line_can(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text('algorithm = "fedprox"\nlr = 0.5\n[partition]\nname = "iid"\nn_clients = 3\npublic = false\n')
    settings = read_job(["--config", str(path), "--fedprox.mu", "0"]).settings
    assert settings[""]["algorithm"] == ("fedprox",)
    assert (settings["fedprox"]["lr"], settings["fedprox"]["mu"]) == (0.5, 0.0)
    assert settings["partition"] == {"n_clients": 3, "val_fraction": 0.0, "test_fraction": 0.2, "public": False}
    path.write_text('algorithm = "fedavg"\nrounds = true\n')
    with pytest.raises(ValueError, match="--rounds true: give a whole number"):
        read_job(["--config", str(path)])


@pytest.mark.parametrize("name", ["folder", "config", "force_resume", "resume"])
def test_where_a_run_goes_is_said_on_the_command_line_alone(tmp_path, name):
    path = tmp_path / "x.toml"
    path.write_text(f'rounds = 2\n{name} = "true"\n')
    option = name.replace("_", "-")
    with pytest.raises(
        ValueError,
        match=rf"x.toml: {name} = 'true' is a setting of the command line only; .* give --{option} on the command line",
    ):
        read_job(["--config", str(path)])
