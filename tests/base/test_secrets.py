"""What is taken for a secret, and what of real engines and recipes is not."""

from __future__ import annotations

import base64
import json
import time
from itertools import pairwise

import pytest
import yaml

from recipe_core.base import secrets
from recipe_core.base.errors import InputError
from recipe_core.base.resources import PACKAGE
from recipe_core.base.secrets import is_secret, refuse_planted, refuse_secrets
from tests.fixtures.paths import ROOT

HEX, MIXED = "0123456789abcdef" * 8, "aB3dE5fG7hJ9kL1mN3pQ5rS7tU9vW1xY" * 4

FORMS = [
    "Bearer.abcdefg1234",
    "Bearer xyz",
    "bearer swordfish-and-chips",
    "curl -H 'Authorization: Bearer swordfish'",
    "Authorization=Basic x",
    "Basic " + base64.b64encode(b"me:swordfish").decode(),
    f"hf_{MIXED[:34]}",
    f"api_org_{MIXED[:34]}",
    f"sk-{MIXED[:48]}",
    f"sk-proj-{MIXED[:48]}",
    f"sk-ant-api03-{MIXED[:48]}",
    f"sk_live_{MIXED[:24]}",
    f"rk_live_{MIXED[:24]}",
    f"nvapi-{MIXED[:64]}",
    f"r8_{MIXED[:37]}",
    f"wandb_v1_{MIXED[:40]}",
    f"AIza{MIXED[:35]}",
    f"ya29.{MIXED[:60]}",
    f"GOCSPX-{MIXED[:28]}",
    '{"type": "service_account", "project_id": "p"}',
    f"ghp_{MIXED[:36]}",
    f"github_pat_{MIXED[:60]}",
    f"glpat-{MIXED[:20]}",
    f"npm_{MIXED[:36]}",
    f"pypi-AgEIcHlwaS5vcmc{MIXED[:60]}",
    f"dckr_pat_{MIXED[:27]}",
    "AKIAIOSFODNN7EXAMPLE",
    f"DefaultEndpointsProtocol=https;AccountName=a;AccountKey={MIXED[:86]}==",
    f"{MIXED[:86]}==",
    f"https://a.blob.core.windows.net/c?sv=2024-01-01&sig={MIXED[:43]}%3D",
    f"dapi{HEX[:32]}",
    f"hvs.{MIXED[:90]}",
    f"glsa_{MIXED[:32]}_12345678",
    f"tskey-auth-{MIXED[:20]}",
    f"SG.{MIXED[:22]}.{MIXED[:43]}",
    f"SK{HEX[:32]}",
    f"123456789:AA{MIXED[:33]}",
    "xoxb-1234567890-abcdefghij",
    "xapp-1-A0123456-789",
    "https://hooks.slack.com/services/T000/B000/XXXX",
    "https://discord.com/api/webhooks/123456/abcdef",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl",
    "-----BEGIN PRIVATE KEY-----\\nMII",
    "-----BEGIN OPENSSH PRIVATE KEY-----",
    "-----BEGIN PGP PRIVATE KEY BLOCK-----",
    f"AGE-SECRET-KEY-1{MIXED[:58].upper()}",
    "PuTTY-User-Key-File-3: ssh-ed25519",
    "b3BlbnNzaC1rZXktdjEAAAAABG5vbmU",
    "http://me:swordfish@proxy:3128",
    "redis://:swordfish@cache:6379/0",
    "https://example.org/model?token=swordfish",
    "https://example.org/model?a=1&access_token=swordfish",
    "https://example.org/model?api-key=swordfish",
    "s3://b/k?X-Amz-Signature=0123456789abcdef",
]

