"""Volumes of communication against programs whose volume is known."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

import fljax
from fljax import tree
from fljax.data.synthetic import linear_groups
from fljax.devices.collectives import Collective, collectives, sent
from fljax.devices.mesh import device_mesh
from fljax.models import mlp
from fljax.run.one_round import as_traced, run_round

SHARDED, WHOLE = PartitionSpec("clients"), PartitionSpec()


@pytest.fixture(scope="module")
def compiled():
    """A program of known exchanges on two devices: (10, 4) floats a device."""

    def device(x):
        def step(i, x):
            return x + lax.psum(x, "clients")

        x = lax.fori_loop(0, 3, step, x)
        return lax.all_gather(x, "clients", tiled=True), lax.psum_scatter(x, "clients", tiled=True)

    mesh = device_mesh()
    mapped = jax.shard_map(device, mesh=mesh, in_specs=SHARDED, out_specs=(WHOLE, SHARDED), check_vma=False)
    x = jax.ShapeDtypeStruct((20, 4), jnp.float32, sharding=NamedSharding(mesh, SHARDED))
    return jax.jit(mapped).lower(x).compile()


def test_every_exchange_is_counted_as_often_as_it_is_made(compiled):
    by_kind = {collective.kind: collective for collective in collectives(compiled, 2)}
    assert by_kind["all-reduce"] == Collective("all-reduce", 160, 2, 3, in_loop=True)
    assert by_kind["all-gather"] == Collective("all-gather", 320, 2, 1, in_loop=False)
    assert by_kind["reduce-scatter"] == Collective("reduce-scatter", 80, 2, 1, in_loop=False)
    # A ring of two sends half twice (three times over), half of the whole, and the half that is not its own.
    assert sent(compiled, 2) == 3 * 160 + 160 + 80


def test_groups_and_tuples_are_read():
    text = """HloModule m
ENTRY %main (p: f32[8]) -> f32[8] {
  %a = (f32[8]{0}, bf16[4]{0}) all-reduce(%p, %q), replica_groups={{0,1,2,3},{4,5,6,7}}, to_apply=%add
  %b = u8[16]{0} all-gather(%p), replica_groups=[2,4]<=[8], dimensions={0}
  %c = (f32[2]{0}, f32[8]{0}) all-gather-start(%p), replica_groups=[1,8]<=[8]
}
"""

    class Program:
        def as_text(self):
            return text

    exchanges = collectives(Program(), 8)
    assert exchanges == [
        Collective("all-reduce", 40, 4, 1, in_loop=False),
        Collective("all-gather", 16, 4, 1, in_loop=False),
        Collective("all-gather", 32, 8, 1, in_loop=False),
    ]


@pytest.mark.slow
def test_fesem_exchanges_its_clients_models_once_and_no_masks(key):
    """Half of all models of two devices, and the sums of the clusters; 2.3 times that were sent once."""
    federation, model = linear_groups(8, 2, examples=8), mlp((4, 4, 1), (256,), 4)
    algorithm, hyper = fljax.fesem(model, fljax.Work(1, 8, at_once=1), 2), as_traced(fljax.fesem.Hyper())
    mesh = device_mesh()
    replicated = NamedSharding(mesh, WHOLE)

    def shapes_of(value):
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=replicated), value)

    def one_round(key, hyper, federation, state):
        return run_round(algorithm, 8, hyper, federation, key, None, state, jnp.int32(1))

    with jax.set_mesh(mesh):
        state = jax.eval_shape(algorithm.init, key, hyper, federation.train)
        program = jax.jit(one_round, out_shardings=replicated).lower(*map(shapes_of, (key, hyper, federation, state)))
        bytes_sent = sent(program.compile(), mesh.size)
    model_bytes = 4 * tree.size(jax.eval_shape(model.init, key))
    bytes_of_models = 8 * model_bytes * (mesh.size - 1) / mesh.size
    assert bytes_of_models < bytes_sent < bytes_of_models + 2 * 2 * model_bytes + 4096
