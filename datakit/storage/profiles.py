"""profiles: whose store an address is, and what that store does otherwise than Amazon's.

Each row is what is sent when nobody says more; a store's options in the settings come before it. Addresses that are
nobody's here (one's own server, a proxy) are taken for a server that does as Amazon does, with the bucket in the path,
unless the store names its `provider`. Nothing is probed here.

Sources: the providers' own pages on their S3 interface, and the quirk tables of rclone (backend/s3/provider) and
JuiceFS (pkg/object), read as facts on 2026-11-30.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True)
class Profile:
    """How one provider's object storage is spoken to.

    Attributes:
        provider: Its name, which is also that of its prices in `plan/storage`.
        hosts: Ends of the host names of its endpoints.
        virtual_hosted: Bucket in the host name; OSS, COS and TOS refuse it in the path.
        region: What requests are signed for where no region is set.
        conditional: Whether it is known to refuse a PUT with `If-None-Match: *` where an object is there already, and
            one with `If-Match` where another version is. Where not, what is there is looked at beforehand too, which
            leaves a moment in between.
        tags: Which objects have tags that tell their bytes (see `etags`): `all`; `whole`, those put by one request; or
            `none`. What has another tag is read back after an upload.
    """

    provider: str
    hosts: tuple[str, ...] = ()
    virtual_hosted: bool = False
    region: str = "us-east-1"
    conditional: bool = False
    tags: Literal["all", "whole", "none"] = "all"


MAX_PARTS = 10_000
"""Parts of one multipart upload, with every provider here."""

PROFILES: Sequence[Profile] = (
    Profile("aws-s3", ("amazonaws.com", "amazonaws.com.cn"), conditional=True),
    Profile("aliyun-oss", ("aliyuncs.com",), virtual_hosted=True, tags="whole"),
    Profile("tencent-cos", ("myqcloud.com",), virtual_hosted=True, tags="whole"),
    Profile("huawei-obs", ("myhuaweicloud.com",), virtual_hosted=True, tags="whole"),
    Profile("volcengine-tos", ("volces.com", "ivolces.com"), virtual_hosted=True, tags="whole"),
    Profile("cloudflare-r2", ("r2.cloudflarestorage.com",), region="auto", conditional=True, tags="whole"),
    Profile("gcs", ("storage.googleapis.com",), tags="none"),  # by s3:// through its XML interface, by HMAC keys
    Profile("azure-blob", ("core.windows.net",), tags="none"),
    Profile("backblaze-b2", ("backblazeb2.com",)),
    Profile("minio", conditional=True),
    Profile("ceph-rgw", conditional=True),
    Profile("wasabi", ("wasabisys.com",)),
    Profile("nebius", ("nebius.cloud",)),
    Profile("oracle", ("oraclecloud.com",)),
    Profile("ovhcloud", ("cloud.ovh.net",)),
    Profile("hetzner", ("your-objectstorage.com",)),
    Profile("tigris", ("tigris.dev",)),
    Profile("digitalocean-spaces", ("digitaloceanspaces.com",)),
    Profile("qiniu", ("qiniucs.com",), tags="whole"),
)

LIKE_AMAZON = Profile("unknown", conditional=True)
"""What an address that is nobody's is taken for: a server of one's own, which keeps conditions as MinIO and Ceph do.

That is believed, not known: an older server may ignore `If-None-Match`, and then of two that publish the same commit at
the same moment the later puts its object over the other's. A HEAD before each object would only shorten that moment, so
nobody else pays for one; a store that names its `provider` is spoken to as that provider's.
"""

_SCHEMES = {"s3": "aws-s3", "s3a": "aws-s3", "gs": "gcs", "gcs": "gcs", "az": "azure-blob", "azure": "azure-blob",
            "abfs": "azure-blob", "abfss": "azure-blob"}  # fmt: skip

_BY_NAME = {profile.provider: profile for profile in PROFILES}


def names() -> tuple[str, ...]:
    """Providers that a store of the settings may name."""
    return tuple(_BY_NAME)


def profile_of(url: str, *, endpoint: str | None = None, provider: str | None = None) -> Profile | None:
    """Whose store requests go to; None where that is not known.

    Args:
        url: Of the store, such as `s3://bucket/raw`.
        endpoint: Where its requests go when that is not the scheme's own vendor.
        provider: Whose store it is, where somebody has said so; one of `names`.

    Example:
        >>> profile_of("s3://b", endpoint="https://oss-cn-hangzhou.aliyuncs.com").provider
        'aliyun-oss'
    """
    if provider is not None:
        return _BY_NAME[provider]
    if endpoint:
        host = urlsplit(endpoint if "://" in endpoint else f"https://{endpoint}").hostname or ""
        return next(
            (profile for profile in PROFILES for end in profile.hosts if host == end or host.endswith(f".{end}")),
            None,
        )
    return _BY_NAME.get(_SCHEMES.get(urlsplit(url).scheme, ""))
