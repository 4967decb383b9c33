"""Names that other libraries and papers use for what has another name here, for the message about an unknown name."""

OTHER_NAMES = {
    "algorithm": {
        "clientsonly": "standalone",
        "fd": "feddistill",
        "fedadagrad": "fedavg+adagrad",
        "fedadam": "fedavg+adam",
        "fedasync": "fedavg --clock fedasync",
        "fedavgm": "fedavg+momentum",
        "fedbuff": "fedavg --clock fedbuff",
        "fedexp": "fedavg+exp",
        "fedmedian": "fedavg+median",
        "fedsam": "fedavg+sam",
        "fedtrimmedavg": "fedavg+trimmed_mean",
        "fedyogi": "fedavg+yogi",
        "gossip": "dpsgd or pgossip",
        "gossipdfl": "dpsgd --contacts 1",
        "hierarchicalfl": "hierfavg",
        "local": "standalone",
        "localonly": "standalone",
        "qfedavg": "qffl",
    },
    "command": {
        "centralized": "run --algorithm centralized",
        "clientsonly": "run --algorithm standalone",
        "federation": "run",
        "train": "run",
    },
    "data set": {"emnist": "emnist/letters", "fmnist": "fashion_mnist"},
    "model": {
        "2nn": "mlp --hidden 200 200",
        "avgcnn": "cnn",
        "fedavgcnn": "cnn",
        "mnist2nn": "mlp --hidden 200 200",
    },
    "partition": {
        "heterodir": "dirichlet",
        "labeldir": "dirichlet",
        "lblqnt": "classes_per_client",
        "noniid#label": "classes_per_client",
        "noniidlabeldir": "dirichlet",
        "path": "classes_per_client or shards",
        "pathological": "classes_per_client or shards",
        "qnt": "log_normal or dirichlet_sizes",
        "unbalance": "log_normal or dirichlet_sizes",
    },
    "setting": {
        "clientnum": "--n-clients",
        "clientsplit": "--test-fraction",
        "clipping": "--algorithm METHOD+clip_gradient --max-norm",
        "comround": "--rounds",
        "device": "JAX_PLATFORMS=cpu or CUDA_VISIBLE_DEVICES=1 in the environment",
        "diralpha": "--partition dirichlet --beta",
        "eligibleperc": "--participation",
        "globalepoch": "--rounds",
        "globalrounds": "--rounds",
        "joinratio": "--participation",
        "localepoch": "--epochs",
        "localepochs": "--epochs",
        "lrscheduler": "--lr-decay",
        "nrounds": "--rounds",
        "numclients": "--n-clients",
        "resume": "--folder FOLDER, with which a run goes on with what is there",
        "sampleratio": "--participation",
        "scheduler": "--lr-decay",
        "stragglerratio": "--stragglers",
        "testratio": "--test-fraction",
        "totalclients": "--n-clients",
        "valratio": "--val-fraction",
    },
}
"""Kind of thing -> its other name, in lower case without ``-`` and ``_`` -> what it is called here."""


def name_here(kind: str, name: str) -> str | None:
    """What is called ``name`` elsewhere is called here; None if that is not known. Of the kind "kind or name",
    as `fljax list` has it, is every thing with a name."""
    kinds = ("algorithm", "partition", "model", "data set") if kind == "kind or name" else (kind,)
    plain = name.casefold().replace("-", "").replace("_", "")
    return next((OTHER_NAMES[one][plain] for one in kinds if plain in OTHER_NAMES.get(one, {})), None)
