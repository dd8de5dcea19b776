"""What a keeper tells: its own ``/healthz`` and ``/metrics``, and systemd."""

from __future__ import annotations

from . import decide, notify
from .errors import LauncherError
from .exporter import Exporter, Snapshot
from .kept import Kept
from .observe import sum_given_values


class Teller:
    """Tells about ``kept``; ``port``: of its pages on the loopback, None for none."""

    def __init__(self, deployment: Kept, port: int | None) -> None:
        self.kept, self.metrics_port = deployment, port
        self.tokens: dict[int, tuple[float, float]] = {}  # before its restart, and by its counter
        self._exporter: Exporter | None = None
        self._exports_at = 0.0

    def close(self) -> None:
        if self._exporter is not None:
            self._exporter.close()

    def count(self) -> None:
        for group, observation in self.kept.look.observations.items():
            if observation.tokens is not None:
                before, last = self.tokens.get(group, (0.0, 0.0))
                before += last if observation.tokens < last else 0.0
                self.tokens[group] = before, observation.tokens

    def tell(self) -> None:
        notify.notify_status(self.kept.summary())

    def export(self) -> None:
        """Serve ``/healthz`` and ``/metrics``; where the port is taken, try again later."""
        now = self.kept.clock.monotonic()
        if self._exporter is not None or self.metrics_port is None or now < self._exports_at:
            return
        try:
            self._exporter = Exporter("127.0.0.1", self.metrics_port, self.snapshot)
        except LauncherError as error:
            if not self._exports_at:
                self.kept.progress.say(str(error))
            self._exports_at = now + 30 * self.kept.limits.poll_s

    def snapshot(self) -> Snapshot:
        """What the exporter shows."""
        look, tracks = self.kept.look, self.kept.all_tracks()
        figures = list(look.figures.values())
        paces = [pace for track in tracks if (pace := decide.tpot_s(track)) is not None]
        serves = self.kept.serves()
        down = "" if serves else f"not serving: {self.kept.summary()}"
        return Snapshot(
            up=serves and not self.kept.refusing,
            reason=self.kept.refusing or down,
            name=self.kept.plan.name,
            choice=self.kept.plan.choice,
            restarts=dict(self.kept.causes),
            servers={p.name: look.healthy.get(p.name, False) for p in self.kept.plan.answering},
            tokens=sum(map(sum, self.tokens.values())) if self.tokens else None,
            running=sum_given_values([server.running for server in figures]),
            waiting=sum_given_values([server.waiting for server in figures]),
            cache_usage=max((f.cache_usage for f in figures if f.cache_usage), default=None),
            tpot_s=max(paces, default=None),
            predicted_tpot_s=self.kept.target.tpot_s,
        )
