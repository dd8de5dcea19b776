"""Tools that people fine-tune with are told what was estimated, as their own parsers read it."""

import ast
import dataclasses
import json
import os
import random
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from recipe_core.base.errors import NoAnswer
from recipe_core.bundle.write import bundle_files
from recipe_core.engines.frameworks import TrainingData, framework, training_data
from recipe_core.engines.training_programs import training_engine, usual_hyperparameters
from recipe_core.launch.start import launch_reasons, training_launch
from recipe_core.launch.training.sources import json_lines, sample_chats, sample_preferences
from recipe_core.payload.trainer import start_tool
from recipe_core.plans.plans import plan_candidate, plan_splits
from recipe_core.plans.splits import row_estimates
from recipe_core.recipe import make_recipe
from tests.fixtures.packages import package
from tests.fixtures.paths import ROOT
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over, table
from tests.fixtures.sizes import examples
from tests.fixtures.training import RUN, training_request, training_table

SCRIPT = ROOT / "scripts" / "training_parsers.py"
MODEL = "meta-llama/Llama-3.1-8B-Instruct"
PACKAGES = {
    "trl": ("trl", "1.16.0"),
    "axolotl": ("axolotl", "0.19.0"),
    "llama-factory": ("llamafactory", "0.9.5"),
}
METHODS = dict.fromkeys(PACKAGES, ("finetune", "lora", "qlora", "dpo"))
METHODS |= {"unsloth": ("lora", "qlora")}
OPTIMIZERS = table("training_launch", "optimizers")
"""Names of transformers' trainer (5.23, ``OptimizerNames``)."""
EACH = examples(60, least=6)
"""Layouts of a tool and method that are rendered."""


def request(engine, method, candidate=None, **work):
    nodes, more = 1 if engine == "unsloth" else 2, RUN | {"tokens": 1e8, "method": method} | work
    return training_request({"engine": engine} | (candidate or {}), nodes, MODEL, **more)


def launched(asked):
    plans, row = plan_candidate(asked)
    return training_launch(*row_estimates(plans, row))


def split(engine, **parts):
    """A stated split of all devices, which each tool can be told."""
    alone = engine == "unsloth"
    plain = {"tp": 1, "pp": 1, "dp": 8 if alone else 16, "zero_stage": 0 if alone else 3}
    return plain | {"micro_batch": 2, "recompute": "full"} | parts


@cache
def stated(engine, method):
    return launched(request(engine, method, split(engine)))


@cache
def rendered(engine):
    """Splits picked at random among those that can be started, of every method."""
    chance, out = random.Random(engine), []
    odd = {"lora_rank": 8, "lora_alpha": 24}
    asked = [request(engine, method) for method in METHODS[engine]]
    asked.append(request(engine, "lora", {"precision": "fp16"}, **odd))
    for plans in map(plan_splits, asked):
        rows = [int(row) for row in plans.order]
        picked = (row_estimates(plans, row) for row in chance.sample(rows, min(len(rows), EACH)))
        out += [(*each, training_launch(*each)) for each in picked if not launch_reasons(*each)]
    for method, parts, work in table("training_launch", "tools_more")[engine]:
        plans, row = plan_candidate(request(engine, method, split(engine, **parts), **work))
        out.append((*row_estimates(plans, row), training_launch(*row_estimates(plans, row))))
    return out


def answers(engine):
    """What the tool's own parser says of each rendered bundle, and of the first one with a field
    that it does not know.
    """
    (*first, launch), (file, field) = rendered(engine)[0], MISSPELLED[engine]
    wrong = replace(launch, files=launch.files | {file: f"{launch.files[file]}{field}: 4096\n"})
    cases, places = [], {"${model}": "org/model", "${head}": "node-0", "${port}": "29500"}
    for estimates, row, started in [*rendered(engine), (*first, wrong)]:
        words = "\0".join(started.processes[-1].argv)  # the last node's command
        for place, value in places.items():
            words = words.replace(place, value)
        sizes = {"devices": estimates.cases.dims(row).devices}
        sizes |= {"steps": int(estimates.run.steps[row]), "files": started.files}
        cases.append(json.dumps(sizes | {"argv": words.split("\0")}))
    command = [sys.executable, str(SCRIPT), engine, str(package(*PACKAGES[engine]))]
    done = subprocess.run(command, input="\n".join(cases), capture_output=True, text=True)
    assert done.stdout.count("\n") == len(cases), done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


