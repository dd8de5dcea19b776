"""Servers on Kubernetes: Deployments, LeaderWorkerSets, and what KServe and llm-d make of them."""

from __future__ import annotations

from recipe_core.base.errors import NoAnswer
from recipe_core.targets import kubernetes, supervise
from recipe_core.targets.context import Context
from recipe_core.targets.layout import by_role, layout
from recipe_core.targets.probes import asks_for_tokens
from recipe_core.targets.restarts.shape import Answer, Answers, Event, Setting, slow
from recipe_core.targets.scale.bounds import least


def _probes(context: Context, *, asks: bool) -> tuple[Setting, ...]:
    looks = supervise.generation(context) if asks else supervise.hang(context)
    unready = supervise.unready(context)
    return (
        Setting("readinessProbe.failureThreshold", unready.failures),
        Setting("livenessProbe.periodSeconds", looks.period_s),
        Setting("livenessProbe.failureThreshold", looks.failures),
    )


def _asked(context: Context) -> bool:
    return any(asks_for_tokens(context, process) for process in context.launch.processes)


def _drain(context: Context, kept: int | None) -> Answer:
    """``kept`` pods a drain leaves up; None where no budget is part of the target."""
    settings = (
        Setting("preStop.exec.command", ("sleep", str(context.supervision.drain_s))),
        Setting("terminationGracePeriodSeconds", supervise.grace_s(context)),
    )
    if kept is None:
        return Answer("kubelet", "lets running requests finish; no budget delays it", settings)
    waits = "drains wait while too few pods would be left; running requests finish"
    return Answer("kubelet", waits, (Setting("minAvailable", kept), *settings))


def _pods(
    context: Context, controller: str, replicas: int, kept: int | None, *, asks: bool = True
) -> dict[Event, Answer]:
    """Answers of pods that a Deployment keeps; ``asks``: whether probes may ask for tokens."""
    asks = asks and _asked(context)
    again = "starts the container again without end, after 10 s doubling to 5 min"
    policy = (Setting("restartPolicy", "Always"),)
    looks = "it is asked for a token where it counts none" if asks else "only its health is seen"
    seen = f"takes the server out of the service, then starts it again; {looks}"
    elsewhere = "makes the pod anew on another node, five minutes after a node is lost"
    return {
        "dies": Answer("kubelet", again, policy),
        "hangs": Answer("kubelet", seen, _probes(context, asks=asks)),
        "memory": Answer("kubelet", again, policy),
        "lost": Answer(controller, elsewhere, (Setting("replicas", replicas),)),
        "drained": _drain(context, kept),
        "slow": slow(context),
        "wrong": Answer("kubelet", f"{again}; nobody gives up", policy),
    }


def of_kubernetes(context: Context) -> Answers:
    """Of the workload with the servers: a Deployment, or a LeaderWorkerSet over several nodes."""
    units = layout(context.launch)
    groups = [unit for unit in units if len(unit.pods) > 1]
    unit = (groups or list(units))[0]
    replicas = kubernetes.copies(context, unit)
    role = unit.leader[0].role
    same = sum(kubernetes.copies(context, u) for u in units if u.leader[0].role == role)
    kept = context.supervision.available_of(same)
    if groups:
        return _group(context, replicas, kept * kubernetes.counted_pods(unit))
    answer = _pods(context, "Deployment", replicas, kept)
    startup = kubernetes.progress_s(context, unit)
    late = f"{answer['wrong'].does}; the rollout counts as failed in time"
    progress = (*answer["wrong"].settings, Setting("progressDeadlineSeconds", startup))
    return {**answer, "wrong": Answer("kubelet", late, progress)}


def _group(context: Context, replicas: int, kept: int) -> Answers:
    """Answers of a LeaderWorkerSet: the ranks of a server start together, or not at all."""
    policy = (Setting("leaderWorkerTemplate.restartPolicy", "RecreateGroupOnPodRestart"),)
    again = "makes all pods of the server anew, without end"
    who = "LeaderWorkerSet"
    probes = _probes(context, asks=_asked(context))
    return {
        "dies": Answer(who, again, policy),
        "hangs": Answer("kubelet", f"restarts the leader; so {who} {again}", probes),
        "memory": Answer(who, again, policy),
        "lost": Answer(
            who, f"{again}, five minutes after a node is lost", (Setting("replicas", replicas),)
        ),
        "drained": _drain(context, kept),
        "slow": slow(context),
        "wrong": Answer(who, f"{again}; nobody gives up", policy),
    }


def kserve(context: Context) -> Answers:
    """Answers for an InferenceService."""
    if context.scaling is not None and context.scaling.policy == "kpa":
        answer = knative(context)
        lost = answer["lost"]
        low = Setting("minReplicas", least(context, layout(context.launch)[0]))
        return {**answer, "lost": Answer(lost.who, lost.does, (low,))}
    unit = layout(context.launch)[0]
    replicas = kubernetes.copies(context, unit)
    kept = context.supervision.available_of(replicas)
    answer = _pods(context, "KServe's Deployment", replicas, kept)
    lost = answer["lost"]
    return {**answer, "lost": Answer(lost.who, lost.does, (Setting("minReplicas", replicas),))}


def knative(context: Context) -> Answers:
    """Answers for a Knative Service; the proxy of its pods lets requests finish."""
    replicas = kubernetes.copies(context, layout(context.launch)[0])
    kept = context.supervision.available_of(replicas)
    answer = _by_default(_pods(context, "Knative's revision", replicas, kept))
    lost = answer["lost"]
    drains = "drains wait while too few pods would be left; Knative's proxy lets requests finish"
    return {
        **answer,
        "lost": Answer(lost.who, lost.does),
        "drained": Answer("Knative", drains, (Setting("minAvailable", kept),)),
    }


def kserve_llm(context: Context) -> Answers:
    """Answers for an LLMInferenceService.

    Raises:
        NoAnswer: where its servers differ, which has no such object.
    """
    units = by_role(context.launch)
    if units is None:
        raise NoAnswer("its servers differ; this object replicates a single one.")
    unit = units.get("server") or units["decode"]
    replicas = kubernetes.copies(context, unit)
    alone = "server" in units and len(unit.pods) == 1
    kept = context.supervision.available_of(replicas) if alone else None
    answer = _by_default(_pods(context, "KServe's workload", replicas, kept, asks=False))
    if len(unit.pods) == 1:
        return answer
    again = "makes all pods of the server anew, as KServe's own LeaderWorkerSet is set"
    whole = {event: Answer("LeaderWorkerSet", again) for event in _ENDS}
    return {**answer, **whole}


_ENDS: tuple[Event, ...] = ("dies", "memory", "wrong")


def llm_d(context: Context) -> Answers:
    """Answers for the pods of llm-d's chart."""
    replicas = kubernetes.copies(context, layout(context.launch)[0])
    return _by_default(_pods(context, "the chart's Deployment", replicas, None))


def _by_default(answer: Answers) -> Answers:
    """The answers of pods whose restart policy others leave at Kubernetes' default."""
    ends = {event: Answer(answer[event].who, answer[event].does) for event in _ENDS}
    return {**answer, **ends}
