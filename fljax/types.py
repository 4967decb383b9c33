"""The nouns of the library: what data, models, work, rounds and algorithms are."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import optax
from jax import Array, named_scope

Params = Any
"""One model's pytree: ``{layer name: subtree}``, plus ``"batch_stats"`` where a model keeps running statistics."""
Stacked = Any
"""The same pytree with a leading axis on every leaf: ``(clients, ...)`` or ``(clusters, ...)``."""
Key = Array
"""A typed JAX random key (``jax.random.key``)."""
Metrics = dict[str, Array]
"""Flat; of a round: ``()`` or ``(cohort,)``, of a run: with a leading axis over rounds."""


def _by_shape(self: Any) -> str:
    """What is shown of arrays of data: their types and shapes, as "x=float32[120,6]"; what is None is left out."""

    def shown(value: Any) -> str:
        return f"{value.dtype}{[*value.shape]}".replace(" ", "") if hasattr(value, "dtype") else repr(value)

    fields = (f"{name}={shown(value)}" for name, value in self._asdict().items() if value is not None)
    return f"{type(self).__name__}({', '.join(fields)})"


class Examples(NamedTuple):
    """A labelled set."""

    x: Array  # (examples, ...): uint8 pixels (height, width, channels), float32 features, or int32 tokens
    y: Array  # (examples,) int32 classes; float32 (examples,) or (examples, outputs) to regress on, or 0s and 1s

    __repr__ = _by_shape


class Batch(NamedTuple):
    """A minibatch, ready for a model. Rows of weight 0 fill the shape and must not count."""

    x: Array  # (batch, ...) float32, or int32 tokens
    y: Array  # (batch,) int32, or float32 as in the pool
    weight: Array  # (batch,) float32, 0 or 1 unless a method weights examples

    __repr__ = _by_shape


class ClientData(NamedTuple):
    """One split of a federation: every example once, and which rows belong to whom."""

    pool: Examples  # shared by all clients, never copied
    index: Array  # (clients, capacity) int32 rows of the pool; past `size` they are ignored
    size: Array  # (clients,) int32

    __repr__ = _by_shape

    @property
    def n_clients(self) -> int:
        """Clients that there are rows for."""
        return self.size.shape[0]


class Federation(NamedTuple):
    """What a partition returns. Client i is row i of every split."""

    train: ClientData
    val: ClientData | None
    test: ClientData
    public: Examples | None  # unlabelled server data: its `y` is -1
    group: Array | None  # (clients,) int32 true group, where the partition has one
    triggered: ClientData | None = None  # test examples with an attack's trigger, labelled as the attack wants
    there: Array | None = None  # (clients,) bool: who can take part and is tested; None: all
    stages: "Stages | None" = None  # how it changes over the rounds, see `fljax.drift`; the rest is how it begins

    __repr__ = _by_shape


class Rows(NamedTuple):
    """A split's tables at every stage of a federation that changes; all stages share the split's pool."""

    index: Array  # (stages, clients, capacity) int32
    size: Array  # (stages, clients) int32

    __repr__ = _by_shape


class Stages(NamedTuple):
    """A federation from one change to the next; stage 0 is how it begins."""

    begins: Array  # (stages,) int32, ascending from 0: the first round of each, counted from 0
    train: Rows
    val: Rows | None
    test: Rows
    group: Array | None  # (stages, clients) int32
    there: Array  # (stages, clients) bool

    __repr__ = _by_shape


class Halves(NamedTuple):
    """The halves of a probabilistic network: a body that outputs a Gaussian, a linear head on a draw z from it."""

    encode: Callable[[Params, Array], tuple[Array, Array]]  # (params, x) -> mu, sigma: (batch, latent) each
    classify: Callable[[Params, Array], Array]  # (params, z (..., latent)) -> logits (..., n_classes)
    latent: int


Description = tuple[tuple[str, Any], ...]
"""Static choices as plain data, ``((name, value), ...)``: hashable, printable, and what a run's identity is made of."""

