"""Providers of keys: each passes the suite, and says what is wrong."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.error import URLError

import pytest

from holdfast.encryption import Encryption, KeyProvider, LocalKeys, generate_key
from holdfast.errors import ConfigError, DeniedError, TransientError
from holdfast.security.encryption.provider import AwsKms, EnvironmentKeys, FileKeys, KeyringKeys
from holdfast.security.encryption.settings import provider_for
from holdfast.store.doctor import examine
from holdfast.store.opener import open_existing
from holdfast.testing.key_providers import KeyProviderSuite


class TestLocal(KeyProviderSuite):
    @pytest.fixture
    def provider(self) -> KeyProvider:
        return LocalKeys(generate_key())

    @pytest.fixture
    def other(self) -> KeyProvider:
        return LocalKeys(generate_key())


class TestEnvironment(KeyProviderSuite):
    @pytest.fixture
    def provider(self, monkeypatch: pytest.MonkeyPatch) -> KeyProvider:
        monkeypatch.setenv("A_KEY", f"{generate_key()}, {generate_key()}")
        return EnvironmentKeys("A_KEY")

    @pytest.fixture
    def other(self, monkeypatch: pytest.MonkeyPatch) -> KeyProvider:
        monkeypatch.setenv("ANOTHER_KEY", generate_key())
        return EnvironmentKeys("ANOTHER_KEY")


class TestFile(KeyProviderSuite):
    @pytest.fixture
    def provider(self, tmp_path: Path) -> KeyProvider:
        return FileKeys(key_file(tmp_path / "one"))

    @pytest.fixture
    def other(self, tmp_path: Path) -> KeyProvider:
        return FileKeys(key_file(tmp_path / "two"))


class TestKeyring(KeyProviderSuite):
    @pytest.fixture(autouse=True)
    def ring(self) -> Iterator[None]:
        keyring = pytest.importorskip("keyring")
        from keyring.backend import KeyringBackend

        class InMemory(KeyringBackend):
            priority = 1

            def __init__(self) -> None:
                super().__init__()  # type: ignore[no-untyped-call]
                self.passwords: dict[tuple[str, str], str] = {}

            def get_password(self, service: str, username: str) -> str | None:
                return self.passwords.get((service, username))

            def set_password(self, service: str, username: str, password: str) -> None:
                self.passwords[service, username] = password

        before = keyring.get_keyring()
        keyring.set_keyring(InMemory())
        for name in ("one", "two"):
            keyring.set_password("holdfast", name, generate_key())
        yield
        keyring.set_keyring(before)

    @pytest.fixture
    def provider(self) -> KeyProvider:
        return KeyringKeys("one")

    @pytest.fixture
    def other(self) -> KeyProvider:
        return KeyringKeys("two")

    def test_one_that_is_not_there(self) -> None:
        with pytest.raises(DeniedError) as caught:
            _ = KeyringKeys("three").key_id
        assert caught.value.code == "key-missing"


class CountingClient:
    """Counts the requests to KMS, and fails as it is told."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.calls: list[tuple[str, dict[str, str]]] = []
        self.failure: Exception | None = None

    def __getattr__(self, name: str) -> Any:
        def call(**arguments: Any) -> Any:
            self.calls.append((name, arguments.get("EncryptionContext", {})))
            if self.failure is not None:
                raise self.failure
            return getattr(self._client, name)(**arguments)

        return call


@pytest.fixture
def kms(monkeypatch: pytest.MonkeyPatch) -> Iterator[CountingClient]:
    """The real client of boto3, with KMS as moto has it."""
    boto3, moto = pytest.importorskip("boto3"), pytest.importorskip("moto")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    with moto.mock_aws():
        yield CountingClient(boto3.client("kms", region_name="eu-central-1"))


