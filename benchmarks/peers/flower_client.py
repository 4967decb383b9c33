"""Flower's client: a module of its own, which its workers import, so that each of them makes the data only once."""

import functools
import os

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from peers.torch_loop import tensors, torch_network
from peers.work import WORKLOADS, data, first_models

WORKLOAD = "FLJAX_PEERS_WORKLOAD"
"""Environment variable that names the workload."""

app = ClientApp()


@functools.cache
def prepared():
    """(workload, network, sets of all clients) of this worker."""
    torch.set_num_threads(1)  # a worker a core
    workload = WORKLOADS[os.environ[WORKLOAD]]
    return (
        workload,
        torch_network(workload, first_models(workload)[0]),
        [tensors(*client_set) for client_set in data(workload)[0]],
    )


@app.train()
def train(message: Message, context: Context) -> Message:
    """One epoch."""
    workload, model, clients = prepared()
    x, y = clients[int(context.node_config["partition-id"])]
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer, loss_of = torch.optim.SGD(model.parameters(), lr=workload.lr), torch.nn.CrossEntropyLoss()
    for rows in torch.randperm(len(y)).split(workload.batch):
        optimizer.zero_grad()
        loss_of(model(x[rows]), y[rows]).backward()
        optimizer.step()
    weight = MetricRecord({"num-examples": len(y) if workload.weighting == "size" else 1})
    reply = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": weight})
    return Message(content=reply, reply_to=message)
