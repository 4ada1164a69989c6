"""Settings: frozen dataclasses with one way in, file < environment < flag.

A service declares its settings as a frozen dataclass whose fields are made by `setting(...)`; a field whose type is
another such dataclass is a group. A field `listen` of the group `server` is the flag `--listen`, the variable
`MOE_SERVER_LISTEN` and the key `listen` of the table `[server]` in the TOML file named by `--config`. A field that
stands in no group takes the program's last word as its group: `moe.expert` has `MOE_EXPERT_PACKAGE`.
Whatever is unknown is an error that names the nearest known name; every error is a StartupError.
"""

from moe.runtime.settings.loading import load
from moe.runtime.settings.schema import setting

__all__ = ["load", "setting"]
