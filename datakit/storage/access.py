"""access: how to get into a store: address, credentials, addressing style.

Options come from a named store of the settings, or from the environment variables and files that AWS's own tools read
(`AWS_ENDPOINT_URL`, `AWS_ACCESS_KEY_ID`, `AWS_PROFILE`, `~/.aws/credentials`, ...). It promises that no secret stands
in a repr. It does not refresh credentials; instance roles and web identities are found by the client library itself.

Source of the names: "Environment variables" and "Configuration and credential file settings", AWS CLI user guide.
"""

from __future__ import annotations

import configparser
import dataclasses
import difflib
import os
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from datakit.errors import UsageError
from datakit.storage import profiles

SCHEMES = ("s3", "gs", "az")
"""URL schemes that obstore carries."""

VARIABLES = (
    "AWS_ACCESS_KEY_ID",
    "AWS_CONFIG_FILE",
    "AWS_DEFAULT_REGION",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "AWS_PROFILE",
    "AWS_REGION",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_SKIP_SIGNATURE",
    "AWS_VIRTUAL_HOSTED_STYLE_REQUEST",
    "DATAKIT_STORE_PROVIDER",
)
"""Everything of an environment that options are read from."""


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """How to reach one store.

    Attributes:
        url: What the store is called: `s3://bucket` or `s3://bucket/prefix`. URLs that begin with it use these options,
            and `NAME://x` means `url/x` for a store that is named NAME in the settings.
        endpoint_url: Address of the service where it is not AWS. `http://` is accepted because it was written out.
        region: Region of the bucket.
        access_key_id: Who.
        secret_access_key: The secret; masked in every repr.
        session_token: The token of temporary credentials; masked.
        provider: Whose store it is, where its endpoint does not tell: `minio`, `ceph-rgw`, `aliyun-oss` and so on.
        virtual_hosted: Bucket in the host name instead of the path; what the provider wants, when not given.
        anonymous: Sign nothing: public buckets.
        client: `fsspec` reads S3 through s3fs instead of obstore: slower, and nothing can be written that way.
        get_per_10k: What 10,000 GET or HEAD requests cost you; the table's price when not given.
        put_per_10k: What 10,000 PUT, POST or LIST requests cost you.
        egress_per_gb: What a GB out of the store costs you; 0 where you work in its region.
        currency: Of these prices.
    """

    url: str | None = None
    endpoint_url: str | None = None
    region: str | None = None
    access_key_id: str | None = field(default=None, repr=False)
    secret_access_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    provider: str | None = None
    virtual_hosted: bool | None = None
    anonymous: bool = False
    client: Literal["fsspec"] | None = None
    get_per_10k: float | None = None
    put_per_10k: float | None = None
    egress_per_gb: float | None = None
    currency: str | None = None

    def __post_init__(self) -> None:
        if self.url is not None and "://" not in self.url:
            raise UsageError(f"{self.url!r} is not the URL of a store", hint="Write url: s3://bucket", subject=self.url)
        if self.endpoint_url is not None and not self.endpoint_url.startswith(("http://", "https://")):
            raise UsageError(
                f"endpoint_url {self.endpoint_url!r} needs http:// or https:// in front",
                hint="Write it with one: https://HOST:PORT",
                subject="endpoint_url",
            )
        if "@" in (self.endpoint_url or "").partition("://")[2].partition("/")[0]:
            raise UsageError(
                "endpoint_url holds a name or password, which would stand in messages",
                hint="Set access_key_id and secret_access_key instead",
                subject="endpoint_url",
            )
        if self.provider is not None and self.provider not in profiles.names():
            close = difflib.get_close_matches(self.provider, profiles.names(), n=1)
            hint = f"Did you mean {close[0]}?" if close else f"Write one of: {', '.join(profiles.names())}"
            raise UsageError(f"{self.provider!r} is no provider that is known", hint=hint, subject="provider")
        if (self.access_key_id is None) != (self.secret_access_key is None):
            raise UsageError("access_key_id and secret_access_key come together", hint="Set both, or neither")

    @classmethod
    def from_environment(cls, env: Mapping[str, str]) -> StoreOptions:
        """The options that AWS's own tools would find, except instance roles.

        Args:
            env: The environment; its `HOME` leads to the shared files.
        """
        profile = _profile(env)
        key = env.get("AWS_ACCESS_KEY_ID") or None
        source: Mapping[str, str] = (
            env if key else {f"AWS_{name.upper()[4:]}": value for name, value in profile.items()}
        )
        virtual = env.get("AWS_VIRTUAL_HOSTED_STYLE_REQUEST")
        return cls(
            endpoint_url=env.get("AWS_ENDPOINT_URL_S3") or env.get("AWS_ENDPOINT_URL") or profile.get("endpoint_url"),
            region=env.get("AWS_REGION") or env.get("AWS_DEFAULT_REGION") or profile.get("region"),
            access_key_id=source.get("AWS_ACCESS_KEY_ID"),
            secret_access_key=source.get("AWS_SECRET_ACCESS_KEY"),
            session_token=source.get("AWS_SESSION_TOKEN") or None,
            provider=env.get("DATAKIT_STORE_PROVIDER") or None,
            virtual_hosted=None if virtual is None else virtual.lower() in ("1", "true"),
            anonymous=env.get("AWS_SKIP_SIGNATURE", "").lower() in ("1", "true"),
        )

    def to_environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """An environment from which `from_environment` reads these options and no others, to tell a child process.

        Args:
            env: The environment that it has besides; what in it leads to a store, also by files, is left out.
        """
        kept = {name: value for name, value in env.items() if name not in VARIABLES}
        values = {
            "AWS_ENDPOINT_URL": self.endpoint_url,
            "AWS_REGION": self.region,
            "AWS_ACCESS_KEY_ID": self.access_key_id,
            "AWS_SECRET_ACCESS_KEY": self.secret_access_key,
            "AWS_SESSION_TOKEN": self.session_token,
            "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": None
            if self.virtual_hosted is None
            else str(self.virtual_hosted).lower(),
            "DATAKIT_STORE_PROVIDER": self.provider,
            "AWS_SKIP_SIGNATURE": "true" if self.anonymous else None,
        }
        files = {"AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull}
        return {**kept, **files, **{name: value for name, value in values.items() if value is not None}}

    def profile(self, url: str) -> profiles.Profile:
        """What the store at a URL does otherwise than Amazon's, with what these options say of it."""
        found = profiles.profile_of(url, endpoint=self.endpoint_url, provider=self.provider) or profiles.LIKE_AMAZON
        return found if self.virtual_hosted is None else dataclasses.replace(found, virtual_hosted=self.virtual_hosted)

    def over(self, fallback: StoreOptions) -> StoreOptions:
        """These options, with the fallback's where nothing was set; credentials come whole from one of the two."""
        who = fallback if self.access_key_id is None and not self.anonymous else self
        return dataclasses.replace(
            self,
            endpoint_url=self.endpoint_url or fallback.endpoint_url,
            region=self.region or fallback.region,
            provider=self.provider or fallback.provider,
            virtual_hosted=fallback.virtual_hosted if self.virtual_hosted is None else self.virtual_hosted,
            access_key_id=who.access_key_id,
            secret_access_key=who.secret_access_key,
            session_token=who.session_token,
        )


def refuse_slips(place: str, schemes: Iterable[str]) -> None:
    """Refuse what is nearly a URL: `s3:/bucket/x` would be a folder named `s3:` here, and `file://x` names a host.

    Raises:
        UsageError: With the URL that was probably meant.
    """
    scheme, colon, rest = place.partition(":")
    if colon and scheme.lower() in schemes and not rest.startswith("//"):
        url = ("file:///" if scheme.lower() == "file" else f"{scheme.lower()}://") + rest.lstrip("/")
        raise UsageError(
            f"{place} is no URL: {scheme}:// has two slashes",
            hint=f"Write {url}, or ./{place} for a file or folder of that name here",
            subject=place,
        )
    if scheme.lower() == "file" and colon and not place.startswith("file:///"):
        host, path = rest[2:].partition("/")[0], rest[2:].removeprefix("localhost/").lstrip("/")
        raise UsageError(  # RFC 8089: what stands between the second slash and the third is a host
            f"{place} names the host {host}, not a path" if host else f"{place} is not file:// and an absolute path",
            hint=f"Write file:///{path}" if path else "Write file:///PATH; a shell variable may be unset",
            subject=place,
        )


def local_path(place: Path | str, *, message: str | None = None, hint: str | None = None) -> Path:
    """The path that a person typed where only the local disk will do; a URL is seen before a path eats its slashes.

    Args:
        place: A path, or `file://` and an absolute path.
        message: What is said of another URL, if not that it is elsewhere.
        hint: What is advised, if not to bring it here.

    Raises:
        UsageError: It is another URL, or nearly one; or it is empty, as an unset variable is.
    """
    text = str(place)
    if not text:
        raise UsageError("a path is empty", hint="Write . for this directory; a shell variable may be unset")
    refuse_slips(text, (*SCHEMES, "file"))
    text = text.removeprefix("file://")
    if "://" in text:
        bring = f"Bring it here: datakit sync {shlex.quote(text)} DIR"
        raise UsageError(message or f"{text} is not on a local disk", hint=hint or bring, subject=text)
    return Path(text)


def refuse_reserved(named: Mapping[str, StoreOptions], reserved: Iterable[str]) -> None:
    """Refuse a store that is named like a scheme."""
    for name in reserved:
        if name in named:
            message = f"a store cannot be named {name}: every {name}:// URL would be taken for it"
            raise UsageError(message, hint="Give it another name under stores:", subject=name)


def nearest(text: str, named: Mapping[str, StoreOptions]) -> StoreOptions | None:
    """The store whose URL is the longest beginning of this one; stores that cannot be used now are passed over."""
    found: StoreOptions | None = None
    for name in named:
        try:
            store = named[name]
        except UsageError as error:
            if isinstance(error.subject, str) and f"{text}/".startswith(f"{error.subject.rstrip('/')}/"):
                raise
            continue
        url = (store.url or "").rstrip("/")
        if url and f"{text}/".startswith(f"{url}/") and (found is None or len(url) > len(found.url or "")):
            found = store
    return found


def refuse_s3_options(store: StoreOptions, scheme: str) -> None:
    """Refuse options that another kind of store would not get."""
    anywhere = {"url", "get_per_10k", "put_per_10k", "egress_per_gb", "currency"}
    fields = [each.name for each in dataclasses.fields(store)]
    given = [name for name in fields if name not in anywhere and getattr(store, name) not in (None, False)]
    if given:
        message = f"store {store.url} has {', '.join(given)}, which {scheme}:// does not take"
        hint = f"Remove it, and use the environment variables of {scheme}'s own tools"
        raise UsageError(message, hint=hint, subject=store.url)


def _profile(env: Mapping[str, str]) -> dict[str, str]:
    """The chosen profile of the shared files (`aws_access_key_id`, `region`, ...); empty where there is none."""
    home = env.get("HOME")
    if home is None:
        return {}
    name = env.get("AWS_PROFILE") or "default"
    files = {
        Path(env.get("AWS_CONFIG_FILE") or f"{home}/.aws/config"): name if name == "default" else f"profile {name}",
        Path(env.get("AWS_SHARED_CREDENTIALS_FILE") or f"{home}/.aws/credentials"): name,
    }
    found: dict[str, str] = {}
    for path, section in files.items():
        parser = configparser.RawConfigParser()
        try:
            parser.read(path, encoding="utf-8")
        except configparser.Error as error:
            raise UsageError(
                f"{path} cannot be read: {type(error).__name__}",
                hint="Mend it, or name others with AWS_CONFIG_FILE and AWS_SHARED_CREDENTIALS_FILE",
                subject=str(path),
            ) from None
        if parser.has_section(section):
            found.update(parser.items(section))
    return found
