"""The library's types: data, models, work, rounds and algorithms."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

import jax.numpy as jnp
import numpy as np
import optax
from jax import Array, named_scope

from fljax.shown import repr_with_shapes, with_choices

AnyArray = Array | np.ndarray
"""An array of JAX or NumPy: what a function takes that returns JAX's `Array`."""
Params = Any
"""One model's pytree: ``{layer name: subtree}``, plus ``"batch_stats"`` if the model keeps running statistics."""
Stacked = Any
"""The same pytree with a leading axis on every leaf: ``(clients, ...)`` or ``(clusters, ...)``."""
Key = Array
"""A typed JAX random key (``jax.random.key``)."""
Metrics = dict[str, Array]
"""A flat dict of metrics: ``()`` or ``(cohort,)`` for a round; with a leading axis over rounds for a run."""


class _ExampleFields(NamedTuple):
    x: Array  # (examples, ...): uint8 pixels (height, width, channels), float32 features, or int32 tokens
    y: Array  # (examples,) int32 classes; float32 (examples,) or (examples, outputs) regression targets, or 0s and 1s


class Examples(_ExampleFields):
    """A labelled set: ``Examples(x, y)``, of arrays of JAX or NumPy."""

    __slots__ = ()
    __repr__ = repr_with_shapes
    if TYPE_CHECKING:  # the constructor takes more than the fields' type says

        def __new__(cls, x: Array | np.ndarray, y: Array | np.ndarray) -> Self:  # noqa: D102
            ...


class Batch(NamedTuple):
    """A minibatch, ready for a model. Rows of weight 0 are padding and must not count."""

    x: Array  # (batch, ...) float32, or int32 tokens
    y: Array  # (batch,) int32, or float32 like the pool's y
    weight: Array  # (batch,) float32, 0 or 1 unless a method weights examples

    __repr__ = repr_with_shapes


class ClientData(NamedTuple):
    """One split of a federation: a pool with every example once, and each client's rows of it."""

    pool: Examples  # shared by all clients, never copied
    index: Array  # (clients, capacity) int32 row numbers in the pool, beyond `size` padding; or (1, capacity): of all
    size: Array  # (clients,) int32

    __repr__ = repr_with_shapes

    @property
    def n_clients(self) -> int:
        """Number of clients."""
        return self.size.shape[0]

    @property
    def is_common(self) -> bool:
        """Whether `index` has one row for all clients that have examples, as after `fljax.with_common_test`."""
        return self.index.shape[0] == 1 < self.n_clients

    def with_own_rows(self) -> Self:
        """The same split with a row of `index` for each client."""
        if not self.is_common:
            return self
        return self._replace(index=jnp.broadcast_to(self.index, (self.n_clients, self.index.shape[1])))


class Federation(NamedTuple):
    """A federation, as a partition returns it. Client i is row i of every split."""

    train: ClientData
    val: ClientData | None
    test: ClientData
    public: Examples | None  # unlabelled server data: its `y` is -1
    group: Array | None  # (clients,) int32 true group, if the partition has groups
    triggered: ClientData | None = None  # test examples with an attack's trigger, labelled as the attack wants
    there: Array | None = None  # (clients,) bool: who can participate; None: all
    stages: "Stages | None" = None  # changes over the rounds, see `fljax.drift`; the other fields are the first stage

    __repr__ = repr_with_shapes


class Rows(NamedTuple):
    """A split's rows in every stage of a changing federation; all stages share the split's pool."""

    index: Array  # (stages, clients, capacity) int32
    size: Array  # (stages, clients) int32

    __repr__ = repr_with_shapes


class Stages(NamedTuple):
    """A changing federation: a stage lasts from one change to the next; stage 0 is the first."""

    begins: Array  # (stages,) int32, ascending from 0: the first round of each, counted from 0
    train: Rows
    val: Rows | None
    test: Rows
    group: Array | None  # (stages, clients) int32
    there: Array  # (stages, clients) bool

    __repr__ = repr_with_shapes


class Halves(NamedTuple):
    """The halves of a probabilistic network: a body that outputs a Gaussian, a linear head on a sample z from it."""

    encode: Callable[[Params, Array], tuple[Array, Array]]  # (params, x) -> mu, sigma: (batch, latent) each
    classify: Callable[[Params, Array], Array]  # (params, z (..., latent)) -> logits (..., n_classes)
    latent: int


