"""HeteroFL: clients train parts of the server's network, of a width that fits each client.

Diao, Ding, Tarokh: HeteroFL: Computation and Communication Efficient Federated Learning for Heterogeneous Clients,
ICLR 2021, https://openreview.net/forum?id=TNkPBBYFkXg.
Official code: https://github.com/dem123456789/HeteroFL-Computation-and-Communication-Efficient-Federated-Learning-for-Heterogeneous-Clients.

::

    w_i      <- the first ceil(r_i n) of the n units of each layer of theta, and all outputs of the last layer
    w_i      <- local steps, with hidden layers divided by r_i during training (the scaler)
    theta_c  <- mean of coordinate c over the clients that have it; unchanged if no client has it

A narrow network equals the wide one with its other units at 0: clients of all widths train in one program, and each
takes the time of the widest. Only the traffic reflects the smaller widths.

Differences from the paper: networks have no normalisation, so no statistics are gathered before a test (sBN); clients
are weighted by size by default, not equally; tests use the logits of all classes, and so do losses unless
``masked_loss`` is set, as in the official code.
"""

from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fljax import tree
from fljax.client.objectives import training_loss
from fljax.data.federation import class_histogram
from fljax.numbers import LocalHyper
from fljax.rounds import Combining, Weighting, averaging, check_not_private, client_weight, mean, method, traffic, train
from fljax.rounds.accounting import not_independent
from fljax.rounds.averaging import shared_part
from fljax.rounds.cohort import keys_for
from fljax.types import Algorithm, Batch, ClientData, Cohort, Key, Model, ModelTable, Params, State, Trained, Work

DRAW = 2**31
"""Folded into a participant's key to draw its width."""


@method(LocalHyper, "Diao et al., ICLR 2021", "https://openreview.net/forum?id=TNkPBBYFkXg")
def heterofl(
    model: Model,
    work: Work,
    *,
    rates: tuple[float, ...] = (1.0, 0.5, 0.25),
    assignment: Literal["fixed", "dynamic"] = "fixed",
    units: Literal["first", "rolling"] = "first",
    scaler: bool = True,
    masked_loss: bool = False,
    deployed: Literal["global", "own"] = "global",
    weighting: Weighting = "size",
    combine: Combining = mean,
) -> Algorithm:
    """HeteroFL: ``theta_c <- sum_i m_ic omega_i w_ic / sum_i m_ic omega_i``, m_ic = 1 where client i has coordinate c.

    Args:
        model: dense and convolutional layers one after another, without normalisation.
        rates: shares r of each layer's units that clients have; a rate that appears twice has twice as many clients.
        assignment: "fixed": client i has rate i modulo the number of rates; "dynamic": each participant draws a rate in
            every round.
        units: the units that a rate selects. "first": the first units; "rolling": units from the round number on,
            cyclically, so that all are trained equally often (FedRolex: Alam et al., NeurIPS 2022).
        scaler: whether hidden layers are divided by r during training, so that outputs keep their scale. With small r
            this needs clipped gradients: `heterofl+clip_gradient`, with a norm of 1 in the official code.
        masked_loss: whether the logits of classes without examples of the client are 0 in its loss, and the outputs of
            these classes are averaged over the other clients only.
        deployed: "global": clients are tested with the whole network; "own": with the part that they train.
        combine: how the server combines the models; their mean is, per coordinate, the mean over its holders.
    """
    if not rates or not all(0 < rate <= 1 for rate in rates):
        raise ValueError(f"rates={rates}: give at least one share of a layer's units, each in (0, 1]")
    if masked_loss:
        check_not_private(work, "with masked_loss=True outputs depend on clients' label counts, which get no noise")
    if deployed == "own" and (assignment, units) != ("fixed", "first"):
        choices = f"assignment={assignment!r}, units={units!r}"
        raise ValueError(f"deployed='own': with {choices} clients have no fixed part of their own; use 'global'")
    cut, share, base_loss = Cut(model, rates), jnp.asarray(rates, jnp.float32), training_loss(model)

    def level_of(cohort: Cohort) -> Array:
        """(cohort,) index of each participant's rate."""
        if assignment == "fixed":
            return cohort.ids % len(rates)
        return jax.vmap(lambda key: jax.random.randint(key, (), 0, len(rates), jnp.int32))(keys_for(cohort, DRAW))

    def loss(params: Params, batch: Batch, key: Key, mask: Params, divisor: Array) -> tuple[Array, Params]:
        part = cut.narrowed(params, mask, divisor if scaler else None)
        return base_loss(part, batch, key)[0], params

    def local(hyper: LocalHyper, theta: ModelTable, cohort: Cohort) -> Trained:
        level, classes = level_of(cohort), jnp.ones((cohort.n_clients, cut.n_outputs), bool)
        begin = jnp.broadcast_to(cohort.round if units == "rolling" else 0, level.shape)
        if masked_loss:  # without its weights, an output's logit is 0
            classes = class_histogram(cohort.data, cut.n_outputs) > 0
        mask = jax.vmap(cut.part)(level, begin, classes)
        trained = train(hyper, theta, cohort, loss, work, mask, share[level])
        omega = client_weight(weighting, cohort, trained.ok)

        def of_holders(w: Array, t: Array, mask: Array) -> Array:
            """Models whose mean over all clients is, per coordinate, the mean of ``w`` over its holders."""
            holders = jnp.where(mask, tree.along(omega, mask), 0).sum(0, keepdims=True)
            scale = jnp.where(holders > 0, omega.sum() / jnp.maximum(holders, 1e-12), 0)
            step = tree.at_least_float32(w - t)
            return t + jnp.where(mask, step * scale.astype(step.dtype), 0).astype(w.dtype)

        return trained._replace(params=jax.tree.map(of_holders, trained.params, theta.params, mask))

    def n_held(cohort: Cohort) -> Array:
        """(cohort,) number of coordinates that each participant has."""
        mask = jax.vmap(cut.part)(level_of(cohort))
        return jnp.stack([leaf.sum(tuple(range(1, leaf.ndim))) for leaf in jax.tree.leaves(mask)]).sum(0)

    rounds = averaging(
        model, local, weighting=weighting, combine=combine, metrics=lambda _, cohort: traffic(n_held(cohort))
    )

    def deploy(key: Key, hyper: Any, state: State, data: ClientData) -> ModelTable:
        theta = shared_part(state.server)
        parts = jax.vmap(lambda level: cut.narrowed(theta, cut.part(level)))(jnp.arange(len(rates)))
        return ModelTable(parts, jnp.arange(data.n_clients) % len(rates))

    return not_independent(rounds._replace(deploy=deploy) if deployed == "own" else rounds)


