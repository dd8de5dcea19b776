"""A recipe as targets see it."""

from __future__ import annotations

from dataclasses import replace

from recipe_core.launch.process import Launch, with_key
from recipe_core.launch.serving.kv_offload import rank_bytes
from recipe_core.launch.training.sources import BUILD, training_containerfile
from recipe_core.models.spec import UNPLACED
from recipe_core.recipe.decision import Decision
from recipe_core.recipe.place import Parameters
from recipe_core.recipe.schema import Recipe, dns_label
from recipe_core.scaling.policies.rows import check_scaling
from recipe_core.targets.context import NAME_ONE, Context, Image
from recipe_core.targets.scale.policy import refuse_other_bounds


def target_context(recipe: Recipe, decision: Decision, started: Launch) -> Context:
    """The launch ``started``, its hardware, and the recipe's estimate and limits, for targets.

    ``started`` is as ``place_launch`` made it.

    Raises:
        InputError: where ``options.scaling`` states what its policy does not know, or the replicas
            of the deployment settings differ from it.
    """
    scaling = decision.request.options.scaling
    if scaling is not None and recipe.kind == "serving":
        check_scaling(scaling)
        refuse_other_bounds(scaling, recipe.parameters, started)
    # What a cluster serves is made on a machine first, and put where the parameter `model` says.
    making = decision.deployment is not None and decision.deployment.compression is not None
    profile, model, lock = decision.cluster.device, decision.model, recipe.lock
    host, offer = profile.node.host_memory_bytes, decision.cluster.offer
    image = lock.image if lock else decision.image
    return Context(
        name=dns_label(recipe.name),
        kind=recipe.kind,
        engine=recipe.engine.name,
        engine_version=recipe.engine.version,
        launch=started,
        parameters=recipe.parameters,
        model=UNPLACED if making else model.source,
        device=profile.known_as or profile.name,
        device_names=profile.aliases,
        vendor=profile.vendor,
        runtime=profile.runtime,
        architecture=profile.architecture,
        network=decision.cluster.network.name,
        network_title=decision.cluster.network.title,
        rack_scale=decision.cluster.rack_scale,
        devices_per_node=max(
            len({d for p in started.processes if p.node == node for d in p.devices})
            for node in range(started.nodes)
        ),
        device_memory_bytes=int(profile.memory_bytes.value),
        host_memory_bytes=int(host.value) if host else None,
        image=Image(reference=image.reference, digest=image.digest) if image else None,
        weights_bytes=int(model.checkpoint_bytes or model.counted_bytes),
        estimate=recipe.estimate,
        workload=recipe.request["workload"],
        limits=recipe.request.get("objective", {}).get("limits", {}),
        install=decision.install,
        offloaded_bytes_per_device=rank_bytes(decision.deployment) if decision.deployment else 0.0,
        supervision=decision.request.options.supervision,
        scaling=scaling if recipe.kind == "serving" else None,
        start=decision.request.options.start,
        weight_dtype=model.weight_dtype,
        makes_checkpoint=making,
        spills=_spills_to_folder(decision),
        spot=_spot_provider(decision),
        provider=offer.provider if offer else None,
        instance=offer.instance if offer else None,
        slice_of=profile.slice_of,
        no_image=BUILD if image_file(decision, recipe.device.runtime) else NAME_ONE,
    )


def _spot_provider(decision: Decision) -> str | None:
    if decision.cluster.commitment != "spot":
        return None
    return decision.cluster.offer.provider if decision.cluster.offer else ""


def _spills_to_folder(decision: Decision) -> bool:
    offload = decision.deployment.setting.offload if decision.deployment is not None else None
    return offload is not None and bool(offload.stores)


def place_launch(decision: Decision, parameters: Parameters) -> Launch:
    """Return a decision's launch in its place: with variables of communication and a key.

    Raises:
        NoAnswer: for a key where the engine, or a router before its pools, asks nobody for one.
    """
    started = decision.started()
    if parameters.api_key_secret and decision.deployment is not None:
        started = with_key(started, decision.deployment.setting.engine)
    if not parameters.communication:
        return started
    processes = tuple(
        replace(process, env=process.env | parameters.communication) if process.devices else process
        for process in started.processes
    )
    return replace(started, processes=processes)


def image_file(decision: Decision, runtime: str) -> str | None:
    """The Containerfile of a framework without a published image; None if not needed or known."""
    if decision.deployment is not None or decision.image is not None:
        return None
    return training_containerfile(decision.engine, runtime)
