"""What is searched, and how near texts are to each other. Pure.

A text is as near to a query as the words that they share say; a real search has a model for that.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

DOCUMENTS: tuple[str, ...] = (
    "the river runs to the sea",
    "the sea gives its water back as rain",
    "rain falls upon the hills",
    "from the hills the river begins",
    "a road goes over the hills to the town",
    "in the town there is a market",
    "fish from the sea is sold in the market",
    "the market ends when rain falls",
)
DIMENSIONS = 64

Vector = list[float]


def embed(text: str) -> Vector:
    """How often each word is in the text, words being numbered by chance."""
    vector = [0.0] * DIMENSIONS
    for word in text.split():
        vector[blake2b(word.encode(), digest_size=1).digest()[0] % DIMENSIONS] += 1.0
    return vector


def nearness(one: Sequence[float], other: Sequence[float]) -> float:
    """The larger, the nearer."""
    return sum(map(float.__mul__, one, other))


def rank(query: str, document: str) -> float:
    """How well a document answers a query: slower than nearness, and better. The share of the query that it has."""
    words = set(query.split())
    return len(words & set(document.split())) / max(len(words), 1)
