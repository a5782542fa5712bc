"""Master keys in AWS KMS."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from holdfast._lazy import missing_extra
from holdfast.errors import ConfigError, DeniedError, TransientError
from holdfast.security.encryption.provider import KeyProvider, altered_key

_ABSENT = frozenset({"NotFoundException", "DisabledException", "KMSInvalidStateException", "InvalidKeyUsageException"})
_REFUSED = frozenset({"AccessDeniedException", "UnrecognizedClientException", "InvalidSignatureException"})


class AwsKms(KeyProvider):
    """A symmetric key in AWS KMS, by its id, ARN or alias: it never leaves the service.

    The tenant and the purpose of a key are its encryption context. `client` is one of boto3 for `kms`; by default, one
    with boto3's own settings.
    """

    def __init__(self, key: str, *, client: Any = None) -> None:
        if not key:
            raise ConfigError("a key of AWS KMS is named by its id, ARN or alias", hint="Such as alias/holdfast")
        self._key = key
        self._client = client
        self._arn = ""

    def __repr__(self) -> str:
        return f"AwsKms({self._key!r})"

    @property
    def key_id(self) -> str:
        if not self._arn:  # an alias may be moved: what it wrapped is found by the key itself
            self._arn = str(self._call(lambda kms: kms.describe_key(KeyId=self._key))["KeyMetadata"]["Arn"])
        return self._arn

    def wrap(self, key: bytes, context: Mapping[str, str]) -> bytes:
        id = self.key_id
        answer = self._call(lambda kms: kms.encrypt(KeyId=id, Plaintext=key, EncryptionContext=dict(context)))
        return bytes(answer["CiphertextBlob"])

    def unwrap(self, wrapped: bytes, key_id: str, context: Mapping[str, str]) -> bytes:
        answer = self._call(
            lambda kms: kms.decrypt(KeyId=key_id, CiphertextBlob=wrapped, EncryptionContext=dict(context))
        )
        return bytes(answer["Plaintext"])

    def _call(self, request: Callable[[Any], Any]) -> Any:
        try:
            from botocore import exceptions
        except ImportError as error:
            raise missing_extra("aws", error) from error
        try:
            return request(self._kms())
        except exceptions.ClientError as error:
            raise self._error(str(error.response.get("Error", {}).get("Code", "")), error) from error
        except (exceptions.NoCredentialsError, exceptions.NoRegionError, exceptions.PartialCredentialsError) as error:
            raise ConfigError(f"AWS KMS cannot be used: {error}", where=str(self)) from error
        except exceptions.BotoCoreError as error:
            raise TransientError(f"AWS KMS cannot be reached: {error}", where=str(self)) from error

    def _kms(self) -> Any:
        if self._client is None:
            import boto3

            self._client = boto3.client("kms")
        return self._client

    def _error(self, code: str, error: Exception) -> Exception:
        if code in ("InvalidCiphertextException", "IncorrectKeyException"):
            return altered_key(self._key, str(self))
        if code in _ABSENT:
            return DeniedError(
                f"AWS KMS has no such key, or it is disabled: {error}",
                where=str(self),
                hint="Enable it, or name the key that the store was created with",
                code="key-missing",
            )
        if code in _REFUSED:
            return DeniedError(f"AWS KMS refuses the use of the key: {error}", where=str(self), hint="Check its policy")
        return TransientError(f"AWS KMS failed: {error}", where=str(self))