MISSPELLED = {
    "trl": ("trl.yaml", "max_lenght"),
    "axolotl": ("axolotl.yaml", "sequence_length"),
    "llama-factory": ("llama_factory.yaml", "cutoff_length"),
}


def pairs(engine):
    """Bundles and what the tool understood, which refuses the misspelled one."""
    every, (*said, misspelled) = rendered(engine), answers(engine)
    assert MISSPELLED[engine][1] in misspelled["refused"]
    assert {estimates.setting.method for estimates, _, _ in every} == set(METHODS[engine])
    for (estimates, row, launch), answer in zip(every, said, strict=True):
        assert "refused" not in answer, answer["refused"]
        yield estimates, row, launch, answer["values"]


def trainer_fields(estimates, row):
    """What any tool over transformers' trainer must have understood."""
    setting, dims = estimates.setting, estimates.cases.dims(row)
    steps = int(estimates.run.steps[row])
    h = usual_hyperparameters(setting.model.language_parameters, steps, setting.method)
    same = ("learning_rate", "warmup_steps", "weight_decay", "seed")
    return {
        **{name: getattr(h, name) for name in same},
        **{name: setting.precision == name for name in ("bf16", "fp16")},
        **{"adam_beta1": h.beta1, "adam_beta2": h.beta2, "adam_epsilon": h.epsilon},
        **{"max_steps": steps, "gradient_accumulation_steps": dims.accumulation},
        **{"max_grad_norm": h.clip_norm, "save_total_limit": 2},
    }


def rows_of(estimates, row):
    """Rows of data in a micro-batch: DPO's are pairs."""
    return int(estimates.cases.micro_batch[row]) // (2 if estimates.setting.method == "dpo" else 1)


def has(values, **expected):
    assert {name: values.get(name) for name in expected} == expected


@pytest.mark.nightly
def test_trl_understands_what_was_estimated():
    for estimates, row, launch, values in pairs("trl"):
        setting, cases = estimates.setting, estimates.cases
        zero, full = int(cases.zero_stage[row]), cases.recompute[row] == 2
        lora = setting.method in ("lora", "qlora")
        has(
            values,
            **trainer_fields(estimates, row),
            model_name_or_path="org/model",
            per_device_train_batch_size=rows_of(estimates, row),
            max_length=int(cases.sequence_length[row]),
            optim=OPTIMIZERS[setting.optimizer_name],
            optim_args="momentum=0.9" if setting.optimizer_name == "sgd" else None,
            gradient_checkpointing=full and zero == 0,
            use_peft=lora,
            load_in_4bit=setting.method == "qlora",
            attn_implementation="sdpa",
            resume_from_checkpoint=None,
        )
        if setting.method != "dpo":
            has(values, packing=setting.packed, assistant_only_loss=True)
        if (cp := int(cases.cp[row])) > 1:
            has(values, packing=False, pad_to_multiple_of=2 * cp)
        if lora:
            has(values, lora_r=setting.lora_rank, lora_alpha=setting.lora_alpha)
            has(values, lora_target_modules="all-linear", lora_dropout=0.0)
        accelerate = values["accelerate"]
        assert accelerate["num_processes"] == cases.dp[row] * cp
        assert values["launched"]["machine_rank"] == launch.nodes - 1
        assert (accelerate["distributed_type"] == "FSDP") == (zero > 0)
        if zero:
            fsdp, mesh = accelerate["fsdp_config"], accelerate["parallelism_config"]
            assert fsdp["fsdp_reshard_after_forward"] == (zero == 3)
            assert fsdp["fsdp_activation_checkpointing"] == full
            away = bool(cases.activation_offload[row])
            assert fsdp["fsdp_activation_checkpointing_offload"] == away
            assert fsdp["fsdp_offload_params"] == cases.host_parameters[row]
            assert mesh["parallelism_config_dp_shard_size"] == cases.shard[row] // cp
            assert mesh["parallelism_config_cp_size"] == cp


