"""Progress bars, if asked for: one per stage, through tqdm."""

from __future__ import annotations

from typing import Any


class Progress:
    """``stage`` opens a bar, ``advance`` moves it; without ``shown`` both do nothing."""

    def __init__(self, shown: bool) -> None:
        self._bar: Any = None
        self._tqdm: Any = None
        if shown:
            try:
                from tqdm.auto import tqdm
            except ImportError as error:
                raise ImportError("progress=True needs tqdm: pip install 'diffclust[neighbors]'.") from error
            self._tqdm = tqdm

    def stage(self, name: str, total: int, unit: str) -> None:
        """Begins a bar in place of the last one."""
        self.close()
        if self._tqdm is not None:
            self._bar = self._tqdm(total=total, desc=name, unit=f" {unit}", unit_scale=True)

    def advance(self, count: int) -> None:
        """Moves the bar."""
        if self._bar is not None:
            self._bar.update(count)

    def close(self) -> None:
        """Ends the bar."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
