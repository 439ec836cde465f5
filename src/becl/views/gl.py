"""Whether an OpenGL back end of MuJoCo draws on this machine. Imports nothing heavy."""

import contextlib
import subprocess
import sys

from becl.processes import started

PICTURE = """
import mujoco
model = mujoco.MjModel.from_xml_string(
    '<mujoco><worldbody><light pos="0 0 3"/><geom type="box" size=".3 .2 .1"/></worldbody></mujoco>'
)
data = mujoco.MjData(model)
mujoco.mj_forward(model, data)
renderer = mujoco.Renderer(model, 64, 64)
renderer.update_scene(data)
picture = renderer.render()
renderer.close()
assert picture.shape == (64, 64, 3) and picture.std() > 0, "the picture is empty"
"""
"""A program that draws one small picture."""


def drawing(back_end: str) -> contextlib.AbstractContextManager[subprocess.Popen]:
    """Draws a small picture in a process of its own: where drivers are broken it may crash or hang."""
    return started([sys.executable, "-P", "-c", PICTURE], {"MUJOCO_GL": back_end})
