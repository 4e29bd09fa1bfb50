"""stems: where a file's name ends being a key and begins being a part, and how a key hides what it may not hold.

Every reader of such tars cuts a member's name at the first dot after the last slash. Files on a disk are often named
otherwise (`v1.2-cat.jpg`), so the place of the cut can be chosen: `first-dot` as those readers do; `last-dot`; or
before the `known` extensions at the name's end, so that `a.b.c.jpg` has the stem `a.b.c` and `cat.seg.png` the stem
`cat`. A stem with a dot left in it is no key as it stands; written with its dots as `%2E` it is one.

Escaping is reversible and touches only what breaks a rule of `keys`, and `%` itself. Source of the notation: RFC 3986,
section 2.1.
"""

from __future__ import annotations

import re
from typing import Literal, TypeAlias

KeyRule: TypeAlias = Literal["first-dot", "last-dot", "known"]

_WORDS = """
    avif bmp dng exr gif hdr heic jp2 jpeg jpg pbm pgm png pnm ppm svg tga tif tiff webp
    aac aif aiff flac m4a mp3 ogg opus wav wma avi m4v mkv mov mp4 mpeg mpg webm
    csv htm html json jsonl md ndjson rst srt tex toml tsv txt vtt xml yaml yml
    arrow bin ckpt dcm feather h5 hdf5 las laz mat msgpack nii npy npz obj onnx parquet pb pcd pdf pickle pkl
    ply pt pth pyd safetensors stl
    bz2 gz lz4 tar xz zip zst
    bbox boxes caption captions cls cls2 conversation depth edge emb embedding flow gt id ids image index input
    inst instance key keypoints label labels lab left mask masks meta metadata normal normals orig original out
    output panoptic pose prompt right seg segmentation sem target text thumb video
"""
"""Of images, of sound and film, of text and data, of arrays and models, of packed files; and what a part is for, as the
documentation of webdataset and Energon names parts."""

KNOWN = frozenset(_WORDS.split())
"""Extensions that end a stem. A dot before any other word belongs to the stem, but for the last dot of a name."""

_PLAIN = re.compile(r"[A-Za-z0-9-][A-Za-z0-9 _-]*(?:/[A-Za-z0-9-][A-Za-z0-9 _-]*)*")
_EMPTY_STEP = re.compile(r"^/+|/+$|//+")
_ESCAPED = re.compile(rb"%([0-9A-F]{2})")


def cut_name(name: str, *, rule: KeyRule) -> tuple[str, str]:
    """Stem and suffix of a file's name, which may have folders; the suffix is empty where there is no dot.

    Example:
        >>> cut_name("cats/a.b.c.jpg", rule="known"), cut_name("cat.seg.png", rule="known")
        (('cats/a.b.c', 'jpg'), ('cat', 'seg.png'))
    """
    stem, _, suffix = name.partition(".")
    if "." not in suffix and "/" not in suffix:
        return stem, suffix  # most names have one dot, and all rules cut there
    first = name.find(".", name.rfind("/") + 1)
    if first < 0:
        return name, ""
    last = cut = name.rfind(".")
    if rule == "first-dot" or first == last:
        return name[:first], name[first + 1 :]
    if rule == "known":
        end, dot = len(name), last
        while dot >= first and name[dot + 1 : end].lower() in KNOWN:
            cut = end = dot
            dot = name.rfind(".", first, end)
    return name[:cut], name[cut + 1 :]


def escaped(key: str) -> str:
    """A key with every byte that breaks a rule, and `%`, as %XX; bytes that are no UTF-8 are surrogates, as in paths.

    Example:
        >>> escaped("v1.2/50%.a")
        'v1.2/50%25%2Ea'
    """
    if _PLAIN.fullmatch(key):
        return key
    text = "".join(map(_escaped_letter, key))
    steps = _EMPTY_STEP.sub(lambda found: "%2F" * len(found[0]), text).split("/")
    last = len(steps) - 1
    return "/".join(_escaped_step(step, last=number == last) for number, step in enumerate(steps))


def unescaped(key: str) -> str:
    """What `escaped` made a key of."""
    if "%" not in key:
        return key
    return _ESCAPED.sub(lambda found: bytes([int(found[1], 16)]), key.encode()).decode("utf-8", "surrogateescape")


def _escaped_step(step: str, *, last: bool) -> str:
    if last or step in (".", ".."):
        step = step.replace(".", "%2E")
    return f"%5F{step[1:]}" if step.startswith("__") and step.endswith("__") else step


def _escaped_letter(letter: str) -> str:
    code = ord(letter)
    if code < 32 or code == 127 or letter == "%":
        return f"%{code:02X}"
    # how a path holds a byte that is no UTF-8 (PEP 383)
    return f"%{code - 0xDC00:02X}" if 0xDC80 <= code <= 0xDCFF else letter
