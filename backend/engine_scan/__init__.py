"""What an engine declares: its flags, choices, defaults, environment switches, and what it knows of MTP."""

from backend.engine_scan.fingerprint import fingerprint
from backend.engine_scan.locate import EngineRoot, locate
from backend.engine_scan.sglang import scan_source
from backend.engine_scan.source_tree import Module, SourceTree
from backend.errors import InputError
from backend.paths import StatePaths
from backend.remember import remembered
from backend.schema.engine import EngineKind, Scan

__all__ = ["EngineRoot", "Module", "SourceTree", "locate", "open_source", "scan_engine", "scan_source"]


def scan_engine(kind: EngineKind, engine: str | None = None, paths: StatePaths | None = None) -> Scan:
    """Declarations of the reference engine, or of the SGLang that `engine` leads to, read from its source.

    With `paths`, a scan is kept there while no file changes. Raises InputError when there is no SGLang there.
    """
    if kind is EngineKind.REFERENCE:
        # Imported here: whoever only launches SGLang needs nothing of the reference engine.
        from backend.reference.flags import scan

        return scan()
    if engine is None:
        raise InputError("name the SGLang to read with --engine: a source tree, a site-packages directory or a python")
    tree = open_source(engine)
    if paths is None:
        return scan_source(tree)
    package, store = tree.package, paths.cache / "scan"
    return remembered(store, str(package), fingerprint(package), Scan, lambda: scan_source(tree))


def open_source(engine: str) -> SourceTree:
    """The source of the SGLang that `engine` leads to. Raises InputError."""
    root = locate(engine)
    return SourceTree(root.package, root.version)
