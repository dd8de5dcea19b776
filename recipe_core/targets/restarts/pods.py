"""Servers on Kubernetes: Deployments, LeaderWorkerSets, and what KServe and llm-d make of them."""

from __future__ import annotations

from recipe_core.base.errors import NoAnswer
from recipe_core.targets import kubernetes, supervise
from recipe_core.targets.context import Context
from recipe_core.targets.layout import by_role, launch_units
from recipe_core.targets.restarts.shape import (
    Answer,
    Answers,
    Event,
    Setting,
    nobody_answer,
    slow_answer,
    unsaved_text,
)
from recipe_core.targets.scale.policy import fewest_copies
from recipe_core.targets.supervise import asks_for_tokens
from recipe_core.targets.training import RUNTIME

# Frameworks that end so on every node when one of them is told to stop.
ENDS_WITH_0 = ("megatron",)


def _job_answers(context: Context, who: str, restart_text: str, *settings: Setting) -> Answers:
    stop = Setting("terminationGracePeriodSeconds", supervise.grace_s(context))
    counted = Answer(who, restart_text, settings)
    saves = f"{unsaved_text(context, 'signal')}; then as a loss"
    return {
        "dies": counted,
        "hangs": nobody_answer(
            "nothing, until torch's own time-out ends the ranks; then as for a death"
        ),
        "memory": counted,
        "lost": counted,
        "drained": Answer("kubelet", saves, (stop,)),
        "slow": nobody_answer("nothing is seen"),
        "wrong": counted,
    }


def job_set_answers(context: Context) -> Answers:
    restart_text = "starts all nodes again from the newest checkpoint, then gives up"
    max_restarts = Setting("failurePolicy.maxRestarts", supervise.lifetime_restarts(context))
    answer = _job_answers(context, "JobSet", restart_text, max_restarts)
    free = Setting("action", "RestartJobSetAndIgnoreMaxRestarts")
    return {**answer, "lost": Answer("JobSet", "starts all nodes again, without a count", (free,))}


def train_job_answers(context: Context) -> Answers:
    """Answers for a TrainJob, which becomes a JobSet."""
    restart_text = "does as the cluster's runtime says; a TrainJob cannot set it"
    return _job_answers(context, "its JobSet", restart_text, Setting("runtimeRef.name", RUNTIME))


def pytorch_job_answers(context: Context) -> Answers:
    """Answers for a PyTorchJob."""
    restart_text = "restarts the pod, and gives the job up after so many"
    policy = Setting("restartPolicy", "OnFailure")
    backoff_limit = Setting("backoffLimit", supervise.lifetime_restarts(context))
    answers = _job_answers(context, "training operator", restart_text, policy, backoff_limit)
    if context.engine not in ENDS_WITH_0 or context.nodes == 1:
        return answers
    ends = f"{unsaved_text(context, 'signal')}; the first node's end then counts as that of the run"
    return {**answers, "drained": Answer("kubelet", ends, answers["drained"].settings)}


def volcano_answers(context: Context) -> Answers:
    """Answers for a job of Volcano."""
    restart_text = "starts all nodes again, then gives up"
    max_retry = Setting("maxRetry", supervise.lifetime_restarts(context))
    return _job_answers(
        context, "Volcano", restart_text, Setting("action", "RestartJob"), max_retry
    )


def _probe_settings(context: Context, *, asks: bool) -> tuple[Setting, ...]:
    looks = supervise.generation_looks(context) if asks else supervise.hang_looks(context)
    unready = supervise.unready_looks(context)
    return (
        Setting("readinessProbe.failureThreshold", unready.failures),
        Setting("livenessProbe.periodSeconds", looks.period_s),
        Setting("livenessProbe.failureThreshold", looks.failures),
    )


def _asks_for_tokens(context: Context) -> bool:
    return any(asks_for_tokens(context, process) for process in context.launch.processes)


def _drain_answer(context: Context, min_available: int | None) -> Answer:
    """``min_available`` pods a drain leaves up; None where no budget is part of the target."""
    settings = (
        Setting("preStop.exec.command", ("sleep", str(context.supervision.drain_s))),
        Setting("terminationGracePeriodSeconds", supervise.grace_s(context)),
    )
    if min_available is None:
        return Answer("kubelet", "lets running requests finish; no budget delays it", settings)
    waits = "drains wait while too few pods would be left; running requests finish"
    return Answer("kubelet", waits, (Setting("minAvailable", min_available), *settings))


def _pod_answers(
    context: Context,
    controller: str,
    replicas: int,
    min_available: int | None,
    *,
    asks: bool = True,
) -> dict[Event, Answer]:
    """Answers of pods that a Deployment keeps; ``asks``: whether probes may ask for tokens."""
    asks = asks and _asks_for_tokens(context)
    restart_text = "starts the container again without end, after 10 s doubling to 5 min"
    policy = (Setting("restartPolicy", "Always"),)
    looks = "it is asked for a token where it counts none" if asks else "only its health is seen"
    hang_text = f"takes the server out of the service, then starts it again; {looks}"
    elsewhere = "makes the pod anew on another node, five minutes after a node is lost"
    return {
        "dies": Answer("kubelet", restart_text, policy),
        "hangs": Answer("kubelet", hang_text, _probe_settings(context, asks=asks)),
        "memory": Answer("kubelet", restart_text, policy),
        "lost": Answer(controller, elsewhere, (Setting("replicas", replicas),)),
        "drained": _drain_answer(context, min_available),
        "slow": slow_answer(context),
        "wrong": Answer("kubelet", f"{restart_text}; nobody gives up", policy),
    }