def zero_fields(estimates, row, zero):
    """DeepSpeed's file divides as estimated, and its three batch sizes agree."""
    cases, micro = estimates.cases, rows_of(estimates, row)
    assert zero["zero_optimization"]["stage"] == cases.zero_stage[row]
    accumulated = cases.dims(row).accumulation
    has(zero, train_micro_batch_size_per_gpu=micro, gradient_accumulation_steps=accumulated)
    has(zero, train_batch_size=micro * accumulated * cases.dp[row])
    assert ("offload_param" in zero["zero_optimization"]) == cases.host_parameters[row]
    assert ("optimizer" in zero) == (estimates.setting.optimizer_name == "adamw")


@pytest.mark.nightly
def test_axolotl_understands_what_was_estimated():
    for estimates, row, launch, values in pairs("axolotl"):
        setting, cases = estimates.setting, estimates.cases
        expected = trainer_fields(estimates, row).items()
        assert not values.get({"bf16": "fp16", "fp16": "bf16"}[setting.precision])
        has(
            values,
            **{name: value for name, value in expected if value is not False},
            base_model="org/model",
            micro_batch_size=rows_of(estimates, row),
            sequence_len=int(cases.sequence_length[row]),
            attn_implementation="sdpa",
            cosine_min_lr_ratio=0.1,
            optimizer=OPTIMIZERS[setting.optimizer_name],
        )
        (data,) = values["datasets"]
        has(data, path="data/rows.jsonl", data_files=None)  # a file, where the tool is started
        full, by_fsdp = bool(cases.recompute[row] == 2), "fsdp_config" in values
        assert by_fsdp == (setting.method == "qlora" and cases.host_parameters[row])
        if by_fsdp:
            fsdp = {"offload_params": True, "cpu_ram_efficient_loading": True}
            has(values["fsdp_config"], sync_module_states=True, **fsdp)
            has(values, qlora_sharded_model_loading=True, fsdp_version=1)
        has(values, gradient_checkpointing=full)
        liger = True if cases.fused_loss[row] else None
        has(values, liger_fused_linear_cross_entropy=liger, liger_rms_norm=None)
        if setting.method == "dpo":
            has(values, rl="dpo", rl_beta=0.1)
        else:
            has(values, sample_packing=True, train_on_inputs=False)
        if setting.frozen:
            has(values, adapter=setting.method, lora_r=setting.lora_rank)
            has(values, lora_alpha=setting.lora_alpha, lora_target_linear=True)
            has(values, lora_mlp_kernel=False, lora_qkv_kernel=False, lora_o_kernel=False)
        started = values["started"]
        assert started[started.index("--nproc-per-node") + 1] == str(cases.dp[row] // launch.nodes)
        if not by_fsdp:
            zero_fields(estimates, row, json.loads(launch.files["ds_config.json"]))


@pytest.mark.nightly
def test_llama_factory_understands_what_was_estimated():
    for estimates, row, launch, values in pairs("llama-factory"):
        setting, cases = estimates.setting, estimates.cases
        has(
            values,
            **trainer_fields(estimates, row),
            model_name_or_path="org/model",
            per_device_train_batch_size=rows_of(estimates, row),
            # it packs one token less, then pads to a multiple of eight
            cutoff_len=int(cases.sequence_length[row]) - (setting.method != "dpo"),
            disable_gradient_checkpointing=bool(cases.recompute[row] != 2),
            stage="dpo" if setting.method == "dpo" else "sft",
            optim=OPTIMIZERS[setting.optimizer_name],
            finetuning_type="lora" if setting.frozen else "full",
            quantization_bit=4 if setting.method == "qlora" else None,
            packing=setting.method != "dpo",
            train_on_prompt=False,
            enable_liger_kernel=bool(cases.fused_loss[row]),
        )
        if setting.frozen:
            has(values, lora_rank=setting.lora_rank, lora_alpha=setting.lora_alpha)
        env = launch.processes[-1].env
        devices = int(env["NNODES"]) * int(env["NPROC_PER_NODE"])
        assert (devices, env["NODE_RANK"]) == (cases.dp[row], str(launch.nodes - 1))
        zero_fields(estimates, row, values["zero"])


def nodes_of(file, kind):
    return [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, kind)]


