"""The settings of a run, of the local work and of a sweep; those of methods and parts are read from the library."""

from typing import Annotated, Literal, NamedTuple

from fljax.catalogue.parameters import parameters
from fljax.choices import Most, Natural, Positive
from fljax.ranges import Number

Share = Annotated[float, Number(above=0, most=1)]
PartOf = Annotated[float, Number(above=0, below=1)]
Probability = Annotated[float, Number(least=0, below=1)]
AnyShare = Annotated[float, Number(least=0, most=1)]
Seed = Annotated[int, *Natural.__metadata__, Most(2**32 - 1)]
"""A key is made of a seed's last 32 bits, so a larger seed would repeat the run of a smaller one."""

PARTS = ("partition", "model", "sampling", "attack", "drift", "clock")
"""Sections of which a job has one each; all others are methods, and a short name sets all methods that have it."""


class RunSettings(NamedTuple):
    """The run's own settings.

    algorithm: methods to run, on the same federation and the same cohorts; see fljax list. fedavg+median+adam is a
        method with bricks, ./mine.py:mymethod a method of your own, fedavg+./mine.py:mybrick one with a brick of your
        own.
    dataset: name of a data set; see fljax data list.
    data_folder: folder of the data set's files; None: searched for.
    data: your own data instead of a data set: a .csv, .csv.gz, .tsv, .tsv.gz, .parquet, .npz or (LEAF's) .json
        file, or a folder.
    client_column: column of a table, or array of an .npz, that names the client of each example.
    label_column: column of a table, or array, with the labels; several: several targets, or labels of 0 and 1.
    feature_column: columns of a table, or array, that are the network's inputs; None: all others.
    category_column: columns of a table with words or codes; each word becomes a feature of 0 and 1.
    ignored_column: columns of a table that are not inputs of the network, such as dates.
    fill: replaces empty cells of a table's features by this statistic over the training examples of the clients that
        train; None: empty cells are an error.
    text_column: column of a table with texts, which the network reads word by word instead of features.
    text_words: size of the vocabulary of texts, the most frequent words; also for LEAF's Sent140.
    text_length: number of words of a text that the network reads, from its beginning; shorter texts are padded in
        front.
    split_column: column of a table, or array, with "train", "val" or "test"; None: a random split.
    task: task of your own data; auto: classification for whole numbers and text, regression for other numbers.
    partition: how the examples are split among clients; see fljax list, or ./mine.py:split.
    model: network; see fljax list, or ./mine.py:net.
    normalize: scale of the network's inputs: "unit": pixels in [0, 1]; "centred": in [-1, 1]; "standard": each feature
        has mean 0 and standard deviation 1 over the training examples, the default for tables of your own.
    rounds: number of rounds.
    seed: all randomness comes from it, the partition included.
    sampling: which clients participate in a round; see fljax list.
    participation: share of the clients that participate in each round.
    augment: augmentation of the clients' training images, in every method: flip crop:4; see fljax list bricks.
    uplink: bricks between clients and server, in every method: clip:1 top-k:0.1; see fljax list bricks.
    downlink: bricks between server and clients, in every method: top-k:0.1.
    attack: attack of some clients on the others; see fljax list attacks.
    drift: how the clients change over the rounds; see fljax list drifts.
    clock: simulated time of the rounds on the clients' devices; see fljax list clocks.
    dropout: probability that a participant drops out of a round; at least one always stays. None: nobody drops out.
    stragglers: probability that a participant does only part of its epochs in a round (systems heterogeneity); None: 0.
    least_effort: least part of its epochs that a straggler does; each whole number of epochs is equally likely.
    evaluate_every: test after every so many rounds, and always after the last.
    common_test: one test set for all clients: the data set's test examples, while the partition splits its training
        examples alone.
    validate: test also on the clients' validation splits, in each round with a test: val_accuracy_macro and so on.
    patience: early stopping: end a method's run when no test was better for so many rounds after the best; with
        --validate, tests on the validation split count. None: all rounds.
    score: scores of each client besides accuracy and F1: auc top5 ./mine.py:score; see fljax list scores.
    new_clients: share of the clients that are held out and get models only after the last round; None: no new clients.
    new_client_rounds: rounds of work for new clients, in methods that keep something per client.
    compile: compile mode: "fast" starts soonest, "full" has the fastest rounds; "auto": chosen by the number of rounds.
    folder: results folder; a run in an existing folder is resumed. None: results/<time>.
    config: TOML file of settings, such as a results folder's config.toml.
    force_resume: resume though versions, devices or cores have changed; the folder records both.
    """

    algorithm: tuple[str, ...] = ("fedavg",)
    dataset: str = "digits"
    data_folder: str | None = None
    data: str | None = None
    client_column: str | None = None
    label_column: tuple[str, ...] = ()
    feature_column: tuple[str, ...] | None = None
    category_column: tuple[str, ...] = ()
    ignored_column: tuple[str, ...] = ()
    fill: Literal["median", "mean"] | None = None
    text_column: str | None = None
    text_words: Positive = 5000
    text_length: Positive = 50
    split_column: str | None = None
    task: Literal["auto", "classification", "regression", "labels"] = "auto"
    partition: str = "iid"
    model: str = "mlp"
    normalize: Literal["unit", "centred", "standard"] = "unit"
    rounds: Positive = 30
    seed: Seed = 0
    sampling: str = "uniform"
    participation: Share = 1.0
    augment: tuple[str, ...] = ()
    uplink: tuple[str, ...] = ()
    downlink: tuple[str, ...] = ()
    attack: str = "none"
    drift: str = "none"
    clock: str = "none"
    dropout: Probability | None = None
    stragglers: AnyShare | None = None
    least_effort: AnyShare = 0.0
    evaluate_every: Positive = 1
    common_test: bool = False
    validate: bool = False
    patience: Positive | None = None
    score: tuple[str, ...] = ()
    new_clients: PartOf | None = None
    new_client_rounds: Natural = 5
    compile: Literal["auto", "fast", "medium", "full"] = "auto"
    folder: str | None = None
    config: str | None = None
    force_resume: bool = False


