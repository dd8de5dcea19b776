"""Training on Kubernetes."""

from __future__ import annotations

from recipe_core.targets import supervise
from recipe_core.targets.context import Context
from recipe_core.targets.restarts.shape import Answer, Answers, Setting, nobody_answer, unsaved_text
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
