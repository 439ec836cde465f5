"""Every figure is drawn from random walks in real mazes, without a warning, and holds its data."""

import functools
import itertools
import math
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection, PathCollection, PolyCollection
from matplotlib.colors import to_hex, to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.path import Path as Outline

from becl.envs import maze
from becl.views.figures import information
from becl.views.figures.colors import method_styles, oklab, skill_colors
from becl.views.figures.curves import learning_curves
from becl.views.figures.information import SeedScore, tradeoff
from becl.views.figures.maze import Panel, demo_figure, draw_maze, draw_paths, maze_gallery, panels
from becl.views.figures.style import save

pytestmark = pytest.mark.filterwarnings("error")

MAZES = ("square_a", "square_tree", "square_corridor", "square_bottleneck")


@functools.cache
def crowd(name: str) -> np.ndarray:
    """Random walks from the figures' start, each of 30 skills with a drift of its own."""
    env = maze.Maze(name)
    batch, steps = (30, 20), 50
    drift_key, walk_key = jax.random.split(jax.random.key(0))
    drift = jax.random.uniform(drift_key, (30, 1, 2), minval=-0.5, maxval=0.5)
    start = jnp.broadcast_to(jnp.asarray(env.geometry.figure_start), (*batch, 2))

    def step(state, key):
        action_key, noise_key = jax.random.split(key)
        action = drift + 0.3 * jax.random.normal(action_key, (*batch, 2))
        state = env.step(state, action, env.noise(noise_key, *batch))
        return state, state.position

    state = maze.MazeState(start, jnp.zeros(batch, jnp.int32))
    _, positions = jax.lax.scan(step, state, jax.random.split(walk_key, steps))
    return np.asarray(jnp.moveaxis(jnp.concatenate([start[None], positions]), 0, 2))


def walks(name: str, skills: int = 10, episodes: int = 4, steps: int = 20) -> np.ndarray:
    return crowd(name)[:skills, :episodes, : steps + 1]


def panel(name: str = "square_a", title: str = "BeCL", subtitle: str = "", **kwargs) -> Panel:
    return Panel(title, subtitle, walks(name, **kwargs), maze.geometry(name))


def offsets(collection) -> np.ndarray:
    return np.asarray(collection.get_offsets())


SUBTITLE = "I(S;Z) 2.10 · coverage 65 % · 5 far"
RNG = np.random.default_rng(0)
CURVES = {label: RNG.normal(2, 0.1, (3, 400)) for label in ("BeCL", "DIAYN", "CIC")}
ENTROPIES = {label: RNG.normal(2, 0.1, 3) for label in CURVES}
SCORES = [SeedScore(label, 2.0 + seed / 10, 0.5) for label in CURVES for seed in range(3)]


def estimates(**kwargs) -> Figure:
    return information.estimates(CURVES, np.arange(400), ENTROPIES, 10, **kwargs)


FIGURES = {
    "comparison": lambda: panels([panel(subtitle=SUBTITLE)] * 4, 4),
    "mazes": lambda: panels([panel(name, name, SUBTITLE) for name in MAZES], 2, width=3.25),
    "skills": lambda: panels(
        [panel("square_tree", "", skills=n) for _ in range(2) for n in (10, 15, 30)],
        3,
        row_labels=["BeCL", "DIAYN"],
        column_labels=["10 skills", "15 skills", "30 skills"],
    ),
    "seeds": lambda: panels([panel(title="", subtitle=SUBTITLE)] * 8, 8, row_labels=["BeCL"]),
    "demo": lambda: demo_figure([panel(subtitle=SUBTITLE), panel(title="DIAYN")]),
    "gallery": maze_gallery,
    "estimates": lambda: estimates(published={"BeCL": 1.744, "CIC": 2.29}),
    "tradeoff": lambda: tradeoff(SCORES, reference=(2.06, 0.65), num_skills=10),
    "learning": lambda: learning_curves(CURVES, np.arange(400)),
}


@pytest.mark.parametrize("name", FIGURES)
def test_texts_lie_on_the_page_and_panels_apart(name):
    figure = FIGURES[name]()
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    for text in figure.texts:
        box = text.get_window_extent(renderer)
        assert box.x0 >= 0, text
        assert box.y0 >= 0, text
        assert box.x1 <= figure.bbox.x1, text
        assert box.y1 <= figure.bbox.y1, text
        if name not in ("estimates", "tradeoff", "learning") and text.get_text():
            assert not any(axes.bbox.overlaps(box) for axes in figure.axes), text
    for one, other in itertools.combinations(figure.axes, 2):
        assert not one.bbox.overlaps(other.bbox)


