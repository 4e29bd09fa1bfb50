"""client: obstore's client of a bucket, with our patience instead of its own and what the store's provider wants.

It promises that nothing of the environment gets into a client that was given options: a foreign token beside one's own
keys is refused by the store with words that lead astray.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from datakit.errors import MissingExtra
from datakit.storage.access import StoreOptions

if TYPE_CHECKING:
    from obstore.store import ObjectStore

CONNECT_TIMEOUT_S = 3
"""A reachable endpoint answers a TCP connect in well under a second; three allow for one lost SYN (RFC 6298)."""

READ_TIMEOUT_S = 20
"""A body that brings no byte for so long is stalled. boto3 waits 60 s, s3fs 15 s, obstore's stream 30 s."""

REQUEST_TIMEOUT_S = 900
"""A bound on one request however well it moves: a 16 MiB part at 20 kB/s."""


def connect(url: str, options: StoreOptions, *, retries: int = 0) -> ObjectStore:
    """A client of obstore for a bucket; nothing is asked of any network.

    Args:
        url: The bucket.
        options: How to reach it.
        retries: Tries of its own beyond the first.

    Raises:
        MissingExtra: obstore is not installed.
    """
    try:
        import obstore.store as clients
    except ImportError:
        raise MissingExtra("obstore", extra="s3") from None
    scheme, _, bucket = url.partition("://")
    client: Any = {
        "timeout": f"{REQUEST_TIMEOUT_S}s",
        "connect_timeout": f"{CONNECT_TIMEOUT_S}s",
        "read_timeout": f"{READ_TIMEOUT_S}s",
        "allow_http": (options.endpoint_url or "").startswith("http://"),
    }
    # its own retries are off but inside uploads: they are counted nowhere, and one deadline kills slow progress
    retry: Any = {"max_retries": retries, "retry_timeout": timedelta(seconds=REQUEST_TIMEOUT_S)}
    if scheme != "s3":
        return clients.from_url(url, client_options=client, retry_config=retry)
    profile = options.profile(url)
    region = options.region or profile.region
    endpoint = options.endpoint_url or f"https://s3.{region}.amazonaws.com{'.cn' if region.startswith('cn-') else ''}"
    if profile.virtual_hosted:
        endpoint = endpoint.replace("://", f"://{bucket}.", 1)
    config: Any = {
        "endpoint": endpoint,
        "region": region,
        "virtual_hosted_style_request": profile.virtual_hosted,
        "skip_signature": options.anonymous,
    }
    # every value is given: what is not, the library takes from the environment, as a foreign token beside these keys
    credentials: Any = {
        "access_key_id": options.access_key_id,
        "secret_access_key": options.secret_access_key,
        "token": options.session_token,
        "expires_at": None,
    }
    provider: Any = None if options.access_key_id is None else lambda: credentials
    return clients.S3Store(
        bucket, config=config, client_options=client, retry_config=retry, credential_provider=provider
    )
