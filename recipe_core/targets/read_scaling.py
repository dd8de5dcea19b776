"""The policy of scaling that a target's files were written from: what a cluster is told, read back.

Tests and experiments hold it against what was simulated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from recipe_core.base.documents import parse_yaml
from recipe_core.base.errors import InputError
from recipe_core.request.scaling import Scaling
from recipe_core.targets import dynamo_planner, ray_serve, skypilot
from recipe_core.targets.scale import hpa, keda, kserve, llm_d

Document = Mapping[str, Any]


def read_files(files: Mapping[str, str]) -> Scaling:
    """The policy of a target's files, by path, as ``target_files`` gives them.

    Raises:
        InputError: where none of them is of a policy.
    """
    texts = {path: text for path, text in files.items() if path.endswith(".yaml")}
    return read_scaling([parse_yaml(text, path) for path, text in texts.items()])


def read_scaling(documents: Sequence[Document]) -> Scaling:
    """The policy that the parsed documents of one target were written from.

    Raises:
        InputError: where none of them is of a policy.
    """
    kinds = {document["kind"]: document for document in documents if "kind" in document}
    if "ScaledObject" in kinds:
        return keda.read_keda_spec(kinds["ScaledObject"]["spec"])
    if "HorizontalPodAutoscaler" in kinds:
        rules = next((document for document in documents if "rules" in document), None)
        return hpa.read_hpa_spec(kinds["HorizontalPodAutoscaler"]["spec"], rules)
    if "InferenceService" in kinds:
        return kserve.read_inference_service(kinds["InferenceService"])
    if "LLMInferenceService" in kinds:
        return llm_d.read_llm_service(kinds["LLMInferenceService"], kinds.get("ConfigMap"))
    if "Service" in kinds and "template" in kinds["Service"]["spec"]:
        return kserve.read_annotations(
            kinds["Service"]["spec"]["template"]["metadata"]["annotations"]
        )
    if "Deployment" in kinds:
        return _fixed_scaling(kinds["Deployment"]["spec"]["replicas"])
    for document in documents:
        if "min_endpoint" in document:
            return dynamo_planner.read_planner_settings(document)
        if "service" in document:
            return skypilot.read_sky_service(document["service"])
        if "applications" in document:
            (application,) = document["applications"]
            (model,) = application["args"]["llm_configs"]
            return ray_serve.read_ray_deployment(model["deployment_config"])
    raise InputError("none of the files has a policy of scaling.")


def _fixed_scaling(count: int) -> Scaling:
    return Scaling(policy="fixed", min_replicas=count, max_replicas=count)
