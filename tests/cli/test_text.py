"""A table with a column of texts on the command line: words become tokens, and the network's vocabulary is theirs."""

import csv
import re

import numpy as np
import pytest

from fljax import load_run
from fljax.catalogue.job import RUN
from fljax.data.own.words import USUAL
from tests.slow import slow

GOOD, BAD, OTHER = ["great", "lovely"], ["awful", "sad"], ["the", "a", "film", "was", "it", "this"]
FEW = ("--algorithm", "fedavg", "--rounds", "6", "--epochs", "3", "--lr", "1", "--batch-size", "8")


@pytest.fixture
def reviews(tmp_path):
    """200 texts of 5 people, whose mood hangs on one word."""
    rng = np.random.default_rng(0)
    with (tmp_path / "reviews.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("who", "text", "mood"))
        for i in range(200):
            words = [*rng.choice(OTHER, 5), rng.choice(GOOD if i % 2 else BAD)]
            writer.writerow((f"p{i % 5}", " ".join(rng.permutation(words)), "good" if i % 2 else "bad"))
    return ("--data", "reviews.csv", "--client-column", "who", "--label-column", "mood")


@pytest.mark.parametrize(
    "model",
    [
        ("fasttext",),
        *slow(
            ("lstm", "--model.hidden", "8"),
            ("transformer", "--model.width", "8", "--model.n-layers", "1", "--model.n-heads", "1"),
        ),
    ],
)
def test_words_are_read_and_their_names_kept(fljax, reviews, model):
    options = ("--text-column", "text", "--text-length", "8", "--model", *model, *FEW)
    assert fljax("run", *reviews, *options, "--folder", "x")[0] == 0
    run = load_run("x")
    assert run.words == ("<padding>", "<unknown>", *sorted((*GOOD, *BAD, *OTHER)))
    embedding = run["fedavg"].models.params["embed"]["embedding"]
    assert embedding.shape[1] == len(run.words)
    if model[0] == "fasttext":
        assert run["fedavg"].metrics["accuracy_macro"][-1] > 0.9
    assert fljax("predict", "x")[0] == 0
    with open("x/predictions_test.csv", newline="") as file:
        lines = list(csv.DictReader(file))
    accuracy = np.mean([line["label"] == line["predicted"] for line in lines])
    assert accuracy == pytest.approx(run["fedavg"].metrics["accuracy_micro"][-1])


def interrupted(*_, **__):
    raise KeyboardInterrupt


def n_parameters(out):
    return int(re.search(r"fasttext of ([\d,]+) parameters", out)[1].replace(",", ""))


@pytest.mark.slow
def test_few_words_and_a_vocabulary_of_ones_own(fljax, reviews, refused, monkeypatch):
    options = ("--text-column", "text", "--text-words", "3", "--model", "fasttext", *FEW, "--rounds", "1")
    status, out, _ = fljax("run", *reviews, *options, "--folder", "x")
    assert status == 0
    _, vocabulary, width = load_run("x")["fedavg"].models.params["embed"]["embedding"].shape
    assert vocabulary == 5
    monkeypatch.setattr("fljax.cli.execute.train", interrupted)  # what is told of the network is told before
    status, out_of_30, _ = fljax("run", *reviews, *options, "--model.vocabulary", "30", "--folder", "y")
    assert status == 130
    assert n_parameters(out_of_30) - n_parameters(out) == 25 * width
    assert "the vocabulary is 2" in refused("run", *reviews, *options, "--model.vocabulary", "2")


@pytest.mark.slow
def test_words_have_names_where_nothing_else_has(fljax, tmp_path):
    rows = "".join(f"{('good', 'bad')[i % 2]} day,{i % 2}\n" for i in range(60))
    (tmp_path / "n.csv").write_text("text,mood\n" + rows)
    options = (
        "--data",
        "n.csv",
        "--label-column",
        "mood",
        "--text-column",
        "text",
        "--partition",
        "iid",
        "--n-clients",
        "3",
    )
    assert fljax("run", *options, "--model", "fasttext", *FEW, "--rounds", "1", "--folder", "x")[0] == 0
    run = load_run("x")
    assert (run.words[2:], run.classes, run["fedavg"].clients) == (("bad", "day", "good"), (), ())


def test_networks_that_read_numbers_and_texts_without_data_are_refused(reviews, refused):
    message = refused("run", *reviews, "--text-column", "text", "--model", "mlp", *FEW)
    assert (
        "--model mlp: it would read words as numbers; choose a network that embeds them, fasttext, lstm, transformer"
        in message
    )
    assert "column 'text' is" in (message := refused("run", *reviews, "--model", "mlp", *FEW))
    assert "--text-column or --ignored-column" in message
    assert "--text-words 9 is for data of your own" in refused("run", "--text-words", "9")
    assert "text_length=0 is not positive" in refused("run", *reviews, "--text-column", "text", "--text-length", "0")


def test_the_defaults_are_those_of_python():
    assert (RUN["text_words"].default, RUN["text_length"].default) == USUAL
