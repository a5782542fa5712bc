"""Who acts, what they may, and what they did: the one place every path to scoped state passes."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.security.access.identity import Identity as Identity
    from holdfast.security.access.policy import Policy as Policy
    from holdfast.security.access.policy import Right as Right
    from holdfast.security.access.policy import Rights as Rights
    from holdfast.security.access.policy import Rule as Rule
    from holdfast.security.audit.export import AuditArchive as AuditArchive
    from holdfast.security.audit.export import AuditCheck as AuditCheck
    from holdfast.security.audit.export import AuditExport as AuditExport
    from holdfast.security.audit.export import check_audit as check_audit
    from holdfast.security.audit.query import AuditRecord as AuditRecord
    from holdfast.security.audit.verify import AuditFinding as AuditFinding
    from holdfast.security.audit.verify import AuditReport as AuditReport
    from holdfast.security.encryption.provider import AwsKms as AwsKms
    from holdfast.security.encryption.provider import EnvironmentKeys as EnvironmentKeys
    from holdfast.security.encryption.provider import FileKeys as FileKeys
    from holdfast.security.encryption.provider import KeyProvider as KeyProvider
    from holdfast.security.encryption.provider import KeyringKeys as KeyringKeys
    from holdfast.security.encryption.provider import LocalKeys as LocalKeys
    from holdfast.security.encryption.provider import PassphraseKeys as PassphraseKeys
    from holdfast.security.encryption.provider import generate_key as generate_key
    from holdfast.security.encryption.settings import Clear as Clear
    from holdfast.security.encryption.settings import Encryption as Encryption
    from holdfast.security.encryption.settings import Mode as Mode
    from holdfast.security.sensitive.credential_check import CredentialReport as CredentialReport
    from holdfast.security.sensitive.detector import PresidioRecognizer as PresidioRecognizer
    from holdfast.security.sensitive.detector import Recognizer as Recognizer
    from holdfast.security.sensitive.detector import SensitiveSpan as SensitiveSpan
    from holdfast.security.sensitive.detector import find as find
    from holdfast.security.sensitive.markers import KeySource as KeySource
    from holdfast.security.sensitive.policies import SensitivePolicy as SensitivePolicy
    from holdfast.security.sensitive.scan import SensitiveFinding as SensitiveFinding
    from holdfast.security.sensitive.scan import SensitiveReport as SensitiveReport

_MODULES = {
    "holdfast.security.access.identity": ("Identity",),
    "holdfast.security.access.policy": ("Policy", "Right", "Rights", "Rule"),
    "holdfast.security.audit.export": ("AuditArchive", "AuditCheck", "AuditExport", "check_audit"),
    "holdfast.security.audit.query": ("AuditRecord",),
    "holdfast.security.audit.verify": ("AuditFinding", "AuditReport"),
    "holdfast.security.sensitive.credential_check": ("CredentialReport",),
    "holdfast.security.sensitive.detector": ("find", "PresidioRecognizer", "Recognizer", "SensitiveSpan"),
    "holdfast.security.sensitive.markers": ("KeySource",),
    "holdfast.security.sensitive.policies": ("SensitivePolicy",),
    "holdfast.security.sensitive.scan": ("SensitiveFinding", "SensitiveReport"),
    "holdfast.security.encryption.provider": (
        "AwsKms",
        "EnvironmentKeys",
        "FileKeys",
        "generate_key",
        "KeyProvider",
        "KeyringKeys",
        "LocalKeys",
        "PassphraseKeys",
    ),
    "holdfast.security.encryption.settings": ("Clear", "Encryption", "Mode"),
}

if not TYPE_CHECKING:  # a type checker is to see the names above, and no others
    from holdfast._lazy import exports

    __all__, __getattr__, __dir__ = exports(__name__, _MODULES)
