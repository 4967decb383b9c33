"""The server's primitives: pure, jitted functions of fixed shape over the client axis, named after the papers' terms.

Every name here is imported from `fljax.server`. Functions work under `jit`, `vmap` and `scan`. Numbers and arrays (eps,
heights, weights, masks) are traced, and entries that a mask excludes have no effect. A function without an example on
this page has one in its own docstring. The examples share four clients with a model of two layers:

  >>> import jax
  >>> import jax.numpy as jnp
  >>> from fljax.server import *
  >>> jnp.set_printoptions(precision=2, suppress=True)
  >>> key, label, size = jax.random.key(0), jnp.array([0, 0, 1, 1]), jnp.array([10, 10, 10, 30])
  >>> x = jnp.array([[0.0, 1.0], [0.0, 2.0], [4.0, 1.0], [4.0, 3.0]])
  >>> models = {"fc1": x, "fc2": jnp.array([[1.0], [1.0], [2.0], [4.0]])}
  >>> centers = {"fc1": jnp.array([[0.0, 1.5], [2.0, 4.0]]), "fc2": jnp.array([[1.0], [3.0]])}
  >>> layers = ("fc1", "fc2")

**Distances and similarities**

- Cosine similarity of models or updates (CFL, LayerCFL): `pairwise_cosine`
- Euclidean distance of weights (AdaCFL, FedTSDP's second stage): `pairwise_l2`; its square: `pairwise_squared_l2`
- Squared distance of clients to cluster models (FeSEM): `cross_squared_l2`
- Model discrepancy, min-max scaled L1 (DC-PFL): `model_discrepancy`; per layer, to the cluster: `layer_discrepancy`
- Jensen-Shannon divergence of outputs on public data (FedTSDP's first stage): `js_divergence`
- Symmetric Kullback-Leibler divergence of label distributions: `label_kld`
- Principal angles between subspaces (PACFL): `principal_angles`
- Rewards for losses near the cluster's mean (FedGWC): `gaussian_rewards`; affinity of clients: `row_affinity`

  >>> print(pairwise_cosine(x)[0], cross_squared_l2(models, centers)[0])
  [1.   1.   0.24 0.6 ] [ 0.25 17.  ]
  >>> print(pairwise_l2(x)[0], pairwise_squared_l2(x)[0])
  [0.   1.   4.   4.47] [ 0.  1. 16. 20.]
  >>> print(model_discrepancy(models)[0])
  [0.   0.17 0.89 0.67]
  >>> print(layer_discrepancy(models, centers, label, layers))
  [[0. 0.]
   [1. 0.]]
  >>> print(js_divergence(jax.nn.softmax(x)[:, None])[0])
  [0.   0.02 0.28 0.11]
  >>> print(label_kld(jnp.array([[5, 5], [9, 1]]))[0])
  [0.   0.44]
  >>> print(principal_angles(jnp.eye(3)[:, :, None])[0, :2].ravel())
  [ 0. 90.]

**Clustering**

- DBSCAN (FedTSDP): `dbscan`; noise as clusters of one client: `noise_to_singletons`
- Agglomerative clustering: the dendrogram, UPGMA is "average" (DC-PFL): `linkage`; cut at a height: `cut`; into k
  clusters: `cut_k`
- Optimal bipartition of every cluster (CFL, LayerCFL): `best_bipartition`, `split`; every split accepted: `bipartition`
- k-means with k-means++ seeding (initial clusters of FeSEM): `kmeans`
- Trimmed-mean and median k-means (Ghosh et al.): `robust_kmeans`
- Spectral clustering (FedGWC): `spectral_labels`; its eigenvectors: `spectral_embedding`
- Clustering tendency, the Hopkins statistic (FedTSDP): `hopkins`
- Splitting a hierarchy step by step with a normalised threshold (DC-PFL): `threshold`, `cut_at`, `next_split`
- End of the rapid-decrease period of a loss (DC-PFL): `new_curve`, `observe`, `period_ended`
- Labels in canonical order, so that partitions can be compared: `canonical`

  >>> print(kmeans(key, x, 2).label, robust_kmeans(key, x, 2, center="median").label)
  [0 0 1 1] [0 0 1 1]
  >>> print(hopkins(key, jnp.repeat(x, 2, axis=0), n_probes=2))
  1.0
  >>> tree = linkage(pairwise_l2(x), "average")
  >>> print(cut_at(tree, threshold(jnp.int32(1), 0.2)), next_split(tree, jnp.zeros_like(label), jnp.int32(0), 0.2)[1])
  [0 0 1 1] 1
  >>> print(period_ended(observe(new_curve(), jnp.float32(1.0))))
  False

**Assigning clients to clusters**

- Lowest loss (IFCA, HypCluster, FedCPS): `lowest_loss`
- Nearest center (FeSEM's E step): `nearest_center`
- Importance weights (FedSoft): `example_shares`, `soft_weights`
- Mixture weights by expectation maximisation (FedEM): `responsibilities`, `mixture_weights`
- Model of a new cluster from its old cluster (CFL): `inherit`

  >>> print(lowest_loss(jnp.array([[0.5, 0.25], [0.125, 1.0]])))
  [1 0]
  >>> print(nearest_center(models, centers))
  [0 0 1 1]
  >>> share = example_shares(jnp.array([[[0.0, 1.0], [1.0, 0.0]], [[0.0, 1.0], [0.0, 1.0]]]), jnp.ones((2, 2)))
  >>> print(soft_weights(share, jnp.array([20, 10])))
  [[0.5 0.5]
   [1.  0. ]]
  >>> learner = responsibilities(jnp.array([[[0.0, 1.0]]]), jnp.array([[0.5, 0.5]]))
  >>> print(mixture_weights(learner, jnp.ones((1, 1)), jnp.array([[0.5, 0.5]])))
  [[0.73 0.27]]

**Aggregation**

- Weighted average (FedAvg): `weighted_mean`
- Adaptive server optimisers, FedAdam and others (Reddi et al.): `server_optimizer`, `server_step`
- Average per cluster (IFCA, FeSEM, CFL): `cluster_mean`
- Any row-stochastic matrix (personalised, decentralised, attentive): `mix`; one per layer: `mix_layers`
- The convex combination of estimates with the least bias and variance for each client (FedPAC): `simplex_weights`
- The shortest convex combination, with bounds on each weight (FedMGDA+): `min_norm_weights`
- Base and personal layers (FedPer), also fractions of layers (FedTSDP): `select_layers`, `shared_mask`, `shared_size`
- Layers aggregated at their own intervals (DC-PFL): `due_layers`, `where_layers`
- Matched averaging of units, by the Hungarian method (FedMA, FeSEM-MA): `matched_mean`, `matched_squared_l2`; the
  members of a cluster with their units in a common order: `matched_members`
- A model with its hidden units in another model's order: `match`; in two steps: `match_units`, `permute_units`

  >>> print(weighted_mean(models, size)["fc1"])
  [2.67 2.17]
  >>> optimizer, mean = server_optimizer("sgd", ServerNumbers(lr=0.5)), weighted_mean(models, size)
  >>> print(server_step(optimizer, optimizer.init(mean), jax.tree.map(jnp.zeros_like, mean), mean)[0]["fc1"])
  [1.33 1.08]
  >>> print(cluster_mean(models, size, label, empty=centers)["fc2"])
  [[1. ]
   [3.5]]
  >>> everyone, first = jnp.full((1, 4), 0.25), jnp.eye(4)[:1]
  >>> print(mix(everyone, models)["fc2"], mix_layers({"fc1": everyone, "fc2": first}, models)["fc2"])
  [[2.]] [[1.]]
  >>> print(simplex_weights(x, jnp.ones(4))[0])
  [0.64 0.32 0.04 0.  ]
  >>> print(min_norm_weights(jnp.array([[1.0, 0.0], [0.0, 4.0]]), jnp.zeros(2), jnp.ones(2)))
  [0.8 0.2]
  >>> print(select_layers(layers, 1.0, models, jax.tree.map(jnp.zeros_like, models))["fc2"].ravel())
  [0. 0. 0. 0.]
  >>> print(shared_mask(layers, 1.0, centers), shared_size(layers, 1.0, centers))
  {'fc1': Array(True, dtype=bool), 'fc2': Array(False, dtype=bool)} 4
  >>> due = due_layers(jnp.int32(4), jnp.array([[1, 3], [1, 2]]))
  >>> print(where_layers(layers, due[label], jax.tree.map(jnp.zeros_like, models), models)["fc2"].ravel())
  [1. 1. 0. 0.]
  >>> net = {"fc1": {"kernel": jnp.array([[[1.0, 2.0]], [[2.0, 1.0]]])}, "fc2": {"kernel": jnp.ones((2, 2, 1))}}
  >>> start = jax.tree.map(lambda leaf: leaf[:1], net)
  >>> mean = matched_mean(net, size[:2], label[:2], start, layers)
  >>> print(mean["fc1"]["kernel"], matched_squared_l2(net, mean, layers).ravel())
  [[[1. 2.]]] [0. 0.]
  >>> print(matched_members(net, size[:2], label[:2], start, layers)["fc1"]["kernel"].tolist())
  [[[1.0, 2.0]], [[1.0, 2.0]]]
  >>> own, other = (jax.tree.map(lambda leaf: leaf[i], net) for i in (0, 1))
  >>> print(match(other, own, layers)["fc1"]["kernel"], match_units(other, own, layers)[0])
  [[1. 2.]] [1 0]
  >>> print(permute_units(other, (jnp.array([1, 0]),), layers)["fc1"]["kernel"])
  [[1. 2.]]

**Byzantine-robust aggregation**

- Coordinate-wise median and trimmed mean (Yin et al.): `coordinate_median`, `trimmed_mean`
- Krum and multi-Krum (Blanchard et al.): `krum`, `multi_krum`; their scores: `krum_scores`
- Bulyan, a selection by Krum and then a mean near every coordinate's median (El Mhamdi et al.): `bulyan`
- Geometric median (RFA): `geometric_median`
- Norm clipping: `clip_norm`
- The median or trimmed mean of each cluster (Ghosh et al.): `robust_cluster_mean`

  >>> print(coordinate_median(x), trimmed_mean(x, 0.25), clip_norm(x, 1.0)[1])
  [2.  1.5] [2.  1.5] [0. 1.]
  >>> print(robust_cluster_mean(models, label, empty=centers, center="median")["fc2"].ravel())
  [1. 3.]
  >>> print(krum(x, 1), multi_krum(x, 1, n_selected=2), krum_scores(x, 1))
  [0. 2.] [0.  1.5] [1. 1. 4. 4.]
  >>> print(geometric_median(jnp.array([[0.0], [1.0], [90.0]])))
  [1.]
  >>> print(bulyan(jnp.array([[0.0], [1.0], [2.0], [3.0], [4.0], [5.0], [90.0]]), 1))
  [3.]

**Agreement**

- Adjusted Rand index, mutual information, purity: `adjusted_rand`, `normalized_mutual_info`, `purity`
- Number of clusters: `n_clusters`; share of clients that changed cluster, up to renaming: `churn`;
  by label: `raw_churn`
- Separation gap of similarities (LayerCFL's Gap 1): `separation_gap`; of distances (Gap 2): `distance_gap`
- The first round with a positive gap: `first_separation`
- Bounds from the gradients' errors gamma (CFL): on cosines within a distribution, H: `intra_bound`; on cosines across a
  bipartition of k distributions: `cross_bound`; on the errors with which a split is correct: `gamma_limit`
- Silhouette: `silhouette`; Davies-Bouldin score: `davies_bouldin`
- Correlation of two matrices of distances or similarities: `pairwise_correlation`
"""

