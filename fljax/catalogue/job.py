"""What a run, its local effort and a sweep can be told, besides what the things that they name can be told."""

from typing import Annotated, Literal, NamedTuple

from fljax.catalogue.parameters import parameters
from fljax.catalogue.words import Most
from fljax.choices import Natural, Positive
from fljax.ranges import Number

Share = Annotated[float, Number(above=0, most=1)]
PartOf = Annotated[float, Number(above=0, below=1)]
Probability = Annotated[float, Number(least=0, below=1)]
AnyShare = Annotated[float, Number(least=0, most=1)]
Seed = Annotated[int, *Natural.__metadata__, Most(2**32 - 1)]
"""A key is made of a seed's last 32 bits, so a larger one would be another's run."""


class RunSettings(NamedTuple):
    """The run's own settings.

    algorithm: methods to run, on the same federation and the same cohorts; see fljax list. fedavg+median+adam is a
        method with bricks put in, ./mine.py:mymethod one of your own.
    dataset: name of a data set; see fljax data list.
    data_folder: where its files are; None: found by itself.
    data: data of your own in place of a data set: a .csv, .tsv, .parquet, .npz or (LEAF's) .json file, or a folder.
    client_column: column of a table, or array of an .npz, that says whose an example is.
    label_column: column of a table, or array, with the labels; several: several targets, or labels of 0 and 1.
    feature_column: columns of a table, or array, that the network sees; None: all others.
    category_column: columns of a table that are features of words or codes; each word is a feature of 0 and 1.
    ignored_column: columns of a table that the network does not see, such as dates, where it sees all others.
    fill: what takes the place of empty cells of a table's features, over the training examples of the clients that
        train; None: they are refused.
    text_column: column of a table with texts, which the network reads word by word in the place of features.
    text_words: words of texts that are told apart, the most frequent ones; of LEAF's Sent140 too.
    text_length: words of a text that the network reads, its first ones; shorter texts begin with padding.
    split_column: column of a table, or array, with "train", "val" or "test"; None: examples are drawn.
    task: what labels of data of your own are; auto: whole numbers and text are classes, other numbers regressed on.
    partition: who owns which example; see fljax list, or ./mine.py:split.
    model: network; see fljax list, or ./mine.py:net.
    normalize: inputs that the network sees: pixels in [0, 1], "centred" in [-1, 1], or "standard": each feature of mean
        0 and deviation 1 over the training examples, as tables of your own are unless this says otherwise.
    rounds: rounds in all.
    seed: everything random comes from it, the partition included.
    sampling: who takes part in a round; see fljax list.
    participation: share of the clients in each round.
    augment: changes to the images that clients train on, in every method: flip crop:4; see fljax list bricks.
    uplink: bricks between clients and server, into every method: clip:1 top-k:0.1; see fljax list bricks.
    downlink: bricks on the way back: top-k:0.1.
    attack: what some clients do to the others, and a defence is to bear; see fljax list.
    drift: how the clients change over the rounds; see fljax list.
    clock: how rounds spend simulated time on the clients' devices; see fljax list clocks.
    dropout: probability that a participant drops out of a round, of whom one always stays; None: nobody does.
    stragglers: probability that a participant does only part of its epochs in a round (systems heterogeneity); None: 0.
    least_effort: least part of its epochs that a straggler does; it does a whole number of them, each equally likely.
    evaluate_every: test after every so many rounds, and always after the last.
    validate: test on the clients' validation splits too, in each round that is tested: val_accuracy_macro and so on.
    patience: early stopping: end a method's run when so many rounds after the best test none was better; tests on the
        validation split where --validate makes them. None: all rounds.
    score: what tests say of each client besides accuracy and F1: auc top5 ./mine.py:score; see fljax list scores.
    new_clients: share of the clients that never takes part and meets the trained server at the end; None: nobody.
    new_client_rounds: rounds of work for new clients, in methods that keep something per client.
    compile: how to compile: "fast" is ready soonest, "full" has the quickest rounds; "auto": by the rounds to come.
    folder: results folder; an existing one is gone on with. None: results/<time>.
    config: TOML file of settings, such as a results folder's config.toml.
    force_resume: go on with a folder though versions, devices or cores are others than before; it keeps both.
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
    """Local effort, of each method.

    epochs: passes over its own data that a client makes in a round.
    batch_size: examples in a step; None: all that a client has (B = infinity of FedAvg's paper).
    at_once: clients trained at once; None: the backend's best.
    optimizer: of the clients; momentum is sgd's. Any of optax's is optax.NAME (optax.lion), your own ./mine.py:name.
    """

    epochs: Positive = 5
    batch_size: Positive | None = 32
    at_once: Positive | None = None
    optimizer: Literal["sgd", "adam", "adamw"] | str = "sgd"


class SweepSettings(NamedTuple):
    """What a sweep has beyond a job's settings.

    seeds: seeds of each point.
    halving: keep one point in so many at each stage; None: the full sweep.
    draws: random points to draw from the ranges without a count.
    metric: what the best point has most of (losses and errors: least), such as accuracy_worst10, or auc_macro with
        --score auc; ari: how far clusters agree with the true groups; None: accuracy_macro, of a regression r2_micro.
    judge: the split that tests are made on; of val the columns are val_accuracy_macro and so on.
    runs_at_once: runs side by side on a device; None: as many as are best.
    resume: go on with the sweep in --folder; without halving also with more seeds and values.
    """

    seeds: Positive = 1
    halving: int | None = None
    draws: Positive | None = None
    metric: str | None = None
    judge: Literal["test", "val"] = "test"
    runs_at_once: Positive | None = None
    resume: bool = False


RUN, WORK, SWEEP = map(parameters, (RunSettings, WorkSettings, SweepSettings))
