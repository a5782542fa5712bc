"""`holdfast encryption-keys`: the keys of an encrypted store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.errors import ConfigError
from holdfast.interfaces.cli import exit_codes
from holdfast.interfaces.cli.base import CliContext, command, group, yes_option
from holdfast.interfaces.cli.formatting import clock, safe

if TYPE_CHECKING:
    from holdfast.maintenance.keys.records import KeyInfo


@group("encryption-keys", default="list")
def encryption_keys(session: CliContext) -> None:
    """List, rotate and destroy the keys of an encrypted store.

    Where the master key is, says HOLDFAST_ENCRYPTION, or `encryption` of the store in holdfast.toml: environment (in
    HOLDFAST_KEY), file:PATH, keyring:NAME or aws-kms:KEY.

    holdfast encryption-keys add --file holdfast.key     create a master key
    holdfast encryption-keys list
    holdfast encryption-keys rotate
    holdfast encryption-keys reencrypt
    """


@command("list")
def list_(session: CliContext) -> None:
    """List the keys of the store, the newest first, and how many threads and other lines each is for.

    holdfast encryption-keys list
    """
    session.list(session.open().encryption_keys.list(), state=_state)


def _state(key: KeyInfo) -> str:
    return f"destroyed from {clock(key.destroyed_at)}" if key.destroyed_at else key.state


@command("add")
@click.option("--file", "path", metavar="PATH", help="Put it into this file, before the others, instead.")
def add(session: CliContext, path: str | None) -> None:
    """Create a master key, and print it: for a variable of the environment, a file or a key ring.

    With --file, it is the first one of a file that only you can read: `holdfast encryption-keys rotate` then uses it.

    holdfast encryption-keys add
    holdfast encryption-keys add --file holdfast.key
    """
    from holdfast.security.encryption.provider import LocalKeys, generate_key

    key = generate_key()
    id = LocalKeys(key).key_id
    if path is not None:
        _write(Path(path), key)
        session.tell(f"Added the master key {id} to {path}. Keep a copy of it elsewhere.", {"id": id, "file": path})
        return
    session.report(key, {"id": id, "key": key})
    session.note(f"Its id is {id}. Whoever loses it loses what is encrypted with it.")


def _write(path: Path, key: str) -> None:
    """Put a key before those of a file, which nobody else can read at any time."""
    import os
    import tempfile

    try:
        before = path.read_text(encoding="ascii") if path.exists() else ""
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")  # only its owner can read it
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(f"{key}\n{before}")
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the file of keys cannot be written: {error}", where=str(path)) from None


@command("rotate")
def rotate(session: CliContext) -> None:
    """Create a new key, and encrypt the others with the current master key. Nothing else is encrypted anew.

    A thread gets a new key when something is saved in it. `holdfast encryption-keys reencrypt` does all of them.

    holdfast encryption-keys rotate
    """
    new = session.open(write=True).encryption_keys.rotate()
    session.tell(f"The new key is {new.id}. To encrypt everything with it: holdfast encryption-keys reencrypt", new)


@command("reencrypt")
def reencrypt(session: CliContext) -> None:
    """Encrypt everything with the newest keys. Readers and writers can continue meanwhile.

    If it is interrupted, start it again. To do it in the background: holdfast jobs add NAME reencrypt

    holdfast encryption-keys reencrypt
    """
    with session.progress("Encrypting") as progress:
        report = session.open(write=True).encryption_keys.reencrypt(progress=progress)
    session.tell(f"Encrypted {report.rows} rows of {report.lines} threads and other lines.", report)
    for each in report.remains:
        session.warn(f"old content may still be in {each}")


@command("destroy")
@click.argument("id", metavar="ID")
@click.option("--wait", metavar="TIME", default="7d", show_default=True, help="How long it can be saved; 7d or more.")
@click.option("--cancel", is_flag=True, help="Keep a key that was to be destroyed.")
@yes_option
def destroy(session: CliContext, id: str, wait: str, cancel: bool) -> None:
    """Destroy an old key: at first it is marked, and the same command destroys it when the time has passed.

    A key with which anything is still encrypted is refused.

    holdfast encryption-keys destroy 97a126752e429f35
    holdfast encryption-keys destroy 97a126752e429f35 --cancel
    """
    store = session.open(write=True)
    if cancel:
        kept = store.encryption_keys.cancel(id)
        session.tell(f"The key {kept.id} is kept.", kept)
        return
    session.confirm(f"Destroy the key {id}?")
    done = store.encryption_keys.destroy(id, wait=wait)
    left = {each.id for each in store.encryption_keys.list()}
    text = f"It can be destroyed from {clock(done.destroyed_at)}." if done.id in left and done.destroyed_at else "Gone."
    session.tell(f"The key {done.id}: {text}", done)


@command("check")
def check(session: CliContext) -> None:
    """Decrypt every key, those of threads too, and report those that cannot be used.

    holdfast encryption-keys check
    """
    found = session.open().encryption_keys.check()
    lines = (f"{found.keys} keys checked, {len(found.problems)} problems", *map(safe, found.problems))
    session.report(lines, found, {"ok": found.ok})
    session.exit_if(not found.ok, exit_codes.FINDINGS)


encryption_keys.add(list_, add, rotate, reencrypt, destroy, check)