ExampleLoss = Callable[[Array, Array], Array]
"""``(logits (batch, outputs), labels (batch,)) -> losses (batch,)``."""


class Model(NamedTuple):
    """A network as pure functions; static, hashable.

    ``apply(params, x, key)`` returns ``(logits, params)``. With ``key=None`` the model is in evaluation mode and the
    parameters come back unchanged; with a key it is in training mode (dropout) and running statistics are updated.
    """

    init: Callable[[Key], Params]
    apply: Callable[[Params, Array, Key | None], tuple[Array, Params]]
    layers: tuple[str, ...]  # the weighted top-level subtrees of Params in forward order
    halves: Halves | None = None  # of a probabilistic network
    loss: ExampleLoss = optax.softmax_cross_entropy_with_integer_labels  # what clients minimise and are tested by
    about: Description = ()  # the network's own choices: its name, sizes and dtype


class Work(NamedTuple):
    """How much a client does in a round; static."""

    epochs: int
    batch_size: int | None  # None: all of a client's examples in one step, B = infinity
    at_once: int | None = None  # clients trained at once; None: the backend's best
    optimizer: str | Callable[..., optax.GradientTransformation] = "sgd"  # see `fljax.client.optimizer`
    terms: tuple[Callable[..., Any], ...] = ()  # what bricks add to the loss, see `fljax.rounds.local`


class Trained(NamedTuple):
    """What local training returns, a row per client."""

    params: Stacked  # (clients, ...)
    loss: Array  # (clients,) mean over the examples processed, at the parameters each batch was met with
    ok: Array  # (clients,) bool; False: the result was not finite, `params` is the start and must not count


class Cohort(NamedTuple):
    """The participants of one round."""

    round: Array  # () int32
    ids: Array  # (cohort,) int32
    data: ClientData  # their rows; the pool is shared
    active: Array  # (cohort,) bool; False: dropped out, must not count
    public: Examples | None  # the server's own unlabelled data, for the methods that use it
    key: Array  # (cohort,) keys from (run key, round, id): nothing depends on cohort order, chunks or devices
    val: ClientData | None = None  # their validation rows, where the federation has such a split
    expected: Array | float | None = None  # participants of a round on average; None: as many as there are places
    n_missing: Array | None = None  # () int32, who was asked and is not there; None: nobody waits for them
    effort: Array | None = None  # (cohort,) share of its local work that each does, in (0, 1]; None: all of it


class State(NamedTuple):
    """What a method carries from round to round."""

    server: Any  # no client axis, unless the paper's server keeps a table of clients
    clients: Any  # every leaf (clients, ...); () where the method keeps nothing per client


class Upload(NamedTuple):
    """What the participants of a round send: the middle of it, between clients and server."""

    start: "ModelTable"  # the part of a model that travels, as each participant received it
    params: Stacked  # (cohort, ...) that part, trained
    weight: Array  # (cohort,) omega_i; 0: does not count
    rest: Any = ()  # what else the server's half of the round needs


class Exchange(NamedTuple):
    """A round in two halves, so that something can happen to the participants' updates between them."""

    send: Callable[[Key, Any, State, Cohort], Upload]  # what clients do
    receive: Callable[[Key, Any, State, Cohort, Upload], tuple[State, Metrics]]  # what the server does
    part: Callable[[Any], Params]  # the part of one model that travels, in ``State.server``
    sees: Literal["mean", "sum", "each"] = "each"
    """What the server needs to know of the updates: one mean of all, sums of groups of clients, or each of them."""
    starts_anywhere: bool = False  # whether `send` takes a model a participant, see `fljax.rounds.averaging.Each`
    catches_up: bool = False
    """Whether an update is from what the server has of its client, so that what one loses comes in the next."""
    chain: tuple[Any, Any] | None = None
    """The method and the transform that `with_uplink` has joined; None: no transform, or something else is outside."""

    def round(self, key: Key, hyper: Any, state: State, cohort: Cohort) -> tuple[State, Metrics]:
        """Both halves, by their names in a profile: an `Algorithm.round`."""
        with named_scope("send"):
            upload = self.send(key, hyper, state, cohort)
        with named_scope("receive"):
            return self.receive(key, hyper, state, cohort, upload)


