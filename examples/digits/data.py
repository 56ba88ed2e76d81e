"""The handwritten digits that ship with scikit-learn, split once and for all.

Invariant: the split has a fixed seed, so every process agrees on which images no model has seen.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Annotated

import msgspec
import numpy as np
from numpy.typing import NDArray

SIDE = 8
"""Pixels along each side of an image."""
WHITEST = 16
"""Largest value of a pixel."""
_SEED = 20

Pixel = Annotated[int, msgspec.Meta(ge=0, le=WHITEST)]
Image = Annotated[list[Pixel], msgspec.Meta(min_length=SIDE * SIDE, max_length=SIDE * SIDE)]
"""One image as callers send it: 64 pixels, row by row, 0 … 16. Anything else is refused before the handler sees it."""


@dataclass(frozen=True, slots=True)
class DigitImages:
    """Images and what they show."""

    pixels: NDArray[np.uint8]
    """Row i is image i."""
    labels: NDArray[np.int64]

    def images(self) -> list[Image]:
        """The images as callers send them."""
        rows: list[Image] = self.pixels.tolist()
        return rows


@cache
def split() -> tuple[DigitImages, DigitImages]:
    """The images to learn from, and as many that are held out. Each digit is in both in equal parts."""
    # A second or so to import: whoever only looks at the handler does not pay for it.
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    pixels, labels = load_digits(return_X_y=True)
    learn, held_out, learn_labels, held_out_labels = train_test_split(
        pixels.astype(np.uint8), labels, test_size=0.5, random_state=_SEED, stratify=labels
    )
    return DigitImages(learn, learn_labels), DigitImages(held_out, held_out_labels)
