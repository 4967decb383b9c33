"""One client per person: the users in the data, or simulated writers with known styles."""

import numpy as np

from fljax.data.federation import build, on_host
from fljax.data.images import affine, gamma_curve, thicken
from fljax.data.partition.check import (
    check_clients,
    check_examples,
    check_groups,
    check_range,
    check_whole,
    generator,
    split_of,
)
from fljax.data.partition.deal import merge, own_pool, set_aside
from fljax.data.partition.uniform import log_normal_sizes
from fljax.data.users import UserExamples
from fljax.types import Examples, Federation


def natural(
    train: Examples | UserExamples,
    test: Examples | UserExamples,
    n_clients: int = 0,
    *,
    seed: int = 0,
    min_size: int = 5,
    val_fraction: float = 0.0,
    test_fraction: float = 0.2,
) -> Federation:
    """One client per user of the data; each user's train and test images are pooled and split again.

    Args:
        train: training examples with their users.
        test: test examples with their users.
        n_clients: number of users, chosen at random, in the order of their names; 0: all users.
        seed: same seed, same federation.
        min_size: users with fewer examples are left out (LEAF: 5).
        val_fraction: share of each client's examples for validation.
        test_fraction: share of each client's examples for test (FeSEM: 0.2).

    Raises:
        ValueError: the data names no users, or too few have ``min_size`` examples.
    """
    if not (isinstance(train, UserExamples) and isinstance(test, UserExamples)):
        raise ValueError(
            "the natural partition needs data with users, such as femnist or synthetic_1_1; this data set has none"
        )
    check_whole("min_size", min_size, 0)
    rng, split = generator(seed), split_of(val_fraction, test_fraction)
    user = np.concatenate([train.user, test.user])
    size = np.bincount(user, minlength=len(train.names))
    chosen = np.flatnonzero(size >= max(min_size, 1))
    if len(chosen) == 0:
        raise ValueError(f"min_size={min_size}: no user has so many examples; choose at most {size.max()}")
    check_whole("n_clients", n_clients, 0, len(chosen), ", the users")
    if n_clients:
        chosen = np.sort(rng.choice(chosen, n_clients, replace=False))
    rows = np.split(np.argsort(user, kind="stable"), np.cumsum(size)[:-1])
    pool, owned = merge(Examples(train.x, train.y), Examples(test.x, test.y)), [rows[i] for i in chosen]
    if size[chosen].sum() < len(user):
        pool, owned = own_pool(pool, owned)
    return build(pool, owned, split, seed)


def writers(
    train: Examples,
    test: Examples,
    n_clients: int,
    *,
    seed: int = 0,
    n_groups: int = 4,
    sigma: float = 0.5,
    min_size: int = 10,
    strength: float = 1.0,
    jitter: float = 0.15,
    n_public: int = 0,
    val_fraction: float = 0.0,
    test_fraction: float = 0.2,
) -> Federation:
    """A proxy for FEMNIST: real images in a simulated handwriting per client, with styles in a few hidden groups.

    A style is a rotation, a shear, a scale, a stroke thickness and a contrast. Across groups, each of the five takes
    evenly spaced levels in random order; a client's style is its group's plus a little noise. Train and test images are
    one pool, split among clients in log-normal sizes; no image has two owners. Meant for bright strokes on black, as in
    MNIST. Write "proxy" beside every result made with it.

    Args:
        train: first part of the pool, uint8.
        test: second part of the pool, uint8.
        n_clients: number of writers (FEMNIST has about 3,500).
        seed: same seed, same federation.
        n_groups: hidden groups of style, the true clusters; the first clients are group 0.
        sigma: standard deviation of the logarithm of a client's share.
        min_size: least number of examples per client.
        strength: 1: up to 45 degrees, shear 0.3, scale 0.8 to 1.25; 0: no group styles.
        jitter: standard deviation of a client's style about its group's, where groups go from -1 to 1 at strength 1.
        n_public: number of test images for the server instead, without labels and not rewritten.
        val_fraction: share of each client's examples for validation.
        test_fraction: share of each client's examples for test.
    """
    check_examples(train, test)
    if train.x.dtype != np.uint8:
        raise ValueError(f"x has dtype {train.x.dtype}; writers needs uint8 images")
    check_clients(n_clients, len(train.y) + len(test.y))
    check_groups(n_groups, n_clients)
    check_range("strength", strength, 0, 2)
    check_range("jitter", jitter, 0, 1)
    rng, split = generator(seed), split_of(val_fraction, test_fraction)
    test, public = set_aside(test, n_public, seed)
    merged = merge(train, test)
    size = log_normal_sizes(rng, len(merged.y), n_clients, sigma, min_size)
    pool, owned = own_pool(merged, np.split(rng.permutation(len(merged.y)), np.cumsum(size)[:-1]))
    group = np.arange(n_clients) * n_groups // n_clients
    levels = np.linspace(-1, 1, n_groups) if n_groups > 1 else np.zeros(1)
    style = strength * np.stack([rng.permutation(levels) for _ in range(5)], axis=1)[group]
    style = np.clip(style + jitter * rng.standard_normal(style.shape), -2, 2)
    x = np.asarray(pool.x)
    for rows, client_style in zip(owned, style, strict=True):
        x[rows] = rewrite(x[rows], client_style)
    return build(on_host(x, pool.y), owned, split, seed, group=group, public=public)


def rewrite(x: np.ndarray, style: np.ndarray) -> np.ndarray:
    """uint8 images in a style: ``style`` = (rotation, shear, scale, thickness, contrast), each about -1 to 1."""
    angle, shear, scale, thickness, contrast = style
    turn = np.deg2rad(45 * angle)
    rotation = np.array([[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]])
    slant = np.array([[1.0, 0.0], [0.3 * shear, 1.0]])
    written = affine(x, rotation @ slant / np.exp(0.22 * scale))
    return gamma_curve(thicken(written, float(np.clip(0.5 * thickness, -0.6, 0.8))), float(np.exp(0.6 * contrast)))
