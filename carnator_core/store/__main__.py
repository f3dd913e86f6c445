"""Look at the stores of a ComfyUI and tidy them up:  python3 -m carnator_core.store <command>

Works from the pack's folder with any Python that has torch, safetensors and SQLAlchemy, such as ComfyUI's own.
ComfyUI may run at the same time.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from collections.abc import Callable
from pathlib import Path

for needed in ("torch", "safetensors", "sqlalchemy"):
    if importlib.util.find_spec(needed) is None:
        sys.exit(f"carnator store: this Python has no {needed}; start it with the Python that runs ComfyUI.")

from ..options import StoreOptions
from .archive import export_entry, import_entry
from .catalog import Usage
from .consensus import read_consensus
from .disk import folder_bytes
from .entry import PREVIEW_FILE, read_connectivity, read_info, verify_entry
from .folder import MIN_FREE_BYTES, Store
from .registry import is_store, open_store, store_names
from .tensor_file import EntryError
from .wording import counted, size_text

PACK = Path(__file__).resolve().parents[2]


class Stop(Exception):
    """The command cannot be carried out; the message says why."""


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        root = options.root or _root_of_comfyui()
        return options.command(_opened(root, options), options)
    except (Stop, EntryError, OSError, ValueError) as error:
        print(f"carnator store: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python3 -m carnator_core.store", description=__doc__.partition("\n\n")[2])
    where = "the folder that holds all stores (default: user/__carnator/stores of the ComfyUI around this pack)"
    parser.add_argument("--root", type=Path, help=where)
    parser.add_argument("--store", default="default", help="name of the store (default: %(default)s)")
    parser.add_argument("--budget-gb", type=float, default=1000.0, help="size limit for import (default: %(default)g)")
    commands = parser.add_subparsers(required=True, metavar="command")

    def add(name: str, command: Callable, text: str, *names: str) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=text, description=text)
        for argument in names:
            made.add_argument(argument)
        made.set_defaults(command=command)
        return made

    add("list", _list, "a table of all entries")
    add("show", _show, "everything known of one entry", "id")
    verify = add(
        "verify", _verify, "read and check every byte of one entry or of all, of every consensus and the catalog"
    )
    verify.add_argument("id", nargs="?")
    add("export", _export, "write one entry to a new file", "id", "file")
    add("import", _import, "take in a file that export wrote, checked to the last byte", "file")
    add("pin", lambda store, options: _pin(store, options, True), "keep an entry from eviction and purge", "id")
    add("unpin", lambda store, options: _pin(store, options, False), "the reverse of pin", "id")
    add("delete", _delete, "delete one entry, pinned or not", "id")
    add("decisions", _decisions, "the last decisions, newest first, with the artist's verdicts")
    add("verdicts", _verdicts, "all verdicts that stand, oldest first")
    purge = add("purge", _purge, "delete all entries that were not used for some days; pinned ones stay")
    purge.add_argument("--days", type=float, default=30.0, help="0 means all (default: %(default)g)")
    purge.add_argument("--yes", action="store_true", help="do not ask")
    return parser


def _root_of_comfyui() -> Path:
    """The stores of the ComfyUI in whose custom_nodes folder this pack lies."""
    if PACK.parent.name == "custom_nodes":
        return PACK.parent.parent / "user" / "__carnator" / "stores"
    raise Stop(
        f"{PACK} is not in a ComfyUI/custom_nodes folder; name the folder of the stores with --root, "
        "such as --root ComfyUI/user/__carnator/stores."
    )


def _opened(root: Path, options: argparse.Namespace) -> Store:
    chosen = StoreOptions(name=options.store, budget_gb=options.budget_gb)
    if options.command is not _import and not is_store(root, chosen.name):
        names = store_names(root)
        known = f"the stores there are: {', '.join(names)}" if names else "no store is there"
        raise Stop(f"there is no store {chosen.name!r} in {root}; {known}.")
    return open_store(root, chosen)


def _list(store: Store, options: argparse.Namespace) -> int:
    entries = sorted(store.usage(), key=lambda usage: -usage.last_used)
    print(f"{'id':32}  {'MB':>7}  {'hits':>5}  {'saved':>7}  {'dense':>7}  {'last use':16}")
    for usage in entries:
        print(
            f"{usage.id:32}  {usage.bytes / 1e6:7.1f}  {usage.hits:5}  {usage.seconds_saved:6.0f}s"
            f"  {usage.seconds:6.1f}s  {_when(usage.last_used)}{'  pinned' if usage.pinned else ''}"
        )
    size, shared, free = sum(usage.bytes for usage in entries), store.consensuses.bytes, store.disk.free_bytes
    total = f"{counted(len(entries), 'entry', 'entries')}, {size_text(size)}, and {size_text(shared)} of consensus"
    print(f"{total}; {free / 1e9:.0f} GB free (writing stops at {MIN_FREE_BYTES / 1e9:g} GB)")
    return 0


def _show(store: Store, options: argparse.Namespace) -> int:
    usage = _usage(store, options.id)
    folder = store.disk.folder(usage.id)
    info, embedding = read_info(folder)
    print(f"id            {info.id}\nfolder        {folder}\ncreated       {_when(info.created)}")
    print(f"last use      {_when(usage.last_used)}\nsize          {folder_bytes(folder) / 1e6:.1f} MB")
    print(f"dense run     {info.seconds:.1f} s\nhits          {usage.hits}, {usage.seconds_saved:.0f} s saved")
    print(f"pinned        {'yes' if usage.pinned else 'no'}\ntext          {embedding.numel()} numbers")
    print(f"preview       {PREVIEW_FILE if (folder / PREVIEW_FILE).exists() else 'none'}")
    kept = read_connectivity(folder)
    print(f"connectivity  {'none' if kept is None else f'{kept.rule}, blocks of {kept.block} tokens'}\nkey")
    for name, value in info.key.fields:
        print(f"  {name:24} {value}")
    return 0


def _verify(store: Store, options: argparse.Namespace) -> int:
    bad = 0
    for entry_id in [_usage(store, options.id).id] if options.id else [info.id for info in store.entries()]:
        try:
            verify_entry(store.disk.folder(entry_id))
            print(f"{entry_id}  good")
        except EntryError as error:
            bad += 1
            print(f"{entry_id}  BAD: {error}")
    for path in store.consensuses.paths():
        try:
            read_consensus(path)
            print(f"{path.stem}  good consensus")
        except EntryError as error:
            bad += 1
            print(f"{path.stem}  BAD consensus: {error}")
    damage = store.check_catalog()
    print(f"catalog  {'good' if damage is None else f'BAD: {damage}'}")
    return 1 if bad or damage else 0


def _export(store: Store, options: argparse.Namespace) -> int:
    export_entry(store, _usage(store, options.id).id, Path(options.file))
    print(f"written: {options.file}")
    return 0


def _import(store: Store, options: argparse.Namespace) -> int:
    print(f"imported: {import_entry(store, Path(options.file)).id}")
    return 0


def _pin(store: Store, options: argparse.Namespace, pinned: bool) -> int:
    entry_id = _usage(store, options.id).id
    store.set_pinned(entry_id, pinned)
    print(f"{'pinned' if pinned else 'unpinned'}: {entry_id}")
    return 0


def _delete(store: Store, options: argparse.Namespace) -> int:
    entry_id = _usage(store, options.id).id
    if not store.delete(entry_id):
        raise Stop(f"{entry_id} could not be deleted.")
    print(f"deleted: {entry_id}")
    return 0


def _decisions(store: Store, options: argparse.Namespace) -> int:
    records, verdicts = store.history.read(), store.verdicts.by_decision()
    print(f"{'id':32}  {'when':16}  {'verdict':7}  what")
    for record in reversed(records):
        word = verdicts[record.id].word if record.id in verdicts else ""
        print(f"{record.id:32}  {_when(record.when)}  {word:7}  {record.status}")
    print(f"{len(records)} decisions")
    return 0


def _verdicts(store: Store, options: argparse.Namespace) -> int:
    found = store.verdicts.read()
    for verdict in found:
        between = f"{verdict.target[:12]:12} from {verdict.donor[:12]:12}"
        print(f"{between}  {_when(verdict.when)}  {verdict.origin:6}  {verdict.word}")
    words = ", ".join(f"{count} {word}" for word, count in store.verdicts.tally().items())
    print(f"{len(found)} verdicts: {words}; {store.verdicts.damaged} damaged lines")
    return 0


def _purge(store: Store, options: argparse.Namespace) -> int:
    if not options.days >= 0:
        raise Stop(f"--days must be 0 or more, got {options.days:g}.")
    age = options.days * 86400
    if not options.yes:
        would = store.purge(age, dry=True)
        try:
            question = f"Delete {would.things}, {size_text(would.bytes)}, of store {store.options.name!r}?"
            answer = input(f"{question} [y/N] ")
        except EOFError:
            answer = ""
        if answer.strip().lower() not in ("y", "yes"):
            raise Stop("nothing was deleted.")
    print(store.purge(age).sentence)
    return 0


def _usage(store: Store, entry_id: str) -> Usage:
    """Of the entry whose id begins so, if that is clear."""
    if not entry_id:
        raise Stop("an empty text is the beginning of every id; name one.")
    found = [usage for usage in store.usage() if usage.id.startswith(entry_id)]
    exact = [usage for usage in found if usage.id == entry_id]
    if len(exact or found) != 1:
        raise Stop(f"{'several entries begin' if found else 'no entry begins'} with {entry_id!r}.")
    return (exact or found)[0]


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


if __name__ == "__main__":
    sys.exit(main())