@pytest.mark.parametrize("name", FIGURES)
def test_saved_twice_gives_the_same_bytes(name, tmp_path):
    first = save(FIGURES[name](), tmp_path / "deep" / "first.run")
    again = save(FIGURES[name](), tmp_path / "again")
    assert [path.name for path in first] == ["first.run.png", "first.run.svg"]
    for one, other in zip(first, again, strict=True):
        assert one.read_bytes() == other.read_bytes()
    assert first[0].read_bytes()[:4] == b"\x89PNG"
    assert b"<dc:date>" not in first[1].read_bytes()


@pytest.mark.parametrize("name", MAZES)
def test_draw_paths(name):
    plan = maze.geometry(name)
    paths = walks(name, skills=6)
    axes = Figure(figsize=(2, 2)).add_axes((0, 0, 1, 1))
    draw_paths(axes, paths, plan)

    lines, ends = axes.collections
    assert isinstance(lines, LineCollection)
    assert isinstance(ends, PathCollection)
    colors = skill_colors(6)
    assert len(lines.get_segments()) == 6 * 4
    drawn = np.array(lines.get_segments()).reshape(4, 6, 21, 2)
    np.testing.assert_allclose(drawn, paths.swapaxes(0, 1))
    np.testing.assert_allclose(np.asarray(lines.get_edgecolor()), [to_rgba(color, 0.55) for color in colors] * 4)
    np.testing.assert_allclose(offsets(ends), paths[:, :, -1].swapaxes(0, 1).reshape(-1, 2))
    assert [to_hex(color) for color in np.asarray(ends.get_facecolor())] == colors * 4

    (start,) = axes.lines
    np.testing.assert_array_equal(np.ravel(start.get_xydata()), plan.figure_start)
    artists = [*axes.collections, *axes.patches]
    assert start.get_zorder() > max(artist.get_zorder() for artist in artists)

    (x_low, x_high), (y_low, y_high) = axes.get_xlim(), axes.get_ylim()
    assert x_low < plan.bounds[0] < plan.bounds[1] < x_high
    assert y_low < plan.bounds[2] < plan.bounds[3] < y_high
    assert axes.get_aspect() == 1


@pytest.mark.parametrize("name", maze.names())
def test_walls_and_floor_are_the_mazes(name):
    plan = maze.geometry(name)
    axes = Figure(figsize=(2, 2)).add_axes((0, 0, 1, 1))
    draw_maze(axes, plan)
    floor, walls = (patch.get_path() for patch in axes.patches)

    segments = np.asarray(walls.vertices).reshape(-1, 2, 2)
    lengths = np.abs(segments[:, 1] - segments[:, 0]).sum(1)
    assert len(segments) < len(plan.walls)
    assert lengths.sum() == len(plan.walls)
    for middle in plan.walls.mean(1):
        detour = np.abs(segments - middle).sum((1, 2)) - lengths
        assert np.sum(detour == 0) == 1

    columns, rows = np.indices(plan.inside.shape)
    centers = np.stack([columns, rows], -1) + plan.origin
    squares = [Outline(square) for square in np.asarray(floor.vertices).reshape(-1, 5, 2)]
    covered = np.any([square.contains_points(centers.reshape(-1, 2)) for square in squares], 0)
    np.testing.assert_array_equal(covered.reshape(plan.inside.shape), plan.inside)


@pytest.mark.parametrize(("count", "apart", "apart_deuteranopia"), [(10, 0.2, 0.12), (30, 0.1, 0.05), (60, 0.06, 0.03)])
def test_colors_are_told_apart(count, apart, apart_deuteranopia):
    """Distances in OKLab; about 0.02 is the smallest difference anyone sees."""
    colors = skill_colors(count)
    assert colors[:10] == skill_colors(10)
    for deuteranopia, least in ((False, apart), (True, apart_deuteranopia)):
        seen = oklab(colors, deuteranopia)
        distances = np.linalg.norm(seen[:, None] - seen, axis=-1)
        assert distances[~np.eye(count, dtype=bool)].min() > least
    against_white = np.linalg.norm(oklab(colors) - oklab(["white"]), axis=1)
    assert against_white.min() > 0.15


def test_oklab_known_values():
    seen = oklab(["white", "black", "red"])
    expected = [[1, 0, 0], [0, 0, 0], [0.62796, 0.22486, 0.12585]]
    np.testing.assert_allclose(seen, expected, atol=1e-4)
    # Greys look the same to everyone.
    greys = ["#333333", "#aaaaaa"]
    np.testing.assert_allclose(oklab(greys, True), oklab(greys), atol=1e-4)


def test_panels_draw_every_run_and_check_labels():
    runs = [panel(skills=n) for n in (2, 3, 5)]
    figure = panels(runs, 2)
    segments = []
    for axes in figure.axes:
        lines = axes.collections[0]
        assert isinstance(lines, LineCollection)
        segments.append(len(lines.get_segments()))
    assert segments == [8, 12, 20]
    with pytest.raises(ValueError, match="1 row labels for 2 rows"):
        panels(runs, 2, row_labels=["BeCL"])
    with pytest.raises(ValueError, match="3 column labels for 2 columns"):
        panels(runs, 2, column_labels=["a", "b", "c"])