class Cut:
    """The parts of a network given by some units of each layer, by level: the index of a rate."""

    def __init__(self, model: Model, rates: tuple[float, ...]) -> None:
        self.layers, self.shapes = model.layers, jax.eval_shape(model.init, jax.random.key(0))
        _check_chain(self.layers, self.shapes)
        self.n_outputs = self.shapes[self.layers[-1]]["kernel"].shape[-1]
        widths = {name: self.shapes[name]["kernel"].shape[-1] for name in self.layers[:-1]}
        # A product that exceeds a whole number by a rounding error is taken as that number.
        self.units = {name: np.ceil(np.asarray(rates) * n - 1e-6).astype(np.int32) for name, n in widths.items()}

    def part(self, level: Array, begin: Array | int = 0, outputs: Array | None = None) -> Params:
        """The coordinates that a client of a level has, bool.

        Args:
            level: () the index of its rate.
            begin: () its first unit in each layer.
            outputs: (n_outputs,) bool: outputs of the last layer that it has; None: all.
        """
        part, inputs = {}, None
        for name in self.layers:
            kernel = self.shapes[name]["kernel"].shape
            if name == self.layers[-1]:
                mask = jnp.ones(self.n_outputs, bool) if outputs is None else outputs
            else:
                mask = (jnp.arange(kernel[-1]) - begin) % kernel[-1] < jnp.asarray(self.units[name])[level]
            # After a convolution, a dense layer's inputs are the channels of one pixel after another.
            input_mask = jnp.ones(kernel[-2], bool) if inputs is None else jnp.tile(inputs, kernel[-2] // inputs.size)
            part[name] = {"kernel": jnp.broadcast_to(input_mask[:, None] & mask[None], kernel), "bias": mask}
            part[name] = {leaf: part[name][leaf] for leaf in self.shapes[name]}
            inputs = mask
        return part

    def narrowed(self, params: Params, mask: Params, divisor: Array | None = None) -> Params:
        """The part of ``params`` that a client has, other coordinates 0; hidden layers divided by ``divisor``."""
        part = jax.tree.map(lambda mask, w: jnp.where(mask, w, 0), mask, params)
        if divisor is None:
            return part
        hidden = {name: part[name] for name in self.layers[:-1]}
        return part | jax.tree.map(lambda w: (w / divisor).astype(w.dtype), hidden)


def _check_chain(layers: tuple[str, ...], shapes: Params) -> None:
    """Raises ValueError if a network is not a chain of dense and convolutional layers."""
    n_inputs = 1
    for name in dict.fromkeys((*layers, *shapes)):
        part = shapes[name]
        is_layer = name in layers and isinstance(part, dict) and {"kernel"} <= part.keys() <= {"kernel", "bias"}
        if not is_layer or part["kernel"].ndim < 2 or part["kernel"].shape[-2] % n_inputs:
            raise ValueError(
                f"heterofl needs a chain of dense and convolutional layers, and {name!r} is not such a layer; choose "
                "mlp, cnn or lenet, or a network without normalisation"
            )
        n_inputs = part["kernel"].shape[-1]
