"""Which layers are shared with whom: a model's layers cut into roles."""

from typing import Literal, NamedTuple

LayerSharing = Literal["shared_base", "personal_layers", "none"]


class Roles(NamedTuple):
    """Layer names by who shares them, in forward order."""

    base: tuple[str, ...]  # shared by everyone
    middle: tuple[str, ...]  # shared inside a cluster
    personal: tuple[str, ...]  # the client's own, never sent


def layer_roles(layers: tuple[str, ...], sharing: LayerSharing, n_middle: int | None, n_personal: int | None) -> Roles:
    """The last ``n_personal`` layers are personal, the ``n_middle`` before them are the cluster's, the rest is base.

    In every mode each cluster has at least one layer of its own; otherwise all cluster models would be equal, and the
    choice between them a tie.

    Args:
        layers: of the model, in forward order.
        sharing: "shared_base": no personal layers, by default 2 middle layers (1 in a network of 2 layers);
            "personal_layers": by default 1 of each; "none": all layers are the cluster's.
        n_middle: at least 1; None: the default of ``sharing``. "none" leaves no choice.
        n_personal: at least 1 for "personal_layers", otherwise 0; None: the default of ``sharing``.

    Raises:
        ValueError: ``sharing`` does not allow a number, or the numbers do not fit the network.
    """
    n_layers = len(layers)
    least_personal = int(sharing == "personal_layers")
    most_personal = n_layers - 1 if sharing == "personal_layers" else 0
    if least_personal > most_personal:
        raise ValueError(
            f"sharing='personal_layers' needs at least 2 layers, the network has {n_layers}; choose 'none'"
        )
    personal = least_personal if n_personal is None else n_personal
    _check("n_personal", personal, least_personal, most_personal, sharing, n_layers)
    most_middle = n_layers - personal
    least_middle = n_layers if sharing == "none" else 1
    default = {"shared_base": max(1, min(2, n_layers - 1)), "personal_layers": 1, "none": n_layers}[sharing]
    middle = default if n_middle is None else n_middle
    _check("n_middle", middle, least_middle, most_middle, sharing, n_layers)
    n_base = n_layers - middle - personal
    return Roles(layers[:n_base], layers[n_base : n_base + middle], layers[n_base + middle :])


def _check(field: str, number: int, least: int, most: int, sharing: LayerSharing, n_layers: int) -> None:
    if not least <= number <= most:
        allowed = f"{least}" if least == most else f"{least} to {most}"
        raise ValueError(
            f"{field}={number} does not fit sharing={sharing!r} in a network of {n_layers} layers; choose {allowed}"
        )
