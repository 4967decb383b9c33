"""What is read off signatures and docstrings."""

import inspect
from collections.abc import Callable
from typing import Literal, NamedTuple

import jax.numpy as jnp
import pytest
from fljax.cli.parameters import REQUIRED, description, kind_name, parameters, settable
from jax import Array
from jax.typing import DTypeLike

from fljax.algorithms import ALGORITHMS
from fljax.cli.assemble import make_algorithm
from fljax.cli.job import algorithm_section, model_section, partition_section
from fljax.data.partition import PARTITIONS
from fljax.models import MODELS, lenet, resnet18, variational_cnn
from fljax.types import Work


class Numbers(NamedTuple):
    """Numbers.

    lr: learning rate, > 0. The paper
        has 0.1.
    mu: weight.
    """

    lr: Array | float = 0.5
    mu: Array | float | None = None


class SameNumbers(Numbers):
    """Those of another."""


def example(data: Array, n: int, *, band: Literal["low", "high"] = "low", hook: Callable | None = None):
    """Does something. ``band`` is one
    of two. Then ends.
    """


@pytest.mark.parametrize(
    ("annotation", "kind"),
    [
        (Array | float, float),
        (Array | float | None, float | None),
        (tuple[int, ...], tuple[int, ...]),
        (Array, None),
        (Callable | None, None),
        (tuple[Array, int], None),
        (DTypeLike, str),
    ],
)
def test_the_written_part_of_a_type(annotation, kind):
    assert settable(annotation) == kind


def test_fields_and_parameters():
    assert parameters(Numbers)["lr"] == (float, 0.5, "learning rate, > 0. The paper has 0.1")
    assert parameters(Numbers)["mu"] == (float | None, None, "weight")
    assert parameters(SameNumbers) == parameters(Numbers)
    section = parameters(example, leave_out=("data",))
    assert list(section) == ["n", "band"]
    assert section["n"].default is REQUIRED
    assert section["band"].help == "one of two"
    assert kind_name(section["band"].kind) == "'low' | 'high'"
    assert description("", "n") == ""


def test_a_dtype_is_written_by_its_name():
    def network(dtype: DTypeLike = jnp.float32):
        """Nothing."""

    assert parameters(network)["dtype"] == (str, "float32", "")


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_number_of_a_method_can_be_set_and_is_explained(name):
    section, hyper = algorithm_section(name), ALGORITHMS[name].hyper
    assert set(hyper._fields) <= set(section)
    assert set(Work._fields) <= set(section)
    assert all(section[field].help for field in hyper._fields)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_methods_are_made_from_their_defaults(name):
    values = {field: parameter.default for field, parameter in algorithm_section(name).items()} | {"epochs": 1}
    needs = {"fedbn": resnet18, "fedsr": variational_cnn, "fedsr_ft": variational_cnn, "fedcr": variational_cnn}
    model = needs.get(name, lenet)((32, 32, 3), 10)
    algorithm, hyper = make_algorithm(name, {name: values}, model)
    assert hyper == ALGORITHMS[name].hyper()
    assert callable(algorithm.round)


@pytest.mark.parametrize("name", PARTITIONS)
def test_every_parameter_of_a_partition_is_explained(name):
    section = partition_section(name)
    assert "n_clients" in section
    assert all(parameter.help for parameter in section.values())


@pytest.mark.parametrize("name", MODELS)
def test_a_network_has_its_shape_from_the_data(name):
    assert not {"input_shape", "n_classes"} & set(model_section(name))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_methods_have_a_summary_and_a_paper(name):
    method = ALGORITHMS[name]
    assert method.title
    assert method.summary
    assert method.paper
    assert method.link in (inspect.getmodule(method.factory.__wrapped__).__doc__ or "")
