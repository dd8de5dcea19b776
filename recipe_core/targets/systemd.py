"""systemd: a unit that starts the bundle's launcher and keeps it running.

The launcher keeps the servers; systemd keeps the launcher, through reboots too. The unit is a
template, whose instance is the path of the bundle: so the file names no place. What confines it
holds under systemd of a user and of the machine alike; ``machine.conf`` is a drop-in for the latter
alone, which also gives up root.
"""

from __future__ import annotations

from recipe_core.targets import supervise
from recipe_core.targets.context import Context

FOLDER = "targets/systemd"
# How the launcher ends that gave up with a diagnosis, and one that cannot use its input.
ON_PURPOSE = "1 2"


# Who owns the bundle where the machine's systemd starts it.
USER = "recipe"
# Not those that take devices away, nor MemoryDenyWriteExecute: engines compile. Those that drop
# capabilities are in machine.conf, since systemd of a user may not drop any.
CONFINED = """NoNewPrivileges=yes
UMask=0077
PrivateTmp=yes
ProtectSystem=strict
ReadWritePaths=%f %C{folder}
CacheDirectory=recipe
Environment=HF_HOME={cache} XDG_CACHE_HOME=%C TRITON_HOME=%C/recipe CUDA_CACHE_PATH=%C/recipe/nv
ProtectControlGroups=yes
ProtectKernelTunables=yes
RestrictSUIDSGID=yes
RestrictRealtime=yes
RestrictNamespaces=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
LockPersonality=yes
SystemCallArchitectures=native
SystemCallFilter=~@clock @cpu-emulation @module @mount @obsolete @raw-io @reboot @swap
SystemCallErrorNumber=EPERM"""
MACHINE = """# For systemd of the machine, whose services are root's otherwise:
#   useradd --system --groups video,render {user}   # the groups that own AMD's and Intel's devices
#   chown -R {user}: BUNDLE
#   install -D -m 644 machine.conf "/etc/systemd/system/{name}@.service.d/machine.conf"
[Service]
User={user}
StateDirectory=recipe
Environment=HOME=%S/recipe HF_HOME=%C/recipe/huggingface XDG_CACHE_HOME=%C/recipe
CapabilityBoundingSet=
AmbientCapabilities=
ProtectHostname=yes
ProtectKernelModules=yes
# Neither ProtectClock nor PrivateDevices, which take the accelerators away.
"""


def systemd_files(context: Context) -> dict[str, str]:
    """The template unit, for systemd of a user or of the machine, and a drop-in for the latter."""
    drop_in = MACHINE.format(name=context.name, user=USER)
    return {
        f"{FOLDER}/{context.name}@.service": systemd_unit(context),
        f"{FOLDER}/machine.conf": drop_in,
    }


def systemd_unit(context: Context) -> str:
    """The unit's text; the launcher tells systemd when it is ready, and that it still looks."""
    budget = context.supervision
    secrets = [] if context.model_is_folder else ["HF_TOKEN"]
    secrets += [context.key_variable] if context.key_variable else []
    nodes_comment = (
        f"# For {context.nodes} nodes RECIPE_ARGUMENTS is --node N --head ADDRESS_OF_NODE_0.\n"
        if context.nodes > 1
        else ""
    )
    model_cache = context.parameters.model_cache
    cache = model_cache.replace("%", "%%") if model_cache and model_cache.startswith("/") else None
    confined = CONFINED.format(cache=cache or "%C/huggingface", folder=f" {cache}" if cache else "")
    variables_text = ", ".join(["PATH", *secrets, "RECIPE_ARGUMENTS"])
    return f"""# Settings and secrets ({variables_text}) are read from
# recipe/{context.name}.env,
# in ~/.config for systemd of a user, in /etc for that of the machine; nobody else should read it
# (chmod 600). Folders of your own that the engine writes to need ReadWritePaths= in a drop-in.
# On the machine it runs as root unless machine.conf, beside this file, is installed too.
{nodes_comment}[Unit]
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
{confined}

[Install]
WantedBy=default.target
"""
