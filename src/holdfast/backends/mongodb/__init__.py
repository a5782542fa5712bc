"""`mongodb://` and `mongodb+srv://`: rows as documents, in a replica set."""

from holdfast.backends.mongodb.backend import MongoDBBackend

__all__ = ["MongoDBBackend"]
