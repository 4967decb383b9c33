"""The names of other libraries: what takes their place is there, and none of them hides a name of this library."""

import shlex

import pytest

from fljax.catalogue.entries import names
from fljax.cli import COMMANDS, main
from fljax.jobs.job import read_job
from fljax.other_names import OTHER_NAMES, name_here

OPTIONS = {"algorithm": "--algorithm", "data set": "--dataset", "model": "--model", "partition": "--partition"}


@pytest.mark.parametrize("kind", OPTIONS)
def test_what_takes_the_place_of_a_name_can_be_read(kind):
    for here in {alternative for value in OTHER_NAMES[kind].values() for alternative in value.split(" or ")}:
        algorithm = [] if kind == "algorithm" else ["--algorithm", "fedavg"]
        read_job([*algorithm, OPTIONS[kind], *shlex.split(here)])


def test_commands_that_take_the_place_of_others_are_there():
    for here in OTHER_NAMES["command"].values():
        command, *words = here.split()
        assert command in COMMANDS
        read_job(words)


def test_settings_that_take_the_place_of_others_are_there():
    shares = {"--participation", "--lr-decay", "--test-fraction", "--val-fraction", "--stragglers"}
    places = {here.split()[0] for here in OTHER_NAMES["setting"].values() if here.startswith("--")}
    places -= {"--algorithm", "--partition"}  # they take names, not numbers
    assert shares < places
    words = [word for place in places for word in (place, "0.5" if place in shares else "1")]
    read_job(["--algorithm", "fedavg", "--partition", "dirichlet", *words])


def test_list_and_other_commands_know_them_too(capsys):
    for words, message in (
        (["clients-only", "exp.yaml"], "no command 'clients-only'; here it is run --algorithm standalone"),
        (["list", "fedavgm"], "no kind or name 'fedavgm'; here it is fedavg+momentum"),
        (["data", "show", "--client-num", "9"], "no setting --client-num; here it is --n-clients"),
        (["data", "show", "--join-ratio", "1"], "no setting --join-ratio"),
    ):
        assert main(words) == 2
        said = capsys.readouterr().err
        assert message in said
        assert "--participation" not in said  # which the command does not have


@pytest.mark.parametrize("kind", ["algorithm", "data set", "model", "partition"])
def test_no_name_of_this_library_is_taken_for_another(kind):
    own = names({"data set": "dataset"}.get(kind, kind))
    assert own
    assert [name for name in own if name_here(kind, name)] == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--algorithm FedAvgM", "no algorithm 'FedAvgM'; here it is fedavg+momentum"),
        ("--algorithm local", "no algorithm 'local'; here it is standalone"),
        ("--algorithm krum", "krum is a brick; name a method first, such as fedavg+krum"),
        ("--dataset fmnist", "no data set 'fmnist'; here it is fashion_mnist"),
        ("--partition noniid-labeldir", "no partition 'noniid-labeldir'; here it is dirichlet"),
        ("--model 2nn", "no model '2nn'; here it is mlp --hidden 200 200"),
        ("--join-ratio 0.1", "no setting --join-ratio; here it is --participation"),
        ("--partition dirichlet -a 0.1", "-a 0.1: give text; -a is read as a value, because names of settings begin"),
    ],
)
def test_an_unknown_name_is_answered_with_the_one_here(words, message):
    with pytest.raises(ValueError, match=r".") as refused:
        read_job(words.split())
    assert message in str(refused.value)