Description = tuple[tuple[str, Any], ...]
"""Static choices as plain data, ``((name, value), ...)``: hashable, printable, and part of a run's identity."""

ExampleLoss = Callable[[Array, Array], Array]
"""``(logits (batch, outputs), labels (batch,)) -> losses (batch,)``."""


class Model(NamedTuple):
    """A network as pure functions; static, hashable.

    ``apply(params, x, key)`` returns ``(logits, params)``. With ``key=None`` the model is in evaluation mode and the
    returned parameters are unchanged; with a key it is in training mode (dropout) and running statistics are updated.
    """

    init: Callable[[Key], Params]
    apply: Callable[[Params, Array, Key | None], tuple[Array, Params]]
    layers: tuple[str, ...]  # the top-level subtrees of Params with parameters, in forward order
    halves: Halves | None = None  # for a probabilistic network
    loss: ExampleLoss = optax.softmax_cross_entropy_with_integer_labels  # minimised in training, and used in tests
    about: Description = ()  # the network's own choices: its name, sizes and dtype
    n_networks: int = 1  # in its parameters, of which a client uses one, see `fljax.models.heterogeneous`

    def __repr__(self) -> str:
        choices = dict(self.about)
        name = choices.pop("network", "Model")
        return with_choices(str(name), choices or {"layers": self.layers})


class Work(NamedTuple):
    """A client's local work in a round; static."""

    epochs: int | None  # passes over the client's own examples; None: ``local_steps`` are given instead
    batch_size: int | None  # None: all of a client's examples in one step, B = infinity
    at_once: int | None = None  # clients trained side by side; None: the best number for the device
    optimizer: str | Callable[..., optax.GradientTransformation] = "sgd"  # see `fljax.client.optimizer`
    terms: tuple[Callable[..., Any], ...] = ()  # bricks' terms on the loss, see `fljax.rounds.local`
    drop_last: bool = False  # an epoch leaves out a last, smaller batch; clients without a whole batch take no step
    local_steps: int | None = None  # of every client that has a batch, instead of epochs; a pass may end halfway

    def for_epochs(self, epochs: int) -> "Work":
        """The same work for another number of epochs, also instead of local steps."""
        return self._replace(epochs=epochs, local_steps=None)


class Trained(NamedTuple):
    """The result of local training, one row per client."""

    params: Stacked  # (clients, ...)
    loss: Array  # (clients,) mean over the processed examples, at the parameters before each step
    ok: Array  # (clients,) bool; False: the result was not finite, `params` is the initial model and must not count

    __repr__ = repr_with_shapes


class Cohort(NamedTuple):
    """The participants of one round."""

    round: Array  # () int32
    ids: Array  # (cohort,) int32
    data: ClientData  # their rows; the pool is shared
    active: Array  # (cohort,) bool; False: dropped out, must not count
    public: Examples | None  # the server's own unlabelled data, for methods that use it
    key: Array  # (cohort,) keys from (run key, round, id): nothing depends on cohort order, chunks or devices
    val: ClientData | None = None  # their validation rows, if the federation has them
    expected: Array | float | None = None  # mean number of participants per round; None: the cohort's size
    n_missing: Array | None = None  # () int32, number of sampled clients that are absent; None: nobody waits for them
    effort: Array | None = None  # (cohort,) share of its local work that each client does, in (0, 1]; None: all
    candidates: Array | None = None  # (m,) int32 ids of the clients asked for their loss, -1: absent; None: nobody

    __repr__ = repr_with_shapes

    @property
    def n_clients(self) -> int:
        """Number of places: participants, those that dropped out, and empty places."""
        return self.ids.shape[0]


class State(NamedTuple):
    """A method's state between rounds."""

    server: Any  # no client axis, unless the paper's server keeps a table of clients
    clients: Any  # every leaf (clients, ...); () if the method keeps nothing per client

    __repr__ = repr_with_shapes


class Upload(NamedTuple):
    """The participants' messages in a round, between the clients' and the server's half."""

    start: "ModelTable"  # the part of a model that is sent, as each participant received it
    params: Stacked  # (cohort, ...) that part, trained
    weight: Array  # (cohort,) omega_i; 0: does not count
    rest: Any = ()  # other inputs of the server's half of the round

    __repr__ = repr_with_shapes


