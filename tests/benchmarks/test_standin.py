"""The stand-in: an import that needs torchvision's names succeeds, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import run


def test_the_names_that_streaming_takes_are_there() -> None:
    """The three imports of its vision module work without torchvision, and find empty names."""
    script = (
        f"import sys; sys.path.insert(0, {str(Path(run.__file__).parent)!r})\n"
        "from frame.standin import stand_in_for_torchvision\n"
        "stand_in_for_torchvision()\n"
        "from torchvision.datasets import VisionDataset\n"
        "from torchvision.transforms.functional import to_tensor\n"
        "from torchvision import transforms\n"
        "print(VisionDataset.__name__, to_tensor, transforms.functional.__name__)\n"
    )

    done = subprocess.run([sys.executable, "-S", "-c", script], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "VisionDataset None torchvision.transforms.functional"
