"""datakit: from raw files to a finished LoRA adapter on rented GPUs, with every byte and sample accounted for.

The public names below are loaded when first used, so that `import datakit` costs milliseconds and needs none of the
optional libraries. `pack` and `train` are verbs and also wings of the house: the modules of these wings can be called.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datakit.errors import (
        Busy,
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
    from datakit.feed.cached import open_cached
    from datakit.feed.dataset import open_dataset
    from datakit.feed.loader import Loader
    from datakit.pack.build import pack
    from datakit.storage.sync import sync
    from datakit.train.loop import train

__version__ = "0.1.0"

_ROOMS = {
    "Loader": "datakit.feed.loader",
    "open_cached": "datakit.feed.cached",
    "open_dataset": "datakit.feed.dataset",
    "pack": "datakit.pack.build",
    "sync": "datakit.storage.sync",
    "train": "datakit.train.loop",
}

__all__ = [
    "Busy",
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
    "open_cached",
    "open_dataset",
    "pack",
    "sync",
    "train",
]


_WINGS = ("pack", "train")


class _Wing(ModuleType):
    """A wing that is a verb too: calling `datakit.train` calls `datakit.train.loop.train`."""

    @property
    def __wrapped__(self) -> Any:  # help() and inspect.signature() look here
        verb = self.__name__.rpartition(".")[2]
        return getattr(importlib.import_module(_ROOMS[verb]), verb)

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self.__wrapped__(*args, **options)


class _House(ModuleType):
    """This module; it makes a wing callable at the moment the import system hangs it here."""

    def __setattr__(self, name: str, value: object) -> None:
        if name in _WINGS and isinstance(value, ModuleType):
            value.__class__ = _Wing
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _House


def __getattr__(name: str) -> object:
    if name in _WINGS:
        return importlib.import_module(f"datakit.{name}")
    if name in __all__:
        return getattr(importlib.import_module(_ROOMS.get(name, "datakit.errors")), name)
    raise AttributeError(f"module 'datakit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
