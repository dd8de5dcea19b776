"""Texts that some language takes for more than a text, and every field to put them into."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from recipe_core.bundle.write import Bundle, bundle_of
from recipe_core.model.catalog import catalog_entry
from recipe_core.recipe import Additions, make_recipe
from recipe_core.recipe.parameters import read_parameters, read_variants
from recipe_core.request.schema import PlanRequest

WORD = "plainword7"
"""What stands in a field of the request that others are held against."""
NAME = "plainowner7/plain-name"
"""What stands there where the text is a whole name."""

PAYLOADS = (
    *("--trust-remote-code", "-oProxyCommand=x", "-1", "-", "--", "-e X=1", "--flag=-v"),
    *("$HOME", "${HOME}", "${HF_TOKEN:-x}", "$(touch INJECTED)", "`touch INJECTED`", "a$", "$"),
    *("$$", "$$$(X)", "$(POD_IP)", "$$(HF_TOKEN)", "$(HF_TOKEN)", "${IFS}x", "$X$$X", "\\$HOME"),
    *("; touch INJECTED;", "&& touch INJECTED", "| touch INJECTED", "> INJECTED", "&"),
    *("'; touch INJECTED; '", '"; touch INJECTED; "', "'\"'\"'", "'", '"', "\\", "a\\", "\\n"),
    *("a\ntouch INJECTED\n", "\n", "a\r\nb", "\t", "\x00", "\x1b[31m", "\x07", "\x85", "\x7f"),
    *("%n%i", "%%", "%", "#x", " #x", "!x", "!!", "*", "~", "~root", "?", "[a-z]*", "{a,b}"),
    *("{{ .Values }}", "{{", "}}", "{{`", "{{`x`}}", "{% x %}", '{{ env "HOME" }}', "{{{", "{"),
    *("${model}", "${root}/x", "a${port1}", "${node0}", "${head}", "${self}", "${index}", "${at0}"),
    *("", " ", "a b", "  a", "a  ", "é漢😀", "\u202eabc", "\u2028", "\ufeff", "\ud800", "x" * 3000),
    *("a: b", "- x", "[x]", "{x: y}", "yes", "null", "1e5", "0x10", "012", "1:30", "2026-01-02"),
    *("!!str x", "*a", "&a", "|", ">", "---", "...", "? a", "@x", "a,b", "a=b", "=", ":", "/"),
    *("```\n# x\n```", "`", "``", "<script>alert(1)</script>", "![x](http://e.example)", "](x)"),
    *("_a_", "**a**", "# x", "1. x", "+ x", "||", "&lt;", "http://e.example/$HOME?a=b&c=d"),
)


@dataclass(frozen=True, slots=True)
class Case:
    """A deployment to put texts into."""

    name: str
    engine: str
    device: str
    candidate: Mapping[str, Any] = field(default_factory=dict)
    per_node: int = 2
    nodes: int = 1
    option: str = "chat_template"
    json_option: str = ""
    training: bool = False

    def body(self) -> dict[str, Any]:
        """A request and what travels with it, as plain values."""
        training = {"kind": "training", "sequence_length": 1024, "global_batch": 32, "tokens": 1e9}
        request = {
            "model": {"_name_or_path": "owner/some-model", **_config()},
            "hardware": {"device": self.device, "per_node": self.per_node, "nodes": self.nodes},
            "workload": training if self.training else {"concurrency": 8},
            "candidate": {"engine": self.engine, **self.candidate},
        }
        return {"request": request, "parameters": dict(PLACE), "variants": []}


PLACE = {"image": "registry.example/engine:1.0", "max_replicas": 2}
"""Parameters that open targets which are closed without them."""


@cache
def _config() -> dict[str, Any]:
    return catalog_entry("Qwen/Qwen3-8B").config


POOLS = {"tp": 1, "prefill": {"tp": 1}}
SERVING = (
    Case("vllm", "vllm", "h100-sxm", {"tp": 2}, json_option="default_chat_template_kwargs"),
    Case(
        "vllm, several",
        "vllm",
        "mi300x",
        {"tp": 1, "dp": 2},
        json_option="default_chat_template_kwargs",
    ),
    Case("vllm, nodes", "vllm", "h100-sxm", {"tp": 2, "pp": 2}, nodes=2),
    Case("vllm, pools", "vllm", "h100-sxm", POOLS),
    Case("sglang", "sglang", "mi300x", {"tp": 2}, json_option="default_chat_template_kwargs"),
    Case("sglang, nodes", "sglang", "h100-sxm", {"tp": 2, "pp": 2}, nodes=2),
    Case("tensorrt-llm", "tensorrt-llm", "h100-sxm", {"tp": 2}, json_option="media_io_kwargs"),
    Case("tensorrt-llm, pools", "tensorrt-llm", "h100-sxm", POOLS),
    Case("llama-cpp", "llama-cpp", "cpu", {}, per_node=1),
    Case("tgi", "tgi", "h100-sxm", {"tp": 2}, option="tokenizer_config_path"),
    Case("transformers", "transformers", "h100-sxm", {}, per_node=1, option=""),
    Case("triton", "triton", "h100-sxm", {"tp": 2}),
    Case("triton-tensorrt-llm", "triton-tensorrt-llm", "h100-sxm", {"tp": 2}),
    Case("dynamo", "dynamo", "h100-sxm", {"tp": 2}),
)
TRAINING = (
    Case("torch", "torch", "h100-sxm", {}, nodes=2, training=True),
    Case("deepspeed", "deepspeed", "h100-sxm", {"zero_stage": 2}, training=True),
    Case("accelerate", "accelerate", "h100-sxm", {"zero_stage": 3}, training=True),
    Case("megatron", "megatron", "h100-sxm", {"zero_stage": 1}, training=True),
    Case("primus", "megatron", "mi300x", {"zero_stage": 1}, training=True),
)


def _at(*path: str) -> Callable[[dict[str, Any], Any], None]:
    def put(body: dict[str, Any], value: Any) -> None:
        inner = body
        for step in path[:-1]:
            inner = inner.setdefault(step, {})
        inner[path[-1]] = value

    return put


def _key(*path: str) -> Callable[[dict[str, Any], Any], None]:
    """Puts a text there as the only key."""
    return lambda body, text: _at(*path)(body, {text: "1"})


def _variant(body: dict[str, Any], text: str) -> None:
    change = {"notes": [text]}
    body["variants"] = [{"name": f"some {text}", "when": {"vendor": "amd"}, "add": change}]


def _profile(name: str) -> Callable[[dict[str, Any], Any], None]:
    def put(body: dict[str, Any], value: Any) -> None:
        hardware = body["request"]["hardware"]
        hardware["device"] = {
            "schema_version": 1,
            "name": "my-device",
            "title": "My device",
            "based_on": hardware["device"],
            name: [value] if name == "aliases" else value,
        }

    return put


PLACES = (
    *("model", "host", "image", "namespace", "storage_class", "shared_storage_class"),
    *("rdma_resource", "networks", "gpu_type", "constraint", "token_secret", "queue", "partition"),
    *("account", "cloud", "region", "prometheus", "monitoring_namespace"),
)
DESCRIBED = ("name", "title", "aliases")


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a request: how a text is put there, and the text as it stands there.

    ``whole``: the text is the name itself, from which other names follow; then only what is started
    is held against it.
    """

    name: str
    put: Callable[[dict[str, Any], Any], None]
    form: str = "{}"
    whole: bool = False

    def text(self, payload: str) -> str:
        """The text of the field with a payload in it."""
        return self.form.replace("{}", payload)


