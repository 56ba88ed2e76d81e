"""Classifiers, from simple to good: pixels of many images in, a digit for each out.

Invariant: a model is trained on the images to learn from, and never sees those that are held out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from examples.digits.data import WHITEST, DigitImages

Model = Literal["centroid", "logistic", "svc"]
Classifier = Callable[[NDArray[np.uint8]], NDArray[np.int64]]


def train(model: Model, digits: DigitImages) -> Classifier:
    """Trains a classifier, in a fraction of a second.

    Raises:
        ValueError: there is no such model.
    """
    if model == "centroid":
        return _centroid(digits)
    if model == "logistic":
        return _logistic(digits)
    if model == "svc":
        return _support_vectors(digits)
    raise ValueError(f"model must be one of {', '.join(get_args(Model))}, got {model!r}")


def _centroid(digits: DigitImages) -> Classifier:
    """The digit whose mean image is nearest: about nine of ten right."""
    shown = np.unique(digits.labels)
    means = np.stack([digits.pixels[digits.labels == digit].mean(axis=0) for digit in shown])
    return _linear(shown, 2 * means.T, -(means**2).sum(axis=1))  # nearest, without what all distances have in common


def _logistic(digits: DigitImages) -> Classifier:
    """Logistic regression, the default: one matrix product a batch."""
    from sklearn.linear_model import LogisticRegression

    trained = LogisticRegression(max_iter=1000).fit(digits.pixels / WHITEST, digits.labels)
    return _linear(trained.classes_, trained.coef_.T / WHITEST, trained.intercept_)


def _linear(shown: NDArray[np.int64], weights: NDArray[np.float64], bias: NDArray[np.float64]) -> Classifier:
    def classify(pixels: NDArray[np.uint8]) -> NDArray[np.int64]:
        best: NDArray[np.int64] = shown[np.argmax(pixels @ weights + bias, axis=1)]
        return best

    return classify


def _support_vectors(digits: DigitImages) -> Classifier:
    """Support vectors: 99 of a hundred right, and the slowest by far, at some 30 µs an image."""
    from sklearn.svm import SVC

    trained = SVC(gamma=0.001).fit(digits.pixels, digits.labels)

    def classify(pixels: NDArray[np.uint8]) -> NDArray[np.int64]:
        best: NDArray[np.int64] = trained.predict(pixels)
        return best

    return classify
