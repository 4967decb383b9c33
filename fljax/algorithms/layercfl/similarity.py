"""Similarities between clients from the weights or updates of selected layers: the measures that LayerCFL compares.

A measure compares weights or updates of local training, of the whole model or of selected layers, by cosine or by L2
distance. Distances are negated, so that larger always means more similar.
"""

from collections.abc import Mapping
from typing import Literal, get_args

from jax import Array

from fljax.server.distance import pairwise_cosine, pairwise_l2
from fljax.server.separation import separation_gap
from fljax.types import Metrics, Model, Stacked

Compared = Literal["cos_update_full", "l2_weight_part", "l2_update_part", "cos_weight_part", "cos_update_part"]
"""CFL, AdaCFL, two intermediate measures, and LayerCFL: equations 6 and 23 to 26 of Yuan et al., Cybersecurity 2023."""

Other = Literal["l2_weight_full", "cos_weight_full", "l2_update_full"]
"""Measures of the whole model, defined there (equations 5, 7 and 8) but not among the five compared ones."""

Measure = Literal[Compared, Other]
"""``part``: the selected layers; ``full``: the whole model."""

MEASURES: tuple[Compared, ...] = get_args(Compared)
OTHERS: tuple[Other, ...] = get_args(Other)

CONVOLUTION = 4
"""The convolution (counted from 1) that LayerCFL compares under feature skew: VGG16's conv2_2."""


def similarity(
    measure: Measure, weights: Stacked, updates: Stacked, layers: tuple[str, ...], where: Array | None = None
) -> Array:
    """Pairwise similarity of clients by a `Measure`; ``l2_`` measures are negated distances.

    Args:
        measure: its name; a "full" measure ignores ``layers``.
        weights: (clients, ...) models after local training.
        updates: (clients, ...) changes of the models in local training.
        layers: names of the layers to compare.
        where: (clients,) bool, the clients that count.

    Returns:
        (clients, clients).
    """
    compared = updates if "update" in measure else weights
    selected = None if measure.endswith("full") else layers
    if measure.startswith("cos"):
        return pairwise_cosine(compared, where, selected)
    return -pairwise_l2(compared, where, selected)


def gaps(
    model: Model, weights: Stacked, updates: Stacked, layers: tuple[str, ...], group: Array, where: Array
) -> Metrics:
    """Separation gaps with respect to the true ``group``, as metrics: positive exactly when a right split exists.

    ``gap_<measure>`` is the gap of a measure on the selected ``layers``, ``gap_<layer>`` that of the cosine of updates
    in one layer. +inf if there are no pairs within, or none across, the groups.
    """
    of_measure = {name: similarity(name, weights, updates, layers, where) for name in MEASURES}
    of_layer = {name: pairwise_cosine(updates, where, (name,)) for name in model.layers}
    return {f"gap_{name}": separation_gap(alpha, group, where) for name, alpha in (of_measure | of_layer).items()}


def chosen_layers(model: Model, layers: str | tuple[str, ...]) -> tuple[str, ...]:
    """The layers to compare: by kind of skew, or by name.

    ``layers`` is "feature" (feature skew: the fourth convolution, or the last if there are fewer), "label" (label
    skew: the first dense layer), "dense" (all dense layers, as AdaCFL), "all", or layer names.

    Raises:
        ValueError: the model does not have such a layer.
    """
    if isinstance(layers, tuple):
        return _named_layers(model, layers)
    convolutions = tuple(name for name in model.layers if name.startswith("conv"))
    dense = tuple(name for name in model.layers if name.startswith("fc"))
    groups = {"feature": convolutions[:CONVOLUTION][-1:], "label": dense[:1], "dense": dense, "all": model.layers}
    chosen = groups.get(layers, _named_layers(model, (layers,)) if layers not in groups else ())
    if not chosen:
        prefix = "'conv'" if layers == "feature" else "'fc'"
        raise ValueError(
            f"layers={layers!r} selects layers whose names begin with {prefix}, but the model has {model.layers}; "
            "choose 'all' or layer names"
        )
    return chosen


def layers_by_pilot(model: Model, gap: Mapping[str, float]) -> tuple[str, ...]:
    """The layers to compare according to a pilot: the layer with the widest separation gap, or all layers (CFL).

    The gaps of layers and of ``cos_update_full`` are all gaps of cosines of updates, so they can be compared; gaps of
    distances or of weights are on other scales and are not used.

    Args:
        model: the network of the pilot.
        gap: result of `fljax.run.pilot.layer_gaps`: separation gap by layer and measure.

    Returns:
        The name of the layer with the widest gap (the first in a tie); all layers if no gap is positive, or if the
        whole model's gap is wider.

    Raises:
        ValueError: a layer, or ``cos_update_full``, has no gap.
    """
    if missing := [name for name in (*model.layers, "cos_update_full") if name not in gap]:
        raise ValueError(f"gap has no entry for {missing}, only for {tuple(gap)}; give layer_gaps of the same model")
    best = max(model.layers, key=lambda name: gap[name])
    return (best,) if gap[best] > 0 and gap[best] >= gap["cos_update_full"] else model.layers


def check_group(group: tuple[int, ...] | None, n_clients: int) -> None:
    """Raises ValueError unless there is one true group per client, or None."""
    if group is not None and len(group) != n_clients:
        raise ValueError(
            f"group has {len(group)} entries but the data has {n_clients} clients; give one entry per client"
        )


def _named_layers(model: Model, layers: tuple[str, ...]) -> tuple[str, ...]:
    if not layers or not set(layers) <= set(model.layers):
        keywords = "'feature', 'label', 'dense', 'all'"
        raise ValueError(f"layers={layers} are not in the model; choose {keywords} or names from {model.layers}")
    return layers