def arguments_of(file, owner, function):
    """Names of a method's arguments, read without importing it."""
    (found,) = [node for node in nodes_of(file, ast.ClassDef) if node.name == owner]
    (found,) = [part for part in found.body if getattr(part, "name", "") == function]
    return {argument.arg for argument in (*found.args.args, *found.args.kwonlyargs)}


def fields_of(file):
    """Names of the fields of a file's dataclasses, read without importing it."""
    targets = [node.target for node in nodes_of(file, ast.AnnAssign)]
    return {target.id for target in targets if isinstance(target, ast.Name)}


@pytest.mark.nightly
def test_unsloth_has_every_argument_that_it_is_given():
    """Importing it needs a GPU: signatures are read from sources, of TRL the newest it takes."""
    from transformers import TrainingArguments  # imports torch

    models = package("unsloth", "2026.10.9") / "unsloth" / "models"
    load = arguments_of(models / "loader.py", "FastLanguageModel", "from_pretrained")
    adapters = arguments_of(models / "llama.py", "FastLlamaModel", "get_peft_model")
    trl = package("trl", "1.15.0") / "trl" / "trainer"
    inherited = {field.name for field in dataclasses.fields(TrainingArguments)}
    arguments = fields_of(trl / "sft_config.py") | inherited
    for estimates, row, launch in rendered("unsloth"):
        settings, setting = json.loads(launch.files["unsloth.json"]), estimates.setting
        assert settings["load"].keys() <= load
        assert settings["adapters"].keys() <= adapters
        assert settings["arguments"].keys() <= arguments
        has(
            settings["arguments"],
            **trainer_fields(estimates, row),
            per_device_train_batch_size=int(estimates.cases.micro_batch[row]),
            max_length=int(estimates.cases.sequence_length[row]),
            assistant_only_loss=True,
            optim=OPTIMIZERS[setting.optimizer_name],
        )
        has(settings["adapters"], r=setting.lora_rank, lora_alpha=setting.lora_alpha)
        again = bool(estimates.cases.recompute[row] == 2)
        mode = "unsloth" if estimates.cases.activation_offload[row] else again
        has(settings["adapters"], use_gradient_checkpointing=mode)
        has(settings["load"], use_gradient_checkpointing=mode)
        has(settings["load"], load_in_4bit=setting.method == "qlora")


@over("engine, parts, work, field, said", table("training_launch", "tools_refused"))
def test_what_a_tool_cannot_be_told_is_refused_by_its_field(engine, parts, work, field, said):
    asked = request(engine, candidate=split(engine, **parts), **work)
    error = refusal(launched, asked, kind=NoAnswer)
    assert (error.field, said in error.message) == (field, True)
    assert error.hint


@over("method, parts, mode", table("training_launch", "unsloth_checkpoints"))
def test_unsloth_keeps_activations_on_the_host_unless_it_is_told_otherwise(method, parts, mode):
    plans, row = plan_candidate(request("unsloth", method, split("unsloth", **parts)))
    estimates, i = row_estimates(plans, row)
    settings = json.loads(training_launch(estimates, i).files["unsloth.json"])
    assert settings["load"]["use_gradient_checkpointing"] == mode
    assert (estimates.memory.host_bytes[i] > 0) == (mode == "unsloth")


def test_unsloth_is_launched_on_one_node():
    plans, row = training_table({"engine": "unsloth"} | split("unsloth", dp=16), method="lora")
    assert any("on one node" in reason for reason in launch_reasons(*row_estimates(plans, row)))