def kubernetes_answers(context: Context) -> Answers:
    """Of the workload with the servers: a Deployment, or a LeaderWorkerSet over several nodes."""
    units = launch_units(context.launch)
    groups = [unit for unit in units if len(unit.pods) > 1]
    unit = (groups or list(units))[0]
    replicas = kubernetes.initial_copies(context, unit)
    role = unit.leader[0].role
    role_copies = sum(
        kubernetes.initial_copies(context, u) for u in units if u.leader[0].role == role
    )
    min_available = context.supervision.available_of(role_copies)
    if groups:
        return _group_answers(context, replicas, min_available * kubernetes.counted_pods(unit))
    answer = _pod_answers(context, "Deployment", replicas, min_available)
    startup = kubernetes.progress_s(context, unit)
    late_text = f"{answer['wrong'].does}; the rollout counts as failed in time"
    progress = (*answer["wrong"].settings, Setting("progressDeadlineSeconds", startup))
    return {**answer, "wrong": Answer("kubelet", late_text, progress)}


def _group_answers(context: Context, replicas: int, min_available: int) -> Answers:
    """Answers of a LeaderWorkerSet: the ranks of a server start together, or not at all."""
    policy = (Setting("leaderWorkerTemplate.restartPolicy", "RecreateGroupOnPodRestart"),)
    restart_text = "makes all pods of the server anew, without end"
    who = "LeaderWorkerSet"
    probes = _probe_settings(context, asks=_asks_for_tokens(context))
    return {
        "dies": Answer(who, restart_text, policy),
        "hangs": Answer("kubelet", f"restarts the leader; so {who} {restart_text}", probes),
        "memory": Answer(who, restart_text, policy),
        "lost": Answer(
            who,
            f"{restart_text}, five minutes after a node is lost",
            (Setting("replicas", replicas),),
        ),
        "drained": _drain_answer(context, min_available),
        "slow": slow_answer(context),
        "wrong": Answer(who, f"{restart_text}; nobody gives up", policy),
    }


def kserve_answers(context: Context) -> Answers:
    """Answers for an InferenceService."""
    if context.scaling is not None and context.scaling.policy == "kpa":
        answer = knative_answers(context)
        lost = answer["lost"]
        low = Setting("minReplicas", fewest_copies(context, launch_units(context.launch)[0]))
        return {**answer, "lost": Answer(lost.who, lost.does, (low,))}
    unit = launch_units(context.launch)[0]
    replicas = kubernetes.initial_copies(context, unit)
    min_available = context.supervision.available_of(replicas)
    answer = _pod_answers(context, "KServe's Deployment", replicas, min_available)
    lost = answer["lost"]
    return {**answer, "lost": Answer(lost.who, lost.does, (Setting("minReplicas", replicas),))}


def knative_answers(context: Context) -> Answers:
    """Answers for a Knative Service; the proxy of its pods lets requests finish."""
    replicas = kubernetes.initial_copies(context, launch_units(context.launch)[0])
    min_available = context.supervision.available_of(replicas)
    answer = _default_policy_answers(
        _pod_answers(context, "Knative's revision", replicas, min_available)
    )
    lost = answer["lost"]
    drains = "drains wait while too few pods would be left; Knative's proxy lets requests finish"
    return {
        **answer,
        "lost": Answer(lost.who, lost.does),
        "drained": Answer("Knative", drains, (Setting("minAvailable", min_available),)),
    }


def kserve_llm_answers(context: Context) -> Answers:
    """Answers for an LLMInferenceService.

    Raises:
        NoAnswer: where its servers differ, which has no such object.
    """
    units = by_role(context.launch)
    if units is None:
        raise NoAnswer("its servers differ; this object replicates a single one.")
    unit = units.get("server") or units["decode"]
    replicas = kubernetes.initial_copies(context, unit)
    alone = "server" in units and len(unit.pods) == 1
    min_available = context.supervision.available_of(replicas) if alone else None
    answer = _default_policy_answers(
        _pod_answers(context, "KServe's workload", replicas, min_available, asks=False)
    )
    if len(unit.pods) == 1:
        return answer
    restart_text = "makes all pods of the server anew, as KServe's own LeaderWorkerSet is set"
    group_ends = {event: Answer("LeaderWorkerSet", restart_text) for event in _ENDS}
    return {**answer, **group_ends}


_ENDS: tuple[Event, ...] = ("dies", "memory", "wrong")


def llm_d_answers(context: Context) -> Answers:
    """Answers for the pods of llm-d's chart."""
    replicas = kubernetes.initial_copies(context, launch_units(context.launch)[0])
    return _default_policy_answers(_pod_answers(context, "the chart's Deployment", replicas, None))


def _default_policy_answers(answer: Answers) -> Answers:
    """The answers of pods whose restart policy others leave at Kubernetes' default."""
    ends = {event: Answer(answer[event].who, answer[event].does) for event in _ENDS}
    return {**answer, **ends}
