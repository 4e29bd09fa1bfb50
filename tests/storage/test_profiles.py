"""storage/profiles: what is sent to a provider's store follows from its address, and the settings come first."""

from __future__ import annotations

import pytest

from datakit import Refused, UsageError
from datakit.storage.access import StoreOptions
from datakit.storage.profiles import PROFILES, profile_of
from datakit.storage.store import ObstoreStore, open_location
from support.faulty import FaultyServer


@pytest.mark.parametrize(
    ("endpoint", "virtual", "region"),
    [
        (None, False, "us-east-1"),
        ("https://oss-cn-hangzhou-internal.aliyuncs.com", True, "us-east-1"),
        ("https://cos.ap-shanghai.myqcloud.com", True, "us-east-1"),
        ("https://tos-s3-cn-beijing.ivolces.com", True, "us-east-1"),
        ("https://0123.r2.cloudflarestorage.com", False, "auto"),
        ("http://minio.local:9000", False, "us-east-1"),
    ],
)
def test_the_address_decides_what_was_not_said(endpoint: str | None, virtual: bool, region: str) -> None:
    """OSS, COS and TOS refuse the bucket in the path; R2 signs for a region called auto."""
    profile = StoreOptions(endpoint_url=endpoint).profile("s3://b")

    assert (profile.virtual_hosted, profile.region) == (virtual, region)


def test_what_was_said_comes_first() -> None:
    """A proxy before OSS that wants the path style, and a domain of one's own before MinIO."""
    path = StoreOptions(endpoint_url="https://oss-cn-hangzhou.aliyuncs.com", virtual_hosted=False)
    own = StoreOptions(endpoint_url="https://files.example.org", provider="tencent-cos")

    assert path.profile("s3://b").virtual_hosted is False
    assert own.profile("s3://b").virtual_hosted is True


def test_a_provider_that_nobody_knows_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="'minoi' is no provider that is known") as refused:
        StoreOptions(provider="minoi")

    assert refused.value.hint == "Did you mean minio?"


@pytest.mark.parametrize(
    "options",
    [
        StoreOptions(provider="ceph-rgw", virtual_hosted=False),
        StoreOptions(endpoint_url="https://x.example", virtual_hosted=True),
        StoreOptions(),
    ],
)
def test_a_child_process_speaks_to_the_store_as_its_parent_does(options: StoreOptions) -> None:
    """The environment carries what was said, and nothing that was not."""
    told = StoreOptions.from_environment(options.to_environment({}))

    assert told.profile("s3://b") == options.profile("s3://b")


def test_a_store_that_may_ignore_a_condition_is_looked_at_first(faulty: FaultyServer) -> None:
    """Nothing is written over what is there, by a HEAD more; a store that is known to look is not asked twice."""
    faulty.put("taken", b"theirs")
    options = StoreOptions(**faulty_options(faulty), provider="aliyun-oss", virtual_hosted=False)
    careful = ObstoreStore(faulty.url, options=options)
    plain = open_location(faulty.url).store

    for store in (careful, plain):
        with pytest.raises(Refused, match="exists already"):
            store.write("taken", b"ours", create=True)
        with pytest.raises(Refused, match="was replaced"):
            store.write("taken", b"ours", replaces='"another"')
    made = careful.write("free", b"ours", create=True)
    careful.write("free", b"newer", replaces=made.etag)

    assert faulty.objects["taken"][0] == b"theirs"
    assert faulty.objects["free"][0] == b"newer"
    assert (careful.requests.head, careful.requests.put) == (4, 2)
    assert (plain.requests.head, plain.requests.put) == (0, 2)


def faulty_options(faulty: FaultyServer) -> dict[str, str]:
    return {
        "endpoint_url": faulty.endpoint,
        "region": "us-east-1",
        "access_key_id": faulty.env["AWS_ACCESS_KEY_ID"],
        "secret_access_key": faulty.env["AWS_SECRET_ACCESS_KEY"],
    }


def test_every_profile_can_be_told_apart() -> None:
    """No host is two providers', and none has two profiles."""
    hosts = [host for profile in PROFILES for host in profile.hosts]

    assert len(hosts) == len(set(hosts))
    assert len({profile.provider for profile in PROFILES}) == len(PROFILES)
    for profile in PROFILES:
        for host in profile.hosts:
            assert profile_of("s3://b", endpoint=f"https://x.{host}") == profile