def test_long_subtitles_are_broken():
    wide = panels([panel(subtitle=SUBTITLE)], 1)
    narrow = panels([panel(subtitle=SUBTITLE)] * 8, 8)
    assert wide.texts[0].get_text() == SUBTITLE
    assert narrow.texts[0].get_text().replace("\n", " · ") == SUBTITLE
    assert "\n" in narrow.texts[0].get_text()


def test_demo_is_as_wide_as_a_readme(tmp_path):
    png, _ = save(FIGURES["demo"](), tmp_path / "demo")
    header = png.read_bytes()[16:24]
    width, height = int.from_bytes(header[:4], "big"), int.from_bytes(header[4:], "big")
    assert width == 1600
    assert 750 <= height <= 850


def test_dense_svg_stays_small(tmp_path):
    dense = panel(title="", episodes=20, steps=50)
    _, svg = save(panels([dense] * 32, 8), tmp_path / "dense")
    assert svg.stat().st_size < 1.5e6


def test_estimates():
    figure = estimates(window=50)
    left, right = figure.axes
    *means, ceiling = left.lines
    for line, values in zip(means, CURVES.values(), strict=True):
        expected = [values[:, t - 50 : t].mean() for t in range(50, 401)]
        np.testing.assert_allclose(np.asarray(line.get_ydata()), expected)
        np.testing.assert_array_equal(line.get_xdata(), np.arange(49, 400))
    assert ceiling.get_linestyle() == "--"
    np.testing.assert_allclose(np.asarray(ceiling.get_ydata()), math.log(10))
    assert sum(isinstance(artist, PolyCollection) for artist in left.collections) == 3
    bars = [np.ptp(patch.get_corners()[:, 0]) for patch in right.patches if isinstance(patch, Rectangle)]
    np.testing.assert_allclose(bars, [values.mean() for values in ENTROPIES.values()])
    assert [len(offsets(dots)) for dots in right.collections] == [3, 3, 3]

    alone = {label: values[:1] for label, values in CURVES.items()}
    figure = information.estimates(alone, np.arange(400), ENTROPIES, 10, published={"CIC": 2.29})
    assert not figure.axes[0].collections
    np.testing.assert_allclose(offsets(figure.axes[1].collections[-1]), [[2.29, 2]])


def test_tradeoff_shows_seeds_and_means():
    axes = tradeoff(SCORES, reference=(2.06, 0.65)).axes[0]
    *methods, star = axes.collections
    for mean, seeds in zip(methods[::2], methods[1::2], strict=True):
        np.testing.assert_allclose(offsets(mean), [[0.5, 2.1]])
        np.testing.assert_allclose(offsets(seeds), [[0.5, 2.0], [0.5, 2.1], [0.5, 2.2]])
    np.testing.assert_allclose(offsets(star), [[0.65, 2.06]])


def test_methods_keep_their_colors():
    def colors(curves):
        axes = learning_curves(curves, np.arange(400)).axes
        return {place.get_title(): place.lines[0].get_color() for place in axes if place.lines}

    values = CURVES["BeCL"]
    alone = colors({"CIC": values, "other": values, "BeCL": values})
    many = colors(dict.fromkeys(["BeCL", "DIAYN", "DADS", "CIC", "other", "one more"], values))
    assert len(set(many.values())) == 6
    assert all(alone[name] == many[name] for name in ("BeCL", "CIC"))


def test_labels_have_the_color_of_the_method_they_begin_with():
    labels = ["DDPG", "BeCL gym:Pendulum-v1", "ProtoRL (2)", "BeCL + RND", "DDPG, transfer paper", "BeCL-paper, κ = 1"]
    found = {label: color for label, (color, _) in method_styles(labels).items()}
    own = {label: method_styles([label])[label][0] for label in ("ddpg", "becl", "proto", "becl-paper")}
    assert [found[labels[i]] for i in (0, 1, 2, 5)] == list(own.values())
    assert len(set(found.values())) == 6
    others = oklab([found["BeCL + RND"], found["DDPG, transfer paper"]])
    apart = np.linalg.norm(others[:, None] - oklab(list(found.values())), axis=-1)
    assert np.sort(apart, axis=1)[:, 1].min() > 0.15


def test_gallery_of_some_mazes():
    figure = maze_gallery(["square_corridor", "square_a"])
    assert [text.get_text() for text in figure.texts[1:4:2]] == ["square_a", "square_corridor"]
    assert len(maze_gallery().axes) == len(maze.names()) == 9


def test_no_global_state():
    modules = ", ".join(f"becl.views.figures.{name}" for name in ("curves", "information", "maze", "skills", "theory"))
    program = f"import sys, {modules}; sys.exit('matplotlib.pyplot' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)