@pytest.mark.nightly
class TestKms(KeyProviderSuite):
    @pytest.fixture
    def provider(self, kms: CountingClient) -> KeyProvider:
        id = kms.create_key()["KeyMetadata"]["KeyId"]
        kms.create_alias(AliasName="alias/holdfast", TargetKeyId=id)
        return AwsKms("alias/holdfast", client=kms)

    @pytest.fixture
    def other(self, kms: CountingClient) -> KeyProvider:
        return AwsKms(kms.create_key()["KeyMetadata"]["KeyId"], client=kms)

    def test_an_outage_is_transient(self, provider: KeyProvider, kms: CountingClient, tmp_path: Path) -> None:
        from botocore.exceptions import ClientError, EndpointConnectionError

        import holdfast

        url = f"sqlite:///{tmp_path}/a.db"
        encryption = Encryption(provider, max_age=0.001)
        with holdfast.open(url, encryption=encryption) as store:
            store.thread("t").put({"n": 1})
            throttled = ClientError({"Error": {"Code": "ThrottlingException"}}, "Decrypt")
            for failure in (EndpointConnectionError(endpoint_url="https://kms"), throttled):
                kms.failure = failure
                with pytest.raises(TransientError):
                    holdfast.open(url, encryption=Encryption(provider))
                with pytest.raises(TransientError):  # the keys in memory are too old
                    store.thread("u").put({"n": 1})
                with pytest.raises(TransientError):
                    store.thread("t").get()
                kms.failure = None
                store.thread("u").put({"n": 2})
            assert store.thread("u").get().state == {"n": 2}

    def test_keys_in_memory_are_used_for_a_limited_number(self, provider: KeyProvider, kms: CountingClient) -> None:
        import holdfast

        with holdfast.open("memory://", encryption=Encryption(provider, max_uses=5)) as store:
            kms.calls.clear()
            for number in range(20):
                store.thread(f"t{number}").put({"n": number})
            assert 3 * 3 <= len(kms.calls) <= 3 * 5  # two keys and their list, after five uses each

    def test_a_disabled_key_is_missing(self, provider: KeyProvider, kms: CountingClient) -> None:
        from botocore.exceptions import ClientError

        id, wrapped = provider.key_id, provider.wrap(b"k" * 32, {})
        for code, expected in (("DisabledException", "key-missing"), ("AccessDeniedException", "denied")):
            kms.failure = ClientError({"Error": {"Code": code}}, "Decrypt")  # moto decrypts with a disabled key
            with pytest.raises(DeniedError) as caught:
                provider.unwrap(wrapped, id, {})
            assert caught.value.code == expected
        kms.failure = None
        with pytest.raises(DeniedError) as caught:
            _ = AwsKms("alias/none", client=kms).key_id
        assert caught.value.code == "key-missing"


def test_kms_is_asked_for_keys_and_not_for_steps(kms: CountingClient) -> None:
    import holdfast

    provider = AwsKms(kms.create_key()["KeyMetadata"]["KeyId"], client=kms)
    kms.calls.clear()
    with holdfast.open("memory://", tenant="acme", encryption=Encryption(provider)) as store:
        for number in range(20):
            store.thread(f"t{number % 3}").put({"n": number})
        assert store.thread("t1").get().state == {"n": 19}
    names = [name for name, _ in kms.calls]
    assert names.count("encrypt") == names.count("decrypt") == 3  # the wrapping key, that for digests, and their list
    contexts = [context for name, context in kms.calls if name == "encrypt"]
    assert {(each["tenant"], each["purpose"]) for each in contexts} == {
        ("acme", "holdfast-wrapping"),
        ("acme", "holdfast-digest"),
        ("acme", "holdfast-list"),
    }


class UnreachableKeys(LocalKeys):
    """A provider whose service is away now and then, and that says so with errors of the standard library."""

    failure: OSError | None = None

    def unwrap(self, wrapped: bytes, key_id: str, context: Mapping[str, str]) -> bytes:
        if self.failure is not None:
            raise self.failure
        return super().unwrap(wrapped, key_id, context)


def test_errors_of_the_network_are_transient(tmp_path: Path) -> None:
    import holdfast

    provider = UnreachableKeys(b"1" * 32)
    with holdfast.open(tmp_path / "a.db", encryption=Encryption(provider)) as store:
        store.thread("t").put({"n": 1})
    for failure in (ConnectionRefusedError(111, "no"), TimeoutError(), socket.gaierror(), URLError(TimeoutError())):
        provider.failure = failure
        with pytest.raises(TransientError) as caught:
            holdfast.open(tmp_path / "a.db", encryption=Encryption(provider))
        assert caught.value.__cause__ is failure
    provider.failure = FileNotFoundError()
    with pytest.raises(FileNotFoundError):  # the control: not every error goes away when one waits
        holdfast.open(tmp_path / "a.db", encryption=Encryption(provider))


