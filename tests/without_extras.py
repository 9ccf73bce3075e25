"""Makes a process see what it would in an environment where one distribution is installed without any extra."""

import importlib.metadata
import sys

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def requirements(name: str) -> set[str]:
    """The distributions that installing `name` installs, by their canonical names."""
    found: set[tuple[str, str]] = set()
    queue = [(canonicalize_name(name), "")]
    while queue:
        distribution, extra = queue.pop()
        if (distribution, extra) in found:
            continue
        found.add((distribution, extra))
        for text in importlib.metadata.requires(distribution) or []:
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                queue += [(canonicalize_name(requirement.name), extra) for extra in ("", *requirement.extras)]
    return {distribution for distribution, _ in found}


class _Hidden:
    """A finder in `sys.meta_path` that knows that some modules are not there."""

    def __init__(self, modules: set[str]):
        self.modules = modules

    def find_spec(self, name, path=None, target=None):
        if name in self.modules:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def hide_other_modules(name: str) -> None:
    """From now on, importing what no requirement of the distribution `name` brings raises `ModuleNotFoundError`."""
    wanted = requirements(name)
    hidden = {
        module
        for module, distributions in importlib.metadata.packages_distributions().items()
        if not wanted & {canonicalize_name(distribution) for distribution in distributions}
    }
    sys.meta_path.insert(0, _Hidden(hidden))
