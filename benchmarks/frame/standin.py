"""standin: an empty torchvision, without which mosaicml-streaming cannot be imported and which it does not need here.

Its package imports `streaming.vision`, which imports torchvision for its image classes; the torchvision that fits this
torch would be one more gigabyte, and no arm uses an image class. Whatever is measured is streaming's own code.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType


def stand_in_for_torchvision() -> None:
    """Make `import torchvision` give modules with the three names that streaming takes from it."""
    modules = {}
    for name in ("torchvision", "torchvision.datasets", "torchvision.transforms", "torchvision.transforms.functional"):
        modules[name] = sys.modules[name] = ModuleType(name)
        modules[name].__spec__ = ModuleSpec(name, None)
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(modules[parent], child, modules[name])
    modules["torchvision.datasets"].VisionDataset = type("VisionDataset", (), {})  # type: ignore[attr-defined]  # made up
    modules["torchvision.transforms.functional"].to_tensor = None  # type: ignore[attr-defined]  # made up