def key_file(path: Path, *keys: str) -> Path:
    path.write_text("# comment\n\n" + "\n".join(keys or [generate_key()]) + "\n")
    path.chmod(0o600)
    return path


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o777])
def test_a_file_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = key_file(tmp_path / "key")
    assert FileKeys(path).key_id  # the control
    path.chmod(mode)
    with pytest.raises(ConfigError, match="others may read"):
        _ = FileKeys(path).key_id


def test_what_is_no_key_is_refused_and_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "c2hvcnQ-not-a-key"
    monkeypatch.setenv("A_KEY", secret)
    in_file = FileKeys(key_file(tmp_path / "k", secret))
    for provider in (LocalKeys(secret), LocalKeys(b"short"), EnvironmentKeys("A_KEY"), in_file):
        with pytest.raises(ConfigError, match="a master key is 32 bytes") as caught:
            _ = provider.key_id
        assert secret not in str(caught.value)
    for missing in (LocalKeys(), EnvironmentKeys("NOT_SET"), FileKeys(tmp_path / "none")):
        with pytest.raises(DeniedError) as refused:
            _ = missing.key_id
        assert refused.value.code == "key-missing"


def test_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import holdfast

    assert repr(provider_for("environment")) == "EnvironmentKeys('HOLDFAST_KEY')"
    assert repr(provider_for("environment:MINE")) == "EnvironmentKeys('MINE')"
    assert repr(provider_for("keyring")) == "KeyringKeys('default', service='holdfast')"
    assert repr(provider_for("aws-kms:alias/a")) == "AwsKms('alias/a')"
    for text in ("file", "vault:x", ""):
        with pytest.raises(ConfigError, match="no provider of keys"):
            provider_for(text)
    for wrong in ({}, {"keys": 1}, {"keys": "environment", "colour": 1}):
        with pytest.raises(ConfigError):
            Encryption.from_settings(wrong)
    arguments: dict[str, Any]
    for arguments in ({"mode": "off"}, {"clear": "words"}, {"clear": ["everything"]}, {"max_age": 0}, {"max_uses": -1}):
        with pytest.raises(ConfigError):
            Encryption(LocalKeys(), **arguments)
    key = generate_key()
    with pytest.raises(ConfigError, match="provider of keys") as refused:
        Encryption(key)
    assert "LocalKeys" in str(refused.value)
    assert key not in str(refused.value), "a key that is given in the place of a provider is not shown"
    with pytest.raises(ConfigError, match="provider of keys"):
        Encryption(5)  # type: ignore[arg-type]
    key_file(tmp_path / "key")
    (tmp_path / "holdfast.toml").write_text(
        f'[stores.default]\nurl = "{tmp_path}/a.db"\nencryption = "file:{tmp_path}/key"\n'
        f'[stores.other]\nurl = "{tmp_path}/b.db"\nencryption = {{keys = "file:${{FOLDER}}/key", clear = ["words"]}}\n'
    )
    monkeypatch.setenv("FOLDER", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for name in (None, "stores.other"):
        with holdfast.open(name) as store:
            store.thread("t").put({"text": "planted"})
            assert store.encryption_keys.check().ok
    with open_existing() as store:
        assert store.thread("t").get().state == {"text": "planted"}
    assert all(each.ok for each in examine() if each.code == "store-opens")
    with pytest.raises(DeniedError, match="without a key"):
        holdfast.open(tmp_path / "a.db")
    assert [each.ok for each in examine(f"{tmp_path}/a.db") if each.code == "store-opens"] == [False]
    monkeypatch.setenv("HOLDFAST_ENCRYPTION", f"file:{tmp_path}/key")
    with holdfast.open(tmp_path / "a.db") as store:
        assert store.thread("t").get().state == {"text": "planted"}
    with pytest.raises(DeniedError, match="without a key"):
        holdfast.open(tmp_path / "a.db", encryption=False)
    with pytest.raises(ConfigError, match="encryption must be an Encryption"):
        holdfast.open(tmp_path / "a.db", encryption="environment")  # type: ignore[arg-type]
