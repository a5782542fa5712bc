"""LangGraph's own clients against a served store: `langgraph-sdk` and `RemoteGraph`."""
