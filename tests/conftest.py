"""Shapes and types written in signatures are checked while tests run, and only then."""

from jaxtyping import install_import_hook

_hook = install_import_hook("becl", "beartype.beartype")
