"""LayerCFL: clustered federated learning that compares clients by the updates of selected layers.

Yuan, Qian, Yuan, Sun, Li, Li: LayerCFL: an efficient federated learning with layer-wised clustering, Cybersecurity
2023, https://doi.org/10.1186/s42400-023-00172-x; it builds on Sattler, Mueller, Samek: Clustered Federated Learning,
IEEE TNNLS 2020, https://arxiv.org/abs/1910.01991, https://github.com/felisat/clustered-federated-learning.
A cluster whose mean update has become small while some member's update has not is split in two so that the cosine
similarity across the halves is least; only the layers that distinguish the clients are compared.

Differences from the paper: the body of its algorithm is CFL's. ``eps_1`` is a tenth of the largest mean update norm so
far of the cluster or its ancestors, including this round, and ``eps_2`` is four times that. The default ``gamma_max``
is 0.5: with 0 every split is accepted, and clients of one distribution are split too. The default ``linkage="single"``
is the optimum of the paper's min-max problem; CFL's code has "complete". With partial participation, the participants
decide a split; absent clients follow the larger half, and a cluster without participants waits. Earlier models are not
kept: new clients join the cluster with the least training loss, whereas CFL routes them down its tree of splits by
their updates; and clients cannot choose an ancestor of their cluster, of which CFL's code takes the best on validation
data. ``gamma_max`` alone does not keep real clients of one distribution together: with 300 images each, one seed of
five was split (experiments/layercfl.py). ``spacing``, not in the paper, prevents that.
"""

from typing import Literal

import jax.numpy as jnp

from fljax import tree
from fljax.algorithms.layercfl.similarity import Measure, check_group, chosen_layers, gaps, similarity
from fljax.algorithms.layercfl.stopping import LayerCFLHyper, everyones_side, is_apart, is_ripe, update_norms
from fljax.rounds import Clusters, Combining, Rule, Sent, Weighting, clustered, mean, method, one_cluster, regrouped
from fljax.rounds.clustered import After
from fljax.server.bipartition import best_bipartition, split
from fljax.server.inherit import inherit
from fljax.types import Algorithm, ClientData, Cohort, Key, Model, Work

Linkage = Literal["single", "complete"]


@method(
    LayerCFLHyper, "Yuan et al., Cybersecurity 2023", "https://doi.org/10.1186/s42400-023-00172-x", kind="clustered"
)
def layercfl(
    model: Model,
    work: Work,
    *,
    layers: str | tuple[str, ...] = "feature",
    measure: Measure = "cos_update_part",
    linkage: Linkage = "single",
    weighting: Weighting = "size",
    group: tuple[int, ...] | None = None,
    combine: Combining = mean,
) -> Algorithm:
    """LayerCFL: ``Delta_i = LocalTrain(Theta_{a_i}) - Theta_{a_i}``; stationary clusters are split; then the means.

    Args:
        layers: layers to compare: "feature" (a convolution, for feature skew), "label" (the first dense layer, for
            label skew), "dense", "all" (CFL), or layer names. `fljax.run.pilot.layer_gaps` measures their separation
            gaps, `fljax.algorithms.layercfl.layers_by_pilot` selects the best.
        measure: how these layers are compared, see `fljax.algorithms.layercfl.similarity`.
        linkage: "single" (optimal) or "complete" (CFL's code).
        weighting: of a cluster's members, "size" or "uniform" (CFL's code).
        group: the clients' true groups, for study: adds the separation gap of every layer and measure to the metrics.

    Raises:
        ValueError: the model has no such layer. A round raises it if ``group`` does not have one entry per client.
    """
    selected = chosen_layers(model, layers)

    def begin(key: Key, hyper: LayerCFLHyper, data: ClientData) -> Clusters:
        # `kept` is the peak: the largest mean update norm so far of a cluster or its ancestors.
        return one_cluster(model.init(key), data.n_clients, kept=jnp.zeros(data.n_clients, jnp.float32))

    def after(key: Key, hyper: LayerCFLHyper, clusters: Clusters, sent: Sent, cohort: Cohort) -> After:
        centers, label, cluster, counts = clusters.centers, clusters.label, sent.label, sent.weight > 0
        check_group(group, label.shape[0])
        updates = tree.subtract(sent.params, tree.take(centers, cluster))
        # Is the cluster stationary while a member is not?
        is_member = (cluster[None, :] == jnp.arange(label.shape[0], dtype=cluster.dtype)[:, None]) & counts[None, :]
        norms = update_norms(updates, sent.weight, cluster, is_member, centers)
        peak = jnp.maximum(clusters.kept, norms.mean.astype(jnp.float32))
        is_due = is_ripe(hyper, norms, peak, cohort.round)
        # Bipartition by the similarity of the selected layers, if the halves are far enough apart.
        alpha = similarity(measure, sent.params, updates, selected, counts)
        side, cross = best_bipartition(alpha, cluster, linkage, counts)
        is_accepted = is_due & is_apart(hyper, measure, alpha, cross, is_member)
        new_label = split(label, everyones_side(side, counts, label, cohort.ids), is_accepted[label])
        metrics = {"mean_norm": norms.mean[cluster], "largest_norm": norms.largest[cluster], "cross": cross}
        if group is not None:
            true_group = jnp.asarray(group, jnp.int32)[cohort.ids]
            metrics |= gaps(model, sent.params, updates, selected, true_group, counts)
        # Theta_k' <- Theta_k + sum_i n_i / n_k' Delta_i: the mean of the members' models, as all began at Theta_k.
        new_clusters = regrouped(clusters, new_label)._replace(kept=inherit(peak, label, new_label))
        return new_clusters, sent._replace(label=new_label[cohort.ids]), metrics

    return clustered(model, work, Rule(begin, after=after), combine=combine, weighting=weighting)