NAMES = [
    *("PGPASS", "PGPASSWORD", "DB_PASS", "REDIS_PASSWORD", "MYSQL_PWD", "SSH_PASSPHRASE"),
    *("KEY_PASSPHRASE", "AUTH", "REGISTRY_AUTH", "BEARER", "SESSION", "SESSION_ID", "COOKIE"),
    *("SENTRY_DSN", "GITHUB_PAT", "AZURE_DEVOPS_PAT", "STORAGE_SAS", "CREDS", "AWS_CREDENTIALS"),
    *("WANDB_API_KEY", "OPENAI_APIKEY", "AWS_SECRET_ACCESS_KEY", "aws_secret_access_key"),
    *("CLIENT_SECRET", "clientSecret", "accessToken", "apiKey", "JWT", "SIGNING_KEY"),
    *("AZURE_STORAGE_CONNECTION_STRING", "SLACK_WEBHOOK_URL", "SECRET_KEY", "SECRETS"),
    *("hf-token", "HF_TOKEN", "control-plane-api-keys", "ssl-keyfile-password", "oracle-password"),
]

PASS = [
    ("tokenizer", "Qwen/Qwen3-8B"),
    ("tokenizer_mode", "auto"),
    ("max_tokens", "4096"),
    ("max_num_batched_tokens", "8192"),
    ("num_key_value_heads", "8"),
    ("stop_token", "</s>"),
    ("eos_token", "<|im_end|>"),
    ("per_token", "fp8"),
    ("enable-auto-tool-choice", "true"),
    ("allow_credentials", "true"),
    ("enable_streaming_session", "true"),
    ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1"),
    ("HF_HUB_ENABLE_HF_TRANSFER", "1"),
    ("HF_HOME", "/models/hub"),
    ("HF_ENDPOINT", "https://hf-mirror.com"),
    ("PGPASSFILE", "/etc/pgpass"),
    ("SSL_CERT_FILE", "/etc/ssl/certs/ca-certificates.crt"),
    ("ssl_keyfile", "/etc/ssl/private/key.pem"),
    ("tls_key_path", "/etc/ssl/private/key.pem"),
    ("SASL_AUTH", "kerberos"),
    ("REQUIRE_AUTH", "false"),
    ("router-session-affinity-mode", "header"),
    ("PWD", "/home/me/project-2026-11"),
    ("routing_key", "prefill"),
    ("cache_key", "block-hash"),
    ("sort_key", "models/Qwen3-8B/latest/weights"),
    ("NCCL_IB_HCA", "mlx5_0:1,mlx5_1:1"),
    ("NCCL_SOCKET_IFNAME", "eth0"),
    ("NCCL_TOPO_FILE", "/etc/nccl/topo.xml"),
    ("VLLM_USE_FLASHINFER_MOE_FP8", "1"),
    ("VLLM_ATTENTION_BACKEND", "FLASH_ATTN"),
    ("VLLM_CACHE_ROOT", "${run}/cache"),
    ("SGLANG_ENABLE_SPEC_V2", "1"),
    ("revision", HEX[:40]),
    ("digest", f"sha256:{HEX[:64]}"),
    ("image", f"vllm/vllm-openai@sha256:{HEX[:64]}"),
    ("note", "a basic training run, with bearer tokens from the environment"),
    ("note", "http://${USER}:${PASSWORD}@proxy"),
    ("note", "https://example.org/?token=${HF_TOKEN}"),
    ("note", "https://user@example.org:8080/v1?tokens=4096&keys=layer.0.weight"),
    ("note", "sk-learn and task-oriented models; risk-free"),
]

OPTIONS_THAT_ARE_SECRETS = {
    *("--api-key", "--admin-api-key", "--hf-token", "--hf-api-token", "--ssl-keyfile-password"),
    *("--control-plane-api-keys", "--oracle-password"),
}


@pytest.mark.parametrize("text", FORMS, ids=lambda text: text[:20])
def test_a_secret_is_known_by_its_form(text: str) -> None:
    assert is_secret("environment.NOTE", text)
    for value in (text, [{"deep": text}], {text: 1}):
        with pytest.raises(InputError) as error:
            refuse_secrets({"request": value})
        assert text not in str(error.value)


