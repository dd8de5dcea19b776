"""systemd: a unit that starts the bundle's launcher and keeps it running.

The launcher keeps the servers; systemd keeps the launcher, through reboots too. The unit is a
template, whose instance is the path of the bundle: so the file names no place.
"""

from __future__ import annotations

from recipe_core.targets import supervise
from recipe_core.targets.context import Context

FOLDER = "targets/systemd"
ON_PURPOSE = "1 2"
"""How the launcher ends that gave up with a diagnosis, and one that cannot use its input."""


def files(context: Context) -> dict[str, str]:
    """The template unit, for systemd of a user or of the machine."""
    return {f"{FOLDER}/{context.name}@.service": unit(context)}


def unit(context: Context) -> str:
    """The unit's text; the launcher tells systemd when it is ready, and that it still looks."""
    budget = context.supervision
    token = "" if context.model_is_folder else "HF_TOKEN, "
    several = (
        f"# For {context.nodes} nodes RECIPE_ARGUMENTS is --node N --head ADDRESS_OF_NODE_0.\n"
        if context.nodes > 1
        else ""
    )
    return f"""# Settings and secrets (PATH, {token}RECIPE_ARGUMENTS) are read from
# recipe/{context.name}.env,
# in ~/.config for systemd of a user, in /etc for that of the machine.
{several}[Unit]
Description=Recipe {context.name} in %f
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec={budget.window_s}
StartLimitBurst={budget.crash_budget + 1}

[Service]
Type=notify
NotifyAccess=main
WorkingDirectory=%f
EnvironmentFile=-%E/recipe/{context.name}.env
ExecStart=/usr/bin/env python3 launch.py up --foreground $RECIPE_ARGUMENTS
Restart=on-failure
RestartSec={budget.backoff_s:g}
# A launcher that gave up, or cannot use its input, has said why: it is not started again.
RestartPreventExitStatus={ON_PURPOSE}
# The launcher has a limit for every start, and takes a fallback after it.
TimeoutStartSec=infinity
TimeoutStopSec={supervise.grace_s(context)}
WatchdogSec={budget.hang_s}
# The launcher is told to stop and drains its servers; what is left after that is killed.
KillMode=mixed
# One server that is killed for memory is the launcher's to start again.
OOMPolicy=continue
LimitNOFILE=1048576
LimitMEMLOCK=infinity
NoNewPrivileges=yes

[Install]
WantedBy=default.target
"""
