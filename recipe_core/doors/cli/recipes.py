"""Making recipes and asking of them: build, lock, resolve, diff, convert, keygen."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from recipe_core.base.documents import parse_json, read_document, read_text, to_yaml, write_whole
from recipe_core.base.errors import BundleError, InputError
from recipe_core.doors.cli.app import (
    Bundle,
    Json,
    RequestFile,
    app,
    emit,
    own_device,
    read_key,
    read_request,
    working,
)

Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="BUNDLE", help="A folder, or a file that ends in .zip."),
]
Key = Annotated[
    Path | None,
    typer.Option("--sign", metavar="KEY.pem", help="Sign with this ed25519 key; see keygen."),
]
Pairs = list[str] | None


def _pairs(words: Pairs, flag: str) -> dict[str, str]:
    """``NAME=VALUE`` words as a mapping."""
    out: dict[str, str] = {}
    for word in words or []:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise InputError(
                f"{word!r} is not NAME=VALUE.", field=flag, hint=f"For example --{flag} port=9000."
            )
        out[name] = value
    return out


@app.command()
def build(
    request: RequestFile,
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="BUNDLE", help="A folder, or a file that ends in .zip."
        ),
    ],
    sets: Annotated[
        Pairs,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="A parameter: port, namespace, image, model_cache …"
        ),
    ] = None,
    options: Annotated[
        Pairs,
        typer.Option("--option", metavar="NAME=VALUE", help="An option passed on to the engine."),
    ] = None,
    env: Annotated[
        Pairs, typer.Option("--env", metavar="NAME=VALUE", help="A variable for the engine.")
    ] = None,
    elsewhere: Annotated[
        Pairs,
        typer.Option("--for", metavar="DEVICE:COUNT", help="Also a variant for this hardware."),
    ] = None,
    variants: Annotated[
        Path | None,
        typer.Option("--variants", metavar="FILE", help="Variants of your own, as YAML."),
    ] = None,
    measured: Annotated[
        list[Path] | None,
        typer.Option("--measured", metavar="FILE", help="A run/measurement.json to claim."),
    ] = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Plan, pick the best split (or the given candidate) and write the bundle."""
    from recipe_core.bundle.write import write_bundle
    from recipe_core.present.terminal import build_text
    from recipe_core.recipe import Additions, make_recipe, passing_on, with_claims, with_variants
    from recipe_core.recipe.parameters import read_parameters, read_variants
    from recipe_core.recipe.resolve import hardware_named
    from recipe_core.request.schema import PlanRequest

    asked = passing_on(
        PlanRequest.parse(read_request(request)),
        _pairs(options, "option"),
        _pairs(env, "env"),
    )
    additions = Additions(
        parameters=read_parameters(_pairs(sets, "set")),
        variants=read_variants(read_document(variants, field="variants")) if variants else (),
    )
    with working("Building …"):
        recipe = make_recipe(asked, additions)
        if elsewhere:
            recipe = with_variants(
                recipe,
                asked,
                additions,
                [hardware_named(each, "for", files=True) for each in elsewhere],
            )
        if measured:
            recipe = with_claims(
                recipe,
                [parse_json(read_text(each, field="measured"), str(each)) for each in measured],
            )
        write_bundle(recipe, output, read_key(key, "sign"))
    if as_json:
        emit(
            {
                "bundle": str(output),
                "name": recipe.name,
                "digest": recipe.digest,
                "candidate": recipe.candidate,
            }
        )
    else:
        typer.echo(build_text(recipe, output))


@app.command()
def lock(
    bundle: Bundle,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify", help="Hold the lock against this version and what is installed here."
        ),
    ] = False,
    model: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The folder that should hold the model.")
    ] = None,
    as_json: Json = False,
) -> None:
    """What a bundle pins: versions, image, revision, digests, floors, seeds."""
    from recipe_core.bundle.verify import read_bundle
    from recipe_core.present.terminal import lock_text
    from recipe_core.recipe.lockcheck import verify_lock

    recipe = read_bundle(bundle).recipe
    if recipe.lock is None:
        raise BundleError(
            "the recipe is of an older form and holds no lock.", hint="Build the bundle again."
        )
    if not verify:
        values = recipe.lock.model_dump(mode="json")
        emit(values) if as_json else typer.echo(to_yaml(values).rstrip())
        return
    found = verify_lock(recipe, recipe.lock, model)
    differs = any(each.level == "differs" for each in found)
    emit(
        {"ok": not differs, "found": [each.to_json() for each in found]}
    ) if as_json else typer.echo(lock_text(found))
    raise typer.Exit(1 if differs else 0)


