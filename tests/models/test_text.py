"""Text: windows of characters, a small transformer, and what clients learn of each other's texts."""

import os
import resource
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax.data.own.text import next_characters
from fljax.models import transformer


def test_windows_are_the_text_and_its_next_character():
    data = next_characters({"b": "hello world", "a": "dwell"}, length=3, step=2)
    letters = np.array(data.classes)
    assert data.clients == ("a", "b")
    windows = ["".join(letters[row]) for row in data.examples.x]
    assert windows == ["hel", "llo", "o w", "wor", "dwe"]
    assert "".join(letters[data.examples.y]) == "l oll"
    assert data.client.tolist() == [1, 1, 1, 1, 0]
    (last,) = next_characters({"a": "abcd"}, length=3, step=1).examples.y
    assert last == 3  # the text's last character follows a window too
    with pytest.raises(ValueError, match="the text of 'a' has 3 characters"):
        next_characters({"a": "abc"}, length=3)


@pytest.mark.slow
def test_a_transformer_sees_the_past_alone_and_all_of_it(key):
    model = transformer((6,), 11, vocabulary=11, width=8, n_layers=1, n_heads=2)
    assert model.layers == ("embed", "place", "block1", "norm", "head")
    params, x = model.init(key), jax.random.randint(key, (3, 6), 0, 11)
    logits = model.apply(params, x, None)[0]
    assert logits.shape == (3, 11)
    for place in range(6):  # the last place sees every token
        changed_logits = model.apply(params, x.at[:, place].set((x[:, place] + 1) % 11), None)[0]
        assert float(jnp.abs(changed_logits - logits).max()) > 1e-6
    with pytest.raises(ValueError, match="n_heads=3"):
        transformer(width=8, n_heads=3)


TOGETHER = """
import jax, numpy as np, fljax
from fljax.data.own.text import descriptions, next_characters
from fljax.models import transformer

texts = {name: text[:3000] for name, text in list(descriptions().items())[:6]}
data = next_characters(texts, length=16, step=2)
federation = data.federation()
model = transformer((16,), n_classes=len(data.classes), vocabulary=len(data.classes), n_layers=1)
hyper, work = fljax.fedavg.Hyper(lr=0.01), fljax.Work(1, 32, optimizer="adam")
key = jax.random.key(0)
_, metrics = fljax.simulate(fljax.fedavg(model, work), hyper, federation, key, 20, evaluate_every=20)
labels = np.asarray(federation.train.pool.y)
print(float(metrics["accuracy_micro"][-1]), np.bincount(labels).max() / len(labels))
"""


@pytest.mark.slow
def test_clients_learn_to_write_together_in_less_than_two_minutes():
    """In a process of its own, compiled as a user's programs are; counted are seconds of the processor."""
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    usage_before = resource.getrusage(resource.RUSAGE_CHILDREN)
    process = subprocess.run([sys.executable, "-c", TOGETHER], env=environment, capture_output=True, text=True)
    usage_after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert process.returncode == 0, process.stderr[-2000:]
    accuracy, most_frequent_share = map(float, process.stdout.split())
    assert accuracy > 1.5 * most_frequent_share
    assert usage_after.ru_utime + usage_after.ru_stime - usage_before.ru_utime - usage_before.ru_stime < 120
