"""Events are plain values that a listener may keep, compare and send elsewhere."""

from __future__ import annotations

import dataclasses
import pickle

import pytest

from datakit.events import Caution, Event, Note, Progress, ignore

EVENTS: list[Event] = [
    Progress("pack", 3, 10, "samples"),
    Progress("download", 3, None, "B"),
    Note("resuming from step 20"),
    Caution("upload of step 10 failed", hint="datakit sync runs/x s3://bkt/x"),
]


@pytest.mark.parametrize("event", EVENTS)
def test_an_event_cannot_be_changed_and_travels(event: Event) -> None:
    """An event is frozen, equal to its copy, and survives pickling."""
    field = dataclasses.fields(event)[0].name

    back = pickle.loads(pickle.dumps(event))

    assert back == event
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(event, field, "other")


@pytest.mark.parametrize("event", EVENTS)
def test_the_default_listener_takes_every_event_in_silence(event: Event, capfd: pytest.CaptureFixture[str]) -> None:
    """`ignore` writes nothing."""
    ignore(event)

    assert capfd.readouterr() == ("", "")