class ModelTable(NamedTuple):
    """Models, and which of them each client holds: client i holds row ``row[i]`` of ``params``.

    One shared model is one row, cluster models are K rows, personal models a row per client, so nothing is copied once
    per client. A leaf with one row belongs to all: a shared body and personal heads are one body and a head per client.
    `fljax.tree.stacked` gives every client's model.
    """

    params: Stacked  # (rows, ...), or (1, ...) where a leaf is the same for all
    row: Array  # (clients,) int32


class About(NamedTuple):
    """What an algorithm knows of itself, as plain data."""

    name: str = ""  # "fedprox", "fedavg+krum"
    choices: Description = ()  # the static choices that it was made with, defaults included
    work: Work | None = None
    model: Description = ()
    numbers: tuple[str, ...] = ()  # the names of its Hyper's fields; empty: not known

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(f'{name}={value!r}' for name, value in self.choices)})"


class Algorithm(NamedTuple):
    """A method: pure functions that close over static choices only; hashable.

    ``init(key, hyper, data) -> State`` with the federation's training split;
    ``round(key, hyper, state, cohort) -> (State, Metrics)`` where ``state.clients`` holds the cohort's rows;
    ``deploy(key, hyper, state, data) -> ModelTable``, the models that clients are tested with; a client with a row of
    -1 holds none and is not tested;
    ``predict(params, x) -> logits`` of one deployed model (one row of them), of examples as they are in a pool (uint8)
    or in a batch (``pixels / 255``);
    ``join(key, hyper, state, data, n_rounds) -> ModelTable``, the models of clients that never took part, from their
    own training data and at most ``n_rounds`` () rounds of their own work, while the server stays as it is. None: they
    start as all clients do, go through so many rounds, and are deployed to like the others;
    ``loss(logits, labels) -> (batch,)``, what clients are tested by;
    ``about``: name and static choices, set by `fljax.rounds.method`;
    ``exchange``: the round in two halves, where the method is written so; see `fljax.rounds.uplink`. Bricks on the way
    and attacks on updates need it, and refuse a method whose ``round`` is not that of its ``exchange``.

    A round's metrics are numbers or arrays, each () or (cohort,) in the cohort's order, of bool, whole or
    floating-point numbers. It must give ``uplink`` and ``downlink``, the floats that a participant sends and receives,
    and ``loss``, its training loss. It may give ``ok``, bool, False where a participant's result was not finite and
    was left out (absent: all True), ``label``, the participants' clusters, and any others. One value () of these five
    stands for every participant. What is missing or of another shape is refused by name before anything runs. ``ids``,
    ``active`` and the test's metrics, ``client_`` and so on, are fljax's own; a method's of these names are refused.
    """

    init: Callable[[Key, Any, ClientData], State]
    round: Callable[[Key, Any, State, Cohort], tuple[State, Metrics]]
    deploy: Callable[[Key, Any, State, ClientData], ModelTable]
    predict: Callable[[Params, Array], Array]
    join: Callable[[Key, Any, State, ClientData, Array], ModelTable] | None = None
    loss: ExampleLoss = optax.softmax_cross_entropy_with_integer_labels
    about: About = About()
    exchange: Exchange | None = None

    @property
    def round_exchange(self) -> Exchange | None:
        """``exchange`` where ``round`` is made of it; None where a round of another make has been put in."""
        made_of = getattr(self.round, "__self__", None)
        if self.exchange is None or not isinstance(made_of, Exchange):
            return None
        is_its_own = made_of.send is self.exchange.send and made_of.receive is self.exchange.receive
        return self.exchange if is_its_own else None

    def __repr__(self) -> str:
        return repr(self.about) if self.about.name else f"Algorithm(of {self.round.__module__})"