def test_sample_data_are_conversations_and_preferences_and_each_method_has_its_own():
    for row in sample_chats():
        roles = [message["role"] for message in row["messages"]]
        assert roles == ["system", *["user", "assistant"] * (len(roles) // 2)]
    for row in sample_preferences():
        (prompt,), (chosen,), (rejected,) = row["prompt"], row["chosen"], row["rejected"]
        assert (prompt["role"], chosen["role"], rejected["role"]) == ("user", *["assistant"] * 2)
        assert chosen["content"] != rejected["content"]
    for engine, methods in METHODS.items():
        for method in methods:
            wanted = "preference" if method == "dpo" else "chat"
            data = [path for path in stated(engine, method).files if path.endswith(".jsonl")]
            assert data == [f"data/{wanted}.jsonl"]


def test_data_are_laid_where_tools_read_them(tmp_path: Path):
    """LLaMA-Factory's answers are one message; of a line that is no object the number is said."""
    source, place = tmp_path / "mine.jsonl", tmp_path / "run" / "data" / "rows.jsonl"
    source.write_text(json_lines(sample_preferences()[:3]))
    start_tool.lay(source, place, single=False)
    assert place.read_text() == source.read_text()
    start_tool.lay(source, place, single=True)
    first = json.loads(place.read_text().splitlines()[0])
    assert (type(first["prompt"]), type(first["chosen"])) == (list, dict)
    assert [path.name for path in place.parent.iterdir()] == ["rows.jsonl"]
    source.write_text("{}\n\n7\n")
    with pytest.raises(SystemExit, match="line 3 is not a JSON object"):
        start_tool.lay(source, place, single=False)
    for engine in PACKAGES:
        words = stated(engine, "lora").processes[0].argv
        assert words[words.index("--lay") + 1] == "${run}/data/rows.jsonl"


def test_a_bundle_asks_for_the_tool_behind_its_script():
    for engine in ("trl", "axolotl"):
        files = bundle_files(make_recipe(request(engine, "lora", split(engine, micro_batch=1))))
        assert json.loads(files["launch.json"])["engine"]["program"] == engine
        assert files["container/Containerfile"]


def test_a_start_goes_on_from_the_newest_whole_checkpoint(tmp_path: Path):
    assert start_tool.add_resume_words(["trl", "sft"], tmp_path) == ["trl", "sft"]
    for step, whole in ((5, True), (10, True), (20, False)):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        if whole:
            (folder / "trainer_state.json").write_text("{}")
    resumed = ["trl", "--resume_from_checkpoint", str(tmp_path / "checkpoint-10")]
    assert start_tool.add_resume_words(["trl"], tmp_path) == resumed


def test_a_tool_has_the_figures_of_what_it_runs_over():
    trl, accelerate = framework("trl"), framework("accelerate")
    assert trl.states == accelerate.states
    assert (trl.title, trl.pieces.use, trl.pieces.tokens) == ("TRL", "always", 4096)
    zero = framework("deepspeed")
    same = {"title": "DeepSpeed", "pieces": zero.pieces}
    assert framework("llama-factory").model_copy(update=same) == zero
    assert training_engine("axolotl").launches.zero_stages == (0, 1, 2, 3)
    assert "trlx" in str(refusal(framework, "trlx"))
    stated = training_data().model_dump(mode="json")
    stated["frameworks"]["llama-factory"] = {"title": "LLaMA-Factory", "same_as": "deepspeed"}
    for base in ("llama-factory", "nothing"):
        stated["frameworks"]["axolotl"] = {"title": "Axolotl", "same_as": base}
        with pytest.raises(ValueError, match=r"axolotl\.same_as"):
            TrainingData.model_validate(stated)


def test_memory_follows_what_a_tool_does():
    """TRL never has full logits, and has DPO's frozen model whole; DeepSpeed divides it."""

    def parts(engine, method):
        plans, row = plan_candidate(request(engine, method, split(engine)))
        estimates, i = row_estimates(plans, row)
        return {name: float(part[i, 0]) for name, part in estimates.memory.parts.items()}

    assert parts("trl", "finetune")["loss"] < parts("accelerate", "finetune")["loss"] / 4
    whole = 2 * 8.03e9
    assert parts("trl", "dpo")["reference"] == pytest.approx(whole, rel=0.01)
    assert parts("axolotl", "dpo")["reference"] == pytest.approx(whole / 16, rel=0.01)


def test_a_tool_starts_its_own_ranks_whatever_a_controller_calls_its_nodes():
    """A PyTorchJob sets these for each pod; TRL would wait for another rank before any starts."""
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR")
    program = f"import os; print([name for name in {names} if name in os.environ])"
    start = f"import sys; from {start_tool.__name__} import main; main(sys.argv[1:])"
    words = [sys.executable, "-c", start, "--", sys.executable, "-c", program]
    env = {**os.environ, **dict.fromkeys(names, "1")}
    done = subprocess.run(words, capture_output=True, text=True, env=env, check=True)
    assert done.stdout.strip() == "['MASTER_ADDR']"