from fljax.server.aggregate import cluster_mean, mix, mix_layers, weighted_mean
from fljax.server.agreement import adjusted_rand, churn, n_clusters, normalized_mutual_info, purity, raw_churn
from fljax.server.angles import principal_angles
from fljax.server.assign import (
    example_shares,
    lowest_loss,
    mixture_weights,
    nearest_center,
    responsibilities,
    soft_weights,
)
from fljax.server.bipartition import Bipartition, best_bipartition, bipartition, split
from fljax.server.bulyan import bulyan
from fljax.server.cluster_scores import davies_bouldin, silhouette
from fljax.server.curvature import new_curve, observe, period_ended
from fljax.server.dbscan import dbscan
from fljax.server.discrepancy import layer_discrepancy, model_discrepancy
from fljax.server.distance import cross_squared_l2, pairwise_cosine, pairwise_l2, pairwise_squared_l2
from fljax.server.divergence import js_divergence, label_kld
from fljax.server.geometric_median import geometric_median
from fljax.server.gradient_bounds import cross_bound, gamma_limit, intra_bound
from fljax.server.hierarchy import cut_at, next_split, threshold
from fljax.server.hopkins import hopkins
from fljax.server.inherit import inherit
from fljax.server.kmeans import KMeans, kmeans
from fljax.server.krum import krum, krum_scores, multi_krum
from fljax.server.labels import canonical, noise_to_singletons
from fljax.server.layers import due_layers, select_layers, shared_mask, shared_size, where_layers
from fljax.server.linkage import linkage
from fljax.server.matching import match, match_units, matched_mean, matched_members, matched_squared_l2, permute_units
from fljax.server.min_norm import min_norm_weights
from fljax.server.optimizer import ServerNumbers, server_optimizer, server_step
from fljax.server.rewards import gaussian_rewards, row_affinity
from fljax.server.robust import clip_norm, coordinate_median, trimmed_mean
from fljax.server.robust_kmeans import robust_cluster_mean, robust_kmeans
from fljax.server.separation import distance_gap, first_separation, pairwise_correlation, separation_gap
from fljax.server.simplex import simplex_weights
from fljax.server.spectral import spectral_embedding, spectral_labels
from fljax.server.tree_cuts import cut, cut_k

