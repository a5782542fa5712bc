"""Classes that msgspec learns in several threads at once."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import holdfast

_PROGRAM = """
import sys, threading
import msgspec
{import_}
sys.setswitchinterval(1e-7)
parts = "".join(f"class Part{{n}}(msgspec.Struct):\\n    a: int\\n    b: 'list[str]'\\n" for n in range(10))
whole = "class Whole(msgspec.Struct):\\n" + "".join(f"    field{{n}}: Part{{n}}\\n" for n in range(10))
value = {{f"field{{n}}": {{"a": 1, "b": ["x"]}} for n in range(10)}}
for _ in range({rounds}):
    names = {{"msgspec": msgspec}}
    exec(parts + whole, names)
    barrier = threading.Barrier(4)

    def read():
        barrier.wait()
        convert(value, names["Whole"])

    threads = [threading.Thread(target=read) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
"""


def run(import_: str, rounds: int) -> int:
    """Run the program in a process of its own, and return how it ended."""
    program = _PROGRAM.format(import_=import_, rounds=rounds)
    return subprocess.run([sys.executable, "-c", program], stderr=subprocess.DEVNULL, check=False).returncode


def test_threads_that_read_a_class_for_the_first_time_do_not_crash_the_process() -> None:
    assert run("from holdfast._structs import convert", 300) == 0
    # By itself it does. If that is mended, there is no need for the module any more.
    assert run("from msgspec import convert", 20_000) < 0


def test_nothing_else_has_msgspec_learn_a_class_while_threads_run() -> None:
    root = Path(holdfast.__file__).parent
    other = re.compile(r"msgspec\.convert\(|msgspec\.(json|msgpack)\.decode\(.*type=")
    found = [
        f"{path.relative_to(root)}: {line.strip()}"
        for path in root.rglob("*.py")
        if path.name != "_structs.py"
        for line in path.read_text(encoding="utf-8").splitlines()
        if other.search(line)
    ]
    assert found == []
