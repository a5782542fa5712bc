"""`mongodb://` and `mongodb+srv://`: rows as documents, in a replica set."""

from holdfast._lazy import missing_extra

try:
    from holdfast.backends.mongodb.backend import MongoDBBackend
except ImportError as error:
    raise missing_extra("mongodb", error) from error

__all__ = ["MongoDBBackend"]
