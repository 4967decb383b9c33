"""Descriptions of the data sets that a job can name, one line each; `fljax.data.datasets` finds their files."""

ABOUT = {
    "digits": "handwritten digits, 1,797 grey images of 8 x 8 pixels, 10 classes",
    "synthetic_iid": "random logistic regression of 60 features and 10 classes, the same for all of its 30 users",
    "synthetic_0_0": "Synthetic(0, 0) of FedProx: each user has its own means of features and its own model",
    "synthetic_0.5_0.5": "Synthetic(0.5, 0.5) of FedProx: users that differ more",
    "synthetic_1_1": "Synthetic(1, 1) of FedProx: users that differ most",
    "mnist": "handwritten digits, 70,000 grey images of 28 x 28 pixels, 10 classes",
    "fashion_mnist": "clothes, 70,000 grey images of 28 x 28 pixels, 10 classes",
    "cifar10": "animals and vehicles, 60,000 colour images of 32 x 32 pixels, 10 classes",
    "cifar100": "things of many kinds, 60,000 colour images of 32 x 32 pixels, 100 classes",
    "svhn_cropped": "digits of house numbers, 99,289 colour images of 32 x 32 pixels, 10 classes",
    "emnist/letters": "handwritten letters, grey images of 28 x 28 pixels, 26 classes",
    "femnist": "handwritten digits and letters with their writers, grey images of 28 x 28 pixels, 62 classes",
    "celeb_a": "faces of celebrities with their identities, colour images of 84 x 84 pixels, smiling or not",
    "mnist_fashion": "mnist (classes 0 to 9) and fashion_mnist (10 to 19) as one task",
}

OF_USERS = ("femnist", "celeb_a", "synthetic_1_1", "synthetic_0.5_0.5", "synthetic_0_0", "synthetic_iid")
"""The data sets whose examples belong to users, which are the clients of the natural partition."""