__all__ = [
    "Bipartition",
    "KMeans",
    "ServerNumbers",
    "adjusted_rand",
    "best_bipartition",
    "bipartition",
    "bulyan",
    "canonical",
    "churn",
    "clip_norm",
    "cluster_mean",
    "coordinate_median",
    "cross_bound",
    "cross_squared_l2",
    "cut",
    "cut_at",
    "cut_k",
    "davies_bouldin",
    "dbscan",
    "distance_gap",
    "due_layers",
    "example_shares",
    "first_separation",
    "gamma_limit",
    "gaussian_rewards",
    "geometric_median",
    "hopkins",
    "inherit",
    "intra_bound",
    "js_divergence",
    "kmeans",
    "krum",
    "krum_scores",
    "label_kld",
    "layer_discrepancy",
    "linkage",
    "lowest_loss",
    "match",
    "match_units",
    "matched_mean",
    "matched_members",
    "matched_squared_l2",
    "min_norm_weights",
    "mix",
    "mix_layers",
    "mixture_weights",
    "model_discrepancy",
    "multi_krum",
    "n_clusters",
    "nearest_center",
    "new_curve",
    "next_split",
    "noise_to_singletons",
    "normalized_mutual_info",
    "observe",
    "pairwise_correlation",
    "pairwise_cosine",
    "pairwise_l2",
    "pairwise_squared_l2",
    "period_ended",
    "permute_units",
    "principal_angles",
    "purity",
    "raw_churn",
    "responsibilities",
    "robust_cluster_mean",
    "robust_kmeans",
    "row_affinity",
    "select_layers",
    "separation_gap",
    "server_optimizer",
    "server_step",
    "shared_mask",
    "shared_size",
    "silhouette",
    "simplex_weights",
    "soft_weights",
    "spectral_embedding",
    "spectral_labels",
    "split",
    "threshold",
    "trimmed_mean",
    "weighted_mean",
    "where_layers",
]


def __dir__() -> list[str]:  # without the modules that the names come from
    return __all__