class Exchange(NamedTuple):
    """A round in two halves, so that bricks and attacks can change the participants' updates between them."""

    send: Callable[[Key, Any, State, Cohort], Upload]  # the clients' half
    receive: Callable[[Key, Any, State, Cohort, Upload], tuple[State, Metrics]]  # the server's half
    part: Callable[[Any], Params]  # the part of one model that is sent, in ``State.server``
    sees: Literal["mean", "sum", "each"] = "each"
    """The updates that the server needs to see: their mean, sums over groups of clients, or each of them."""
    starts_anywhere: bool = False
    """Whether `send` accepts one model per participant, see `fljax.rounds.averaging.ReceivedModels`."""
    catches_up: bool = False
    """Whether an update is relative to the server's copy of its client, so that the next update makes up for losses."""
    chain: tuple[Any, Any] | None = None
    """The method and the transform that `with_uplink` joined; None: no transform, or it is not the outermost."""

    def round(self, key: Key, hyper: Any, state: State, cohort: Cohort) -> tuple[State, Metrics]:
        """Both halves, as an `Algorithm.round`; in a profile they have their names."""
        with named_scope("send"):
            upload = self.send(key, hyper, state, cohort)
        with named_scope("receive"):
            return self.receive(key, hyper, state, cohort, upload)


class ModelTable(NamedTuple):
    """Models, and each client's row of them: client i holds row ``row[i]`` of ``params``.

    One shared model is one row, cluster models are K rows, personal models one row per client, so shared models are not
    copied per client. A leaf with one row belongs to all: with a shared body and personal heads, the body has one row
    and the head one row per client. `fljax.tree.stacked` returns every client's model.
    """

    params: Stacked  # (rows, ...), or (1, ...) for a leaf that all rows share
    row: Array  # (clients,) int32

    __repr__ = repr_with_shapes

    def part(self, name: str) -> "ModelTable":
        """The subtree ``name`` of every client's model."""
        return self._replace(params=self.params[name])


class About(NamedTuple):
    """An algorithm's name, static choices and hyperparameters, as plain data."""

    name: str = ""  # "fedprox", "fedavg+krum"
    choices: Description = ()  # its static choices, including defaults
    work: Work | None = None
    model: Description = ()
    numbers: tuple[str, ...] = ()  # names of its Hyper's fields; empty: unknown

    def __repr__(self) -> str:
        return with_choices(self.name, dict(self.choices))


class Algorithm(NamedTuple):
    """A method: pure functions that close over static choices only; hashable.

    ``init(key, hyper, data) -> State`` with the federation's training split;
    ``round(key, hyper, state, cohort) -> (State, Metrics)`` where ``state.clients`` holds the cohort's rows;
    ``deploy(key, hyper, state, data) -> ModelTable``, the models that clients are tested with; a client with row -1
    holds none and is not tested;
    ``predict(params, x) -> logits`` of one deployed model (one row), for examples as in a pool (uint8) or as in a batch
    (``pixels / 255``);
    ``join(key, hyper, state, data, n_rounds) -> ModelTable``, the models of new clients, from their own training data
    and at most ``n_rounds`` () rounds of local work, while the server stays fixed. None: new clients start from the
    initial values, go through that many rounds, and are deployed to like the others;
    ``loss(logits, labels) -> (batch,)``, the loss in tests;
    ``about``: name and static choices, set by `fljax.rounds.method`;
    ``exchange``: the round in two halves, if the method is written so; see `fljax.rounds.uplink`. Uplink bricks and
    attacks on updates need it, and refuse a method whose ``round`` is not that of its ``exchange``.

    A round's metrics are bool, integer or floating-point arrays, each () or (cohort,) in the cohort's order. Required
    are ``uplink`` and ``downlink``, the floats that a participant sends and receives, and ``loss``, its training loss.
    Optional are ``ok``, bool, False if a participant's result was not finite and was excluded (absent: all True),
    ``label``, the participants' clusters, and any others. For these five, a value () stands for every participant.
    Metrics that are missing or have another shape are refused by name before anything runs. ``ids``, ``active`` and the
    test's metrics, ``client_`` and so on, are reserved for fljax; a method that reports these names is refused.
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
        """``exchange`` if ``round`` is its `Exchange.round`; None if ``round`` has been replaced."""
        owner = getattr(self.round, "__self__", None)
        if self.exchange is None or not isinstance(owner, Exchange):
            return None
        is_unchanged = owner.send is self.exchange.send and owner.receive is self.exchange.receive
        return self.exchange if is_unchanged else None

    def __repr__(self) -> str:
        return repr(self.about) if self.about.name else f"Algorithm(of {self.round.__module__})"