class WorkSettings(NamedTuple):
    """The local work of each method.

    epochs: passes over its own data that a client makes in a round; None: local_steps instead.
    batch_size: examples per step; None: all examples of the client (B = infinity in FedAvg's paper).
    at_once: number of clients trained side by side; None: the best for the device.
    optimizer: optimiser of the clients; only sgd has momentum. optax.NAME is one of optax (optax.lion), ./mine.py:name
        your own.
    drop_last: an epoch leaves out its last batch if that is smaller, as PyTorch's DataLoader with drop_last=True;
        clients with fewer examples than a batch take no step.
    local_steps: local steps of each client in a round, whatever its size, instead of epochs.
    """

    epochs: Positive | None = 5
    batch_size: Positive | None = 32
    at_once: Positive | None = None
    optimizer: Literal["sgd", "adam", "adamw"] | str = "sgd"
    drop_last: bool = False
    local_steps: Positive | None = None


class SweepSettings(NamedTuple):
    """The settings of a sweep, besides those of a job.

    seeds: number of seeds of each point.
    halving: successive halving: keep one point in so many at each stage; None: the full sweep.
    draws: number of random points, drawn from the ranges without a count.
    metric: metric that the best point maximises (losses and errors: minimises), such as accuracy_worst10, or auc_macro
        with --score auc; ari: agreement of the clusters with the true groups; None: accuracy_macro, for regression
        r2_micro.
    judge: split of the tests; with val the columns are called val_accuracy_macro and so on.
    runs_at_once: number of runs side by side on a device; None: the best number.
    resume: resume the sweep in --folder; without halving also with more seeds and values.
    """

    seeds: Positive = 1
    halving: int | None = None
    draws: Positive | None = None
    metric: str | None = None
    judge: Literal["test", "val"] = "test"
    runs_at_once: Positive | None = None
    resume: bool = False


STEPS = ("lr", "lr_decay", "momentum", "weight_decay")
"""Hyperparameters of the clients' optimiser, which most methods have: those of `fljax.numbers.LocalHyper`."""
RUN, WORK, SWEEP = map(parameters, (RunSettings, WorkSettings, SweepSettings))
