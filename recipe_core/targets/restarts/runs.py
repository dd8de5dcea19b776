"""Training on Kubernetes."""

from __future__ import annotations

from recipe_core.targets import supervise
from recipe_core.targets.context import Context
from recipe_core.targets.restarts.shape import Answer, Answers, Setting, nobody, unsaved
from recipe_core.targets.training import RUNTIME

# Frameworks that end so on every node when one of them is told to stop.
ENDS_WITH_0 = ("megatron",)


def _job(context: Context, who: str, again: str, *settings: Setting) -> Answers:
    stop = Setting("terminationGracePeriodSeconds", supervise.grace_s(context))
    counted = Answer(who, again, settings)
    saves = f"{unsaved(context, 'signal')}; then as a loss"
    return {
        "dies": counted,
        "hangs": nobody("nothing, until torch's own time-out ends the ranks; then as for a death"),
        "memory": counted,
        "lost": counted,
        "drained": Answer("kubelet", saves, (stop,)),
        "slow": nobody("nothing is seen"),
        "wrong": counted,
    }


def job_set(context: Context) -> Answers:
    again = "starts all nodes again from the newest checkpoint, then gives up"
    most = Setting("failurePolicy.maxRestarts", supervise.lifetime_restarts(context))
    answer = _job(context, "JobSet", again, most)
    free = Setting("action", "RestartJobSetAndIgnoreMaxRestarts")
    return {**answer, "lost": Answer("JobSet", "starts all nodes again, without a count", (free,))}


def train_job(context: Context) -> Answers:
    """Answers for a TrainJob, which becomes a JobSet."""
    again = "does as the cluster's runtime says; a TrainJob cannot set it"
    return _job(context, "its JobSet", again, Setting("runtimeRef.name", RUNTIME))


def pytorch_job(context: Context) -> Answers:
    """Answers for a PyTorchJob."""
    again = "restarts the pod, and gives the job up after so many"
    policy = Setting("restartPolicy", "OnFailure")
    most = Setting("backoffLimit", supervise.lifetime_restarts(context))
    answers = _job(context, "training operator", again, policy, most)
    if context.engine not in ENDS_WITH_0 or context.nodes == 1:
        return answers
    ends = f"{unsaved(context, 'signal')}; the first node's end then counts as that of the run"
    return {**answers, "drained": Answer("kubelet", ends, answers["drained"].settings)}


def volcano(context: Context) -> Answers:
    """Answers for a job of Volcano."""
    again = "starts all nodes again, then gives up"
    most = Setting("maxRetry", supervise.lifetime_restarts(context))
    return _job(context, "Volcano", again, Setting("action", "RestartJob"), most)