def fields(case: Case) -> list[Field]:
    """Every field of a deployment's request that takes a text."""
    model = ("request", "model", "_name_or_path")
    out = [
        Field("folder", _at(*model), "/data/{}/some-model"),
        Field("hub id", _at(*model), "owner{}/some-model"),
        Field("model", _at(*model), whole=True),
        Field("named model", _at("request", "model"), whole=True),
        *(Field(f"parameters.{name}", _at("parameters", name)) for name in PLACES),
        Field("parameters.model_cache", _at("parameters", "model_cache"), "cache{}"),
        Field("parameters.model_cache, a folder", _at("parameters", "model_cache"), "/srv/{}"),
        Field("parameters.image, within", _at("parameters", "image"), "registry.example/x{}:1.0"),
        Field("parameters.node_selector", _at("parameters", "node_selector", "pool")),
        Field("parameters.node_selector (a key)", _key("parameters", "node_selector")),
        Field("variants", _variant),
        *(Field(f"hardware.device.{name}", _profile(name)) for name in DESCRIBED),
    ]
    options = ("request", "options")
    if case.training:
        return out
    out += [
        Field("environment", _at(*options, "environment", "SOME_VARIABLE")),
        Field("environment, within", _at(*options, "environment", "SOME_VARIABLE"), "a{}b"),
        Field("environment (a name)", _key(*options, "environment")),
        Field("options (a name)", _key(*options, "engine_options")),
    ]
    if case.option:
        path = (*options, "engine_options", case.option)
        out += [Field("option", _at(*path)), Field("option, within", _at(*path), "a{}b")]
    if case.json_option:
        path = (*options, "engine_options", case.json_option)
        out += [
            Field("option in JSON", _at(*path, "some_key")),
            Field("option in JSON (a key)", _key(*path)),
        ]
    if case.engine in ("vllm", "sglang"):
        draft = {"tokens": 2, "acceptance": 0.5, "method": "eagle"}
        speculative = _at("request", "workload", "speculative")
        out.append(Field("draft", lambda body, text: speculative(body, {**draft, "model": text})))
    return out


def build(case: Case, place: Field, payload: str) -> Bundle:
    """The bundle of a deployment with a text in one of its fields.

    Raises:
        RecipeError: for a refusal.
    """
    body = deepcopy(case.body())
    place.put(body, place.text(payload))
    request = PlanRequest.parse(body["request"])
    additions = Additions(
        parameters=read_parameters(body["parameters"]), variants=read_variants(body["variants"])
    )
    return bundle_of(make_recipe(request, additions, folders=False))
