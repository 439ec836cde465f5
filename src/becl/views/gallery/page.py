"""The live page of a gallery: what is shown, its controls, and the clock that moves it."""

import threading
import time
from typing import Any

from becl.errors import UserError
from becl.runs.folder import kept_snapshots
from becl.views.gallery.numbers import Numbers, label, numbers_of, table
from becl.views.gallery.scene import MOMENTS, Stage, pace_of, set_camera, stage_of, unit_of
from becl.views.poses import Look, Motion, motion_of
from becl.views.seen import moments_seen

TICK = 1 / 30  # Seconds between two looks at the clock.


class Stopped(Exception):
    """The page is not served any more."""


class Page:
    """All skills of a seed and snapshot; everyone who looks sees the same."""

    def __init__(self, server: Any, look: Look, frames: int, steps: int | None = None):
        self.server, self.look = server, look
        self.skill: int | None = None
        """The one that is shown alone, counted from 0."""
        self.frame = 0
        self.playing = True
        self.motion: Motion
        self.numbers: list[Numbers] | None = None
        self._frames, self._steps = frames, steps
        self._stage: Stage
        self._motions: dict[tuple[int, int], Motion] = {}
        self._numbers: dict[tuple[int, int], list[Numbers]] = {}
        """Both by seed and snapshot."""
        self._lock = threading.RLock()
        self._stopped = threading.Event()
        self._clock = 0.0
        self._motions[look.seed, look.snapshot] = motion_of(look, frames, steps)
        self._show_run(self._motions[look.seed, look.snapshot])
        self._add_controls()
        self._measuring = threading.Thread(target=self._measure, args=(look,), daemon=True)
        self._measuring.start()

    # --- What is shown

    def choose(self, skill: int | None) -> None:
        """One skill, counted from 0, or all."""
        with self._lock:
            self.skill = skill
            self._stage.pick(skill)
            camera = self._stage.camera if skill is None else self._stage.view(skill)
            for client in self.server.get_clients().values():
                client.camera.position, client.camera.look_at = camera.position, camera.look_at
            self._tell()

    def seek(self, frame: int) -> None:
        with self._lock:
            self.frame = frame % self.motion.frames
            self._clock = self.frame * pace_of(self.motion)
            self._stage.show(self.frame)

    def load(self, seed: int, snapshot: int) -> None:
        """Plays the skills of another seed or snapshot, and measures them."""
        look = self.look._replace(seed=seed, snapshot=snapshot)
        self._about.content = f"{look.title}: a moment ..."
        if (seed, snapshot) not in self._motions:
            try:
                self._motions[seed, snapshot] = motion_of(look, self._frames, self._steps)
            except UserError as error:  # A damaged file: what is shown stays.
                self._about.content = str(error)
                return
        with self._lock:
            self.look, self.numbers = look, None
            self._show_run(self._motions[seed, snapshot])
            self._time.max = self.motion.frames - 1
        self._measure(look)

    def _show_run(self, motion: Motion) -> None:
        self.motion = motion
        self.server.scene.reset()
        labels, seen = [f"skill {name}" for name in self.look.names], moments_seen(self.look, motion, MOMENTS)
        self._stage = stage_of(self.server.scene, motion, labels, seen)
        set_camera(self.server, self._stage.camera)
        if self.skill is not None:
            self._stage.pick(self.skill)
        self.seek(0)

    def _measure(self, look: Look) -> None:
        """Numbers come when they are known; the page plays before."""
        key = (look.seed, look.snapshot)
        if key not in self._numbers:
            try:
                self._numbers[key] = numbers_of(look, self._go_on)
            except Stopped:
                return
        with self._lock:
            if (self.look.seed, self.look.snapshot) != key:  # Somebody has gone on to another.
                return
            self.numbers, unit = self._numbers[key], unit_of(self.motion)
            self._stage.write([label(*one, unit) for one in zip(look.names, self.numbers, strict=True)])
            self._tell()

    def _go_on(self, steps: int) -> None:
        del steps
        if self._stopped.is_set():
            raise Stopped

    def _tell(self) -> None:
        """The numbers of the skill that is shown, or of all."""
        if self.numbers is None:
            return
        head, rows = table(self.look, self.numbers, unit_of(self.motion))
        if self.skill is None:
            lines = ["| " + " | ".join(row) + " |" for row in [head, ["---:"] * len(head), *rows]]
        else:
            numbers = zip(head, rows[self.skill], strict=True)
            lines = ["| | |", "|---|---:|", *(f"| {name} | {value} |" for name, value in numbers)]
        self._about.content = "\n".join([f"**{self.look.title}**", "", *lines])

    # --- Controls

    def _add_controls(self) -> None:
        gui, last = self.server.gui, len(self.look.names) - 1
        with gui.add_folder("Skill"):
            self._skill = gui.add_slider("number", 0, max(last, 1), 1, 0, disabled=last < 1)
            self._which = gui.add_button_group("show", ("all", "one", "previous", "next"))
            self._seed = gui.add_dropdown("seed", [str(seed) for seed in self.look.pretraining.seeds],
                                          initial_value=str(self.look.seed))  # fmt: skip
            self._snapshot = gui.add_dropdown("steps", self._snapshots(self.look.seed),
                                              initial_value=str(self.look.snapshot))  # fmt: skip
        with gui.add_folder("Play"):
            self._play = gui.add_button("Pause")
            self._time = gui.add_slider("frame", 0, self.motion.frames - 1, 1, 0)
            self._speed = gui.add_slider("speed", 0.1, 4.0, 0.1, 1.0)
        self._about = gui.add_markdown(f"{self.look.title}: a moment ...")
        self._skill.on_update(lambda event: self._from_visitor(event, lambda: self.choose(self._skill.value)))
        self._which.on_click(lambda _: self._press(self._which.value))
        self._time.on_update(lambda event: self._from_visitor(event, self._scrub))
        self._play.on_click(lambda _: self.pause(self.playing))
        self._seed.on_update(lambda event: self._from_visitor(event, self._change_seed))
        self._snapshot.on_update(lambda event: self._from_visitor(event, self._change_snapshot))

    def _snapshots(self, seed: int) -> list[str]:
        return [str(steps) for steps in kept_snapshots(self.look.folder, seed)]

    @staticmethod
    def _from_visitor(event: Any, act: Any) -> None:
        """What the program itself sets is no request."""
        if event.client_id is not None:
            act()

    def _press(self, button: str) -> None:
        moved = {"previous": -1, "next": 1}.get(button, 0)
        self._skill.value = (self._skill.value + moved) % len(self.look.names)
        self.choose(None if button == "all" else self._skill.value)

    def pause(self, paused: bool) -> None:
        self.playing = not paused
        self._play.label = "Play" if paused else "Pause"

    def _scrub(self) -> None:
        self.pause(True)
        self.seek(self._time.value)

    def _change_seed(self) -> None:
        """Not every seed has every snapshot."""
        seed = int(self._seed.value)
        known = self._snapshots(seed)
        if not known:
            self._about.content = f"seed {seed} has no snapshot yet"
            return
        self._snapshot.options = known
        self._snapshot.value = str(self.look.snapshot) if str(self.look.snapshot) in known else known[-1]
        self.load(seed, int(self._snapshot.value))

    def _change_snapshot(self) -> None:
        self.load(self.look.seed, int(self._snapshot.value))

    # --- Clock

    def play_forever(self) -> None:
        """Moves on with the time until `stop`."""
        before = time.monotonic()
        while not self._stopped.wait(TICK):
            now = time.monotonic()
            self.advance(now - before)
            before = now

    def advance(self, seconds: float) -> None:
        if not self.playing:
            return
        with self._lock:
            self._clock += seconds * self._speed.value
            frame = int(self._clock / pace_of(self.motion)) % self.motion.frames
            if frame != self.frame:
                self.frame = frame
                self._stage.show(frame)
                self._time.value = frame

    def stop(self) -> None:
        """Also what is still measured: a process that ends around it aborts."""
        self._stopped.set()
        self._measuring.join()
