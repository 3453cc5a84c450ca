"""Puts experiments/ into the wheel, within the package; setup.cfg has the rest.

They stay beside the package in the repository: mtpjax never imports them.
"""

import pathlib

import setuptools
from setuptools.command import build_py


class BuildWithExperiments(build_py.build_py):
  """Builds the package with a folder of the experiments in it."""

  def run(self):
    """Builds the package; an editable one finds them where they are."""
    super().run()
    if self.editable_mode:
      return
    folder = pathlib.Path(self.build_lib, "mtpjax", "experiments")
    self.mkpath(str(folder))
    for path in sorted(pathlib.Path("experiments").glob("*.py")):
      self.copy_file(str(path), str(folder / path.name))


setuptools.setup(cmdclass={"build_py": BuildWithExperiments})
