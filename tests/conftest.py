"""Around all tests: types and shapes are checked, programs are compiled quickly and once, long files come first.

`make test` gives every file to one process (`--dist loadfile`), which runs its fixtures once.
"""

import functools
import gc
import os
import signal
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

# Most of the suite's time would go into compiling well what runs once. Processes that tests start inherit it.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
if version("jax").startswith("0.10."):  # Later versions may not know these flags, and end when they are given one.
    flags = ["cpu_use_fusion_emitters=false", "cpu_multi_thread_eigen=false", "cpu_parallel_codegen_split_count=1"]
    os.environ.setdefault("XLA_FLAGS", " ".join(f"--xla_{flag}" for flag in flags))

import jax
import pytest
from jax._src.interpreters import mlir
from jax._src.lru_cache import _CACHE_SUFFIX, LRUCache
from jaxtyping import install_import_hook

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # As a shell has it for what it starts in the background.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A tenth of the suite's time went into contexts for programs to be written in: one new for each of many thousands.
mlir.make_ir_context = functools.cache(mlir.make_ir_context)

_hook = install_import_hook("becl", "beartype.beartype")

# Files that take longest, in this order; the others follow as they are found. What starts last should be short.
LONGEST = (
    "test_resume", "test_docs", "test_pretrain", "test_train", "test_objectives", "test_sweep_ray", "test_offpolicy",
    "test_finetune", "test_cli", "test_ddpg", "test_api", "test_examples", "test_sweep", "test_plugins",
    "test_skill_evaluation", "test_envs", "test_video", "test_theory", "test_estimators", "test_export",
)  # fmt: skip
MOST_MAPS = 30_000  # Pieces of memory of a process, of which Linux gives it 65,530; each program has a few.


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(places)))


def put_whole(self: LRUCache, key: str, value: bytes) -> None:
    """Writes an entry of the cache so that other processes see all of it or nothing."""
    place = self.path / f"{key}{_CACHE_SUFFIX}"
    half = place.with_suffix(f".{os.getpid()}")
    half.write_bytes(value)
    os.replace(half, place)


@pytest.fixture(autouse=True, scope="session")
def _compiled_once(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Iterator[None]:
    """Programs are kept in one folder for all processes: of this test session, or what BECL_TEST_PROGRAMS names."""
    base = tmp_path_factory.getbasetemp()
    own = (base if worker_id == "master" else base.parent) / "programs"
    folder = Path(os.environ.get("BECL_TEST_PROGRAMS", own))
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LRUCache, "put", put_whole)
        # Processes that tests start keep only what takes long: some are killed, and would leave half a file.
        patch.setenv("JAX_COMPILATION_CACHE_DIR", str(folder))
        patch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.5")
        yield


@pytest.fixture(autouse=True, scope="module")
def _forget_programs() -> Iterator[None]:
    """Before there are so many that the process would end."""
    yield
    maps = Path("/proc/self/maps")
    if not maps.exists() or maps.read_bytes().count(b"\n") > MOST_MAPS:
        from becl.learning.programs import forget_programs

        forget_programs()


@pytest.fixture(scope="module")
def short_walker(request: pytest.FixtureRequest) -> Iterator[None]:
    """The walker's episodes have as many steps as the file's LENGTH says: an evaluation is a whole episode."""
    from becl.envs.walker import Walker

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Walker, "episode_length", request.module.LENGTH)
        yield


@pytest.fixture(autouse=True, scope="session")
def _few_collections() -> None:
    """What was imported is never garbage, and need not be looked through again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