@app.command("resolve")
def resolve_command(
    bundle: Bundle,
    hardware: Annotated[str, typer.Option(help="The machine: DEVICE or DEVICE:COUNT.")],
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Which variants of a bundle apply to other hardware and what they set; -o writes the bundle for it."""
    from recipe_core.bundle.verify import read_bundle
    from recipe_core.bundle.write import write_bundle
    from recipe_core.present.terminal import resolved_text
    from recipe_core.recipe.resolve import hardware_named, machine_of, recipe_for, resolve

    recipe, there = read_bundle(bundle).recipe, hardware_named(hardware, files=True)
    found = resolve(recipe, machine_of(there, recipe))
    if output is not None:
        with working("Building …"):
            write_bundle(recipe_for(recipe, there)[0], output)
    emit(found.to_json()) if as_json else typer.echo(resolved_text(recipe, found))


@app.command("diff")
def diff_command(
    before: Annotated[Path, typer.Argument(metavar="A", help="A bundle, or a request.")],
    after: Annotated[Path, typer.Argument(metavar="B", help="A bundle, or a request.")],
    as_json: Json = False,
) -> None:
    """What differs between two recipes, and what that does to the estimate."""
    from recipe_core.recipe.diff import diff, diff_text

    found = diff(_recipe(before), _recipe(after))
    emit(found) if as_json else typer.echo(diff_text(found))


def _recipe(path: Path) -> Any:
    """The recipe of a bundle, or the one that a request leads to."""
    from recipe_core.bundle.verify import read_bundle
    from recipe_core.hardware.custom import with_profiles
    from recipe_core.recipe import make_recipe
    from recipe_core.request.schema import PlanRequest

    if path.is_dir() or path.suffix == ".zip":
        return read_bundle(path).recipe
    return make_recipe(PlanRequest.parse(with_profiles(read_document(path, field="request"))))


@app.command("convert")
def convert_command(
    source: Annotated[
        str,
        typer.Argument(
            metavar="COMMAND|FILE",
            help="An engine's command, or a published recipe: .yaml, .json, .sh.",
        ),
    ],
    hardware: Annotated[str | None, typer.Option(help="The device: NAME or NAME:COUNT.")] = None,
    gpus: Annotated[int | None, typer.Option(help="Devices in a node.")] = None,
    nodes: Annotated[int | None, typer.Option(help="Nodes.")] = None,
    input_tokens: Annotated[int | None, typer.Option(help="Tokens of a prompt.")] = None,
    output_tokens: Annotated[int | None, typer.Option(help="Tokens of an answer.")] = None,
    concurrency: Annotated[int | None, typer.Option(help="Requests in flight.")] = None,
    choice: Annotated[
        str | None, typer.Option(help="Which configuration, where a file holds several.")
    ] = None,
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Read an existing vLLM or SGLang command, or a published recipe, into a recipe; -o writes its bundle."""
    from recipe_core.bundle.write import write_bundle
    from recipe_core.commands.ground import Ground
    from recipe_core.present.terminal import conversion_text
    from recipe_core.recipe.convert import convert

    published, named = _published(source, hardware, choice)
    if named is None:
        raise InputError(
            "is needed: the device that the server runs on.",
            field="hardware",
            hint="For example --hardware h100-sxm:8.",
        )
    stated = {
        "gpus": gpus,
        "nodes": nodes,
        "input_tokens": input_tokens,
        "output_tokens": output_tokens,
        "concurrency": concurrency,
    }
    with working("Converting …"):
        found = convert(
            published, Ground.of(**{"hardware": named, **stated, **own_device(named, gpus)})
        )
        if output is not None:
            write_bundle(found.recipe, output)
    emit(found.to_json()) if as_json else typer.echo(conversion_text(found, output))


def _published(source: str, hardware: str | None, choice: str | None) -> tuple[Any, str | None]:
    """The server of a file or of the text itself, and its device."""
    from recipe_core.recipe.published import Published, read_published

    suffix = Path(source).suffix.casefold() if "\n" not in source and len(source) < 4096 else ""
    if suffix in (".sh", ".bash", ".txt"):
        return Published(command=read_text(Path(source), field="convert")), hardware
    if suffix in (".yaml", ".yml", ".json"):
        found = read_published(
            read_document(Path(source), field="convert"),
            hardware.partition(":")[0] if hardware else None,
            choice,
        )
        return found, hardware or found.hardware
    return Published(command=source), hardware


@app.command()
def keygen(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="KEY.pem",
            help="The private key; the public one is written beside it as KEY.pub.pem.",
        ),
    ],
) -> None:
    """An ed25519 key to sign bundles with."""
    from recipe_core.bundle.signing import new_key

    public_path = path.with_name(f"{path.stem}.pub.pem")
    for each in (path, public_path):
        if each.exists():
            raise InputError(
                f"{each} exists and is left alone.", field="key", hint="Choose another name."
            )
    private, public = new_key()
    write_whole(path, private, private=True)
    write_whole(public_path, public)
    typer.echo(
        f"wrote {path} (keep it to yourself) and {public_path} (give it to whom you send bundles)"
    )
