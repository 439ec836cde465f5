"""Shapes and types written in signatures are checked while tests run, and only then."""

import os
import signal
from collections.abc import Iterator
from importlib.metadata import version

# Most of the suite's time would go into compiling well what runs once. Processes that tests start inherit it.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
if version("jax").startswith("0.10."):  # Later ones end when they are given the first of these.
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false --xla_cpu_multi_thread_eigen=false")

import pytest
from jaxtyping import install_import_hook

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # As a shell has it for what it starts in the background.
    signal.signal(signal.SIGINT, signal.default_int_handler)

_hook = install_import_hook("becl", "beartype.beartype")


@pytest.fixture(autouse=True, scope="module")
def _forget_programs() -> Iterator[None]:
    """A whole suite's would end the process."""
    yield
    from becl.learning.programs import forget_programs

    forget_programs()
