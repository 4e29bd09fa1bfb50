"""datakit: from raw files to a finished LoRA adapter on rented GPUs, with every byte and sample accounted for.

The public names below are loaded when first used, so that `import datakit` costs milliseconds and needs none of the
optional libraries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datakit.errors import (
        DatakitError,
        InputError,
        IntegrityError,
        Interrupted,
        LimitExceeded,
        MissingExtra,
        NoSpace,
        NotAllowed,
        NotFound,
        Refused,
        StoreUnavailable,
        UsageError,
    )
    from datakit.feed.dataset import open_dataset
    from datakit.feed.loader import Loader
    from datakit.pack.build import pack
    from datakit.storage.sync import sync
    from datakit.train.loop import train

__version__ = "0.1.0"

_ROOMS = {
    "Loader": "datakit.feed.loader",
    "open_dataset": "datakit.feed.dataset",
    "pack": "datakit.pack.build",
    "sync": "datakit.storage.sync",
    "train": "datakit.train.loop",
}

__all__ = [
    "DatakitError",
    "InputError",
    "IntegrityError",
    "Interrupted",
    "LimitExceeded",
    "Loader",
    "MissingExtra",
    "NoSpace",
    "NotAllowed",
    "NotFound",
    "Refused",
    "StoreUnavailable",
    "UsageError",
    "open_dataset",
    "pack",
    "sync",
    "train",
]


def __getattr__(name: str) -> object:
    import importlib

    if name in __all__:
        return getattr(importlib.import_module(_ROOMS.get(name, "datakit.errors")), name)
    raise AttributeError(f"module 'datakit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
