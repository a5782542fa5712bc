"""What a step of state says of itself."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.backends.interface import Scan
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import STEPS
from holdfast.codec import default_codec
from holdfast.engine import trace_context
from holdfast.engine.row_format import Line, open_step
from tests.state.kit import Clock, store_on

NAMES = st.text("abcé/ü", min_size=1, max_size=40).filter(lambda text: "//" not in text and text.strip("/") == text)


@given(keys=st.sets(NAMES, min_size=1, max_size=5), correlation=NAMES, cause=NAMES)
def test_metadata_is_as_the_codec_packs_it(keys: set[str], correlation: str, cause: str) -> None:
    with store_on(MemoryBackend(), Clock()) as store:
        state = store.as_identity(agent="a").state(agent="a")
        with trace_context.correlation(correlation, cause=cause):
            state.batch(dict.fromkeys(keys, 1))
        line = Line("", "␞agent:a")
        (rows,) = run(store._engine.context.backend.read([Scan(STEPS, tuple(line))]))
        packed = open_step(line, rows[0], 1 << 20).header.metadata
    about = default_codec.unpack(packed)
    assert default_codec.pack(about) == packed
    assert about["before"] == (dict.fromkeys(keys, 0) if len(keys) > 1 else 0)
    assert (about["actor"], about["correlation"], about["cause"]) == ("agent:a", correlation, cause)