@pytest.mark.parametrize("name", NAMES)
def test_a_secret_is_known_by_its_name(name: str) -> None:
    assert is_secret(f"environment.{name}", "swordfish")
    with pytest.raises(InputError, match=name) as error:
        refuse_secrets({"environment": {name: "swordfish"}}, by_name=("environment",))
    assert "swordfish" not in str(error.value)


@pytest.mark.parametrize("name", ["FERNET_KEY", "APP_KEY", "salt"])
def test_a_key_of_random_letters_is_one(name: str) -> None:
    assert is_secret(f"environment.{name}", MIXED[:32])
    assert is_secret(f"environment.{name}", HEX[:32])


@pytest.mark.parametrize(("name", "text"), PASS, ids=lambda text: text[:24])
def test_a_setting_is_none(name: str, text: str) -> None:
    assert not is_secret(f"environment.{name}", text)


def test_no_option_of_an_engine_is_taken_for_a_secret_that_is_none() -> None:
    names: dict[str, set[str]] = {}
    for path in sorted((PACKAGE / "engines" / "options").glob("*.yaml")):
        for name, option in (yaml.safe_load(path.read_text()).get("options") or {}).items():
            kind = option.get("type")
            texts = {"/models/x", "128", "auto", *map(str, option.get("choices", ()))}
            names.setdefault(name, set()).update({"true"} if kind == "switch" else texts)
    assert len(names) > 500
    taken = {
        name
        for name, texts in names.items()
        if any(is_secret(f"options.{name.lstrip('-')}", text) for text in texts)
    }
    assert taken == OPTIONS_THAT_ARE_SECRETS


def test_no_published_command_is_taken_for_a_secret() -> None:
    lines = (ROOT / "tests" / "data" / "commands.jsonl").read_text().splitlines()
    commands = [json.loads(line)["command"] for line in lines]
    assert len(commands) > 10
    for command in commands:
        assert not is_secret("command", command)
        words = command.replace("=", " ").split()
        for name, value in pairwise(words):
            if value.startswith("$"):  # a variable where a secret stands: it is left out, rightly
                continue
            assert not is_secret(f"options.{name.strip('-')}", value), (name, value)


def test_no_file_of_a_target_has_the_form_of_a_secret() -> None:
    files = [path for path in (ROOT / "tests" / "goldens").rglob("*") if path.is_file()]
    assert len(files) > 50
    for path in [*files, *sorted((ROOT / "docs").glob("*.md")), *PACKAGE.rglob("*.yaml")]:
        for line in path.read_text().splitlines():
            assert not is_secret("line", line), (path, line)


def test_a_password_of_this_machine_is_found_in_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASS", "tr0ub4dor-and-3")
    with pytest.raises(InputError, match="PGPASS") as error:
        refuse_planted({"README.md": b"connect with tr0ub4dor-and-3"})
    assert "tr0ub4dor" not in str(error.value)


def test_words_of_this_machines_settings_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DESKTOP_SESSION", "kubernetes")
    monkeypatch.setenv("REGISTRY_AUTH", "required")
    monkeypatch.setenv("DISABLE_TOKEN", "disabled")
    refuse_planted({"README.md": b"kubernetes is required, nothing is disabled"})


def test_a_variable_that_is_no_text_is_searched_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DB_PASSWORD", b"swordfish\xff".decode(errors="surrogateescape"))
    with pytest.raises(InputError, match="DB_PASSWORD"):
        refuse_planted({"file": b"swordfish\xff"})


@pytest.mark.parametrize(
    "piece",
    ["a", "a.", "a:", "eyJ-", "eyJaaaaaaaa.", "://", "://a:", "?token=", "&sig=", "Basic aaaaaa ",
     "bearer ", "Authorization: ", "-----BEGIN ", '"type" ', "_token", "AKIA", "a/", "SG.a"],
)  # fmt: skip
def test_no_text_takes_more_than_linear_time(piece: str) -> None:
    """Processor time of a text of 400 kB: a quadratic pattern would take minutes."""
    text = piece * (400_000 // len(piece))
    began = time.process_time()
    secrets._form(text)
    assert time.process_time() - began < 20
