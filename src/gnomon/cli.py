"""The command line: parsing and printing only."""

from __future__ import annotations

import inspect
import json
import logging
import os
import shutil
import sys
import tempfile
import typing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, Optional

import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from gnomon import __version__, catalog
from gnomon.catalog import System

if TYPE_CHECKING:
    import pandas as pd

    from gnomon.study.check import Check

out = Console()
err = Console(stderr=True)

LONG = 30  # rows of a table that a check still shows
MARKS = {
    "holds": "[green]holds[/]",
    "fails": "[red]fails[/]",
    "undecided": "[yellow]undecided[/]",
    "reported": "reported",
}
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Results = Annotated[
    Optional[Path], typer.Option("--results", help="Results folder (default: $GNOMON_RESULTS or gnomon-results).")
]


class Mistake(Exception):
    """A person's mistake: one line, exit code 2."""


# --- the options of a system ------------------------------------------------------------------------------------------


def _options(inputs: type[Any], hidden: tuple[str, ...]) -> list[inspect.Parameter]:
    """One command line option for each field of a study's inputs; pydantic reads the text."""
    found = []
    for name, field in inputs.model_fields.items():
        if name in hidden:
            continue
        default = "required" if field.is_required() else None if field.default is None else f"default: {field.default}"
        text = " ".join(filter(None, [field.description, f"[{default}]" if default else None]))
        kind: Any = bool if field.annotation is bool else str
        if typing.get_origin(field.annotation) in (list, tuple):
            kind = list[str]
        metavar = None if kind is bool else _metavar(field.annotation)
        option = typer.Option(f"--{name.replace('_', '-')}", help=text, show_default=False, metavar=metavar)
        annotation = Annotated[Optional[kind], option]
        found.append(
            inspect.Parameter(f"own_{name}", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        )
    return found


def _metavar(annotation: Any) -> str:
    kinds = {int: "<int>", float: "<float>", Path: "<path>"}
    return next((text for kind, text in kinds.items() if kind in (annotation, *typing.get_args(annotation))), "<str>")


def _command(function: Callable[..., None], system: System, inputs: type[Any] | None) -> Callable[..., None]:
    """The function for one system, its ``**own`` replaced by the options of the study's inputs."""
    signature = inspect.signature(function, eval_str=True)
    fixed = [p for n, p in signature.parameters.items() if n != "system" and p.kind is not p.VAR_KEYWORD]
    taken = {p.name for p in fixed}

    def command(**given: Any) -> None:
        mine = {k.removeprefix("own_"): v for k, v in given.items() if k.startswith("own_") and v not in (None, [], ())}
        function(system, **{k: v for k, v in given.items() if k in taken}, **mine)

    hidden = ("scale",) if function is check else ("scale", "seeds")
    parameters = [p.replace(kind=p.KEYWORD_ONLY) for p in fixed] + (_options(inputs, hidden) if inputs else [])
    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    command.__doc__ = function.__doc__
    return command


# --- commands ---------------------------------------------------------------------------------------------------------


def list_(area: Annotated[Optional[str], typer.Option(help="Only this area.")] = None, as_json: Json = False) -> None:
    """List the systems, with their recorded verdicts."""
    rows = [{"system": s.slug, "area": s.area, "what": s.summary, **_counts(s)} for s in catalog.systems(area)]
    if as_json:
        _print_json(rows)
        return
    table = Table(
        Column("system", no_wrap=True), "area", "what", "holds", "fails", "undecided"
    )  # a name is to be copied
    for row in rows:
        table.add_row(*(str(row[c]) for c in ("system", "area", "what", "holds", "fails", "undecided")))
    out.print(table)


def _counts(system: System) -> dict[str, int]:
    scales = system.evidence()["scales"]
    found: dict[str, Any] = scales.get("laptop") or next(iter(scales.values()), {})
    claims = found.get("claims", [])
    return {v: sum(c["verdict"] == v for c in claims) for v in ("holds", "fails", "undecided")}


def show(system: Annotated[str, typer.Argument(help="The system's name.")], as_json: Json = False) -> None:
    """Show one system: question, method, claims with their verdicts, departures, how to cite."""
    from gnomon.study.report import view

    found = catalog.find(system)
    shown = view(found)
    if as_json:
        _print_json(shown.as_dict())
    else:
        shown.to_console(out)


def run(
    system: System,
    beside: Annotated[bool, typer.Option("--beside", help="Run every contender and compare.")] = False,
    save: Annotated[Optional[Path], typer.Option("--save", help="Folder to keep the result in.")] = None,
    figure: Annotated[Optional[Path], typer.Option("--figure", help="Draw the result into this file.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace what is there.")] = False,
    as_json: Json = False,
    **own: Any,
) -> None:
    """Use the method on your own input."""
    study = system.study()
    for path in (save, figure):
        if path is not None and path.exists() and not force and not (path.is_dir() and not any(path.iterdir())):
            raise Mistake(f"{path} exists; choose another path, or give --force to replace it")
    inputs = _inputs(study.Run or study.Inputs, own)
    asked = study()
    with _working(f"{system.slug}: running"):
        outcome = asked.run(inputs, beside=beside)
    _present(asked.present(outcome), as_json)
    if figure is not None:
        picture = asked.picture(outcome)
        if picture is None:
            raise Mistake(f"{system.slug} has no picture of a result")
        with _whole(figure) as temporary:
            picture.savefig(temporary, format=figure.suffix.lstrip(".") or "svg", bbox_inches="tight")
        err.print(f"figure: {figure}")
    if save is not None:
        with _whole(save) as temporary:
            temporary.mkdir()
            asked.save(outcome, temporary)
        err.print(f"saved: {save}")


def check(
    system: System,
    scale: Annotated[str, typer.Option(help="smoke, laptop, extended or paper.")] = "laptop",
    jobs: Annotated[int, typer.Option(help="Processes (0: as many as cores).")] = 0,
    backend: Annotated[str, typer.Option(help="local, ray or dask.")] = "local",
    address: Annotated[Optional[str], typer.Option(help="Address of a running Ray or Dask cluster.")] = None,
    until_decided: Annotated[bool, typer.Option("--until-decided", help="Look at n, 2n and 4n seeds.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Compute all records anew.")] = False,
    contender: Annotated[Optional[list[str]], typer.Option(help="Your own: name=package.module:factory.")] = None,
    record: Annotated[bool, typer.Option("--record", help="Keep the verdicts as the recorded evidence.")] = False,
    tables: Annotated[bool, typer.Option("--tables", help="Show long tables too.")] = False,
    results: Results = None,
    as_json: Json = False,
    **own: Any,
) -> None:
    """Check what its paper claims: run the study, judge every claim."""
    from gnomon.study.check import check as run_check
    from gnomon.study.records import default_folder
    from gnomon.study.runner import Running

    with _progress() as tell:
        running = Running(jobs=jobs, backend=backend, address=address, results=results or default_folder(), fresh=fresh,
                          contenders=tuple(contender or ()), progress=tell)  # fmt: skip
        outcome = run_check(system, scale=scale, running=running, until_decided=until_decided, record=record, **own)
    _show_check(outcome, as_json, tables)
    if outcome.exit_code:
        raise typer.Exit(outcome.exit_code)


def check_many(
    context: typer.Context,
    area: Annotated[Optional[str], typer.Option(help="Check every system of this area.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Check every system.")] = False,
    scale: Annotated[str, typer.Option(help="smoke, laptop, extended or paper.")] = "laptop",
    jobs: Annotated[int, typer.Option(help="Processes (0: as many as cores).")] = 0,
    fresh: Annotated[bool, typer.Option("--fresh", help="Compute all records anew.")] = False,
    record: Annotated[bool, typer.Option("--record", help="Keep the verdicts as the recorded evidence.")] = False,
    results: Results = None,
    as_json: Json = False,
) -> None:
    """Check what the papers claim: one system, an area, or all."""
    if context.invoked_subcommand is not None:
        return
    if not (area or everything):
        raise Mistake("name a system, or give --area AREA or --all")
    worst = 0
    for system in catalog.systems(area):
        try:
            check(system, scale=scale, jobs=jobs, fresh=fresh, record=record, results=results, as_json=as_json)
        except typer.Exit as stop:
            worst = max(worst, stop.exit_code)
    raise typer.Exit(worst)


def report(
    directory: Annotated[Path, typer.Option("--out", help="Folder of the report.")] = Path("gnomon-report"),
    results: Results = None,
    force: Annotated[bool, typer.Option("--force", help="Move a folder that is no gnomon report aside.")] = False,
) -> None:
    """Write the evidence as a self-contained web page."""
    index = make_report(directory, results, force)
    out.print(f"report: {index}", soft_wrap=True, highlight=False)


def make_report(directory: Path, results: Path | None = None, force: bool = False) -> Path:
    """All systems' pages: what this machine found where it checked, what is recorded elsewhere."""
    from gnomon.study.records import default_folder
    from gnomon.study.report import view, write_report

    own = results or default_folder()
    return write_report([view(system, own) for system in catalog.systems()], directory, force=force)


def cache_(prune: Annotated[bool, typer.Option("--prune", help="Drop the least recently used down to 10 GB.")] = False,
           as_json: Json = False) -> None:  # fmt: skip
    """Show the size of the cache of stages, or prune it."""
    from gnomon import cache

    if prune:
        cache.prune()
    if as_json:
        _print_json({"folder": str(cache.folder()), "bytes": cache.size(), "limit": cache.LIMIT})
    else:
        out.print(f"{cache.folder()}: {cache.size() / 2**20:.1f} MiB", soft_wrap=True, highlight=False)


# --- printing ---------------------------------------------------------------------------------------------------------


def _print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=1, default=str) + "\n")


def _present(value: Any, as_json: bool) -> None:
    """Text, tables, and lists or dicts of them."""
    if as_json:
        _print_json(_plain(value))
        return
    if isinstance(value, dict):
        for title, part in value.items():
            out.print(f"\n[bold]{title}[/]")
            _present(part, False)
    elif isinstance(value, list | tuple):
        for part in value:
            _present(part, False)
    elif hasattr(value, "itertuples"):
        out.print(_frame(value))
    else:
        out.print(str(value), markup=False, highlight=False, soft_wrap=True)


def _plain(value: Any) -> Any:
    if hasattr(value, "to_dict"):
        return value.to_dict(orient="records")
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, list | tuple) else value


def _frame(frame: pd.DataFrame) -> Table:
    table = Table(*(_escape(str(c)) for c in frame.columns))
    for row in frame.itertuples(index=False):
        table.add_row(*(_cell(v) for v in row))
    return table


def _cell(value: Any) -> Text:
    """Text as it is: neither markup nor what a terminal would obey, since it may come from a person's file."""
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return Text("".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text))


def _show_check(outcome: Check, as_json: bool, long: bool) -> None:
    if as_json:
        _print_json({"system": outcome.system.slug, **outcome.evidence, "differences": outcome.differences,
                     "told": outcome.told})  # fmt: skip
        return
    from gnomon.study.report import claims_table, metrics_tables

    for name, table in outcome.evidence.get("tables", {}).items():
        if long or len(table["rows"]) <= LONG:
            for part in metrics_tables({"tables": {name: table}}, out.width):
                out.print(part)
        else:
            out.print(f"{name}: {len(table['rows'])} rows are in the report (gnomon report); --tables shows them here")
    out.print(claims_table(outcome.evidence, MARKS))
    for line in outcome.told:
        out.print(f"differs (timed or borderline, told only): {line}", highlight=False)
    for line in outcome.differences:
        err.print(f"[red]differs from the recorded evidence:[/] {line}")


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None] | None]:
    """A bar that names the system, contender and seed at work; plain silence where nobody watches."""
    if not err.is_terminal:
        yield None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    with Progress(TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
                  console=err, transient=True) as bar:  # fmt: skip
        task = bar.add_task("planning", total=None)
        yield lambda label, done, total: bar.update(task, description=label, completed=done, total=total)


@contextmanager
def _working(text: str) -> Iterator[None]:
    if err.is_terminal:
        with err.status(text):
            yield
    else:
        yield


# --- files ------------------------------------------------------------------------------------------------------------


@contextmanager
def _whole(path: Path) -> Iterator[Path]:
    """A temporary path beside ``path`` that takes its place when all went well; else nothing is left."""
    path.parent.mkdir(parents=True, exist_ok=True)
    room = Path(tempfile.mkdtemp(dir=path.parent, prefix=".gnomon-"))
    try:
        yield room / "new"
        if path.exists():
            os.replace(path, room / "old")
        os.replace(room / "new", path)
    finally:
        shutil.rmtree(room, ignore_errors=True)


# --- mistakes ---------------------------------------------------------------------------------------------------------


def _inputs(kind: type[Any], given: dict[str, Any]) -> Any:
    from pydantic import ValidationError

    try:
        return kind(**given)
    except ValidationError as error:
        raise Mistake(_first(error)) from error


def _first(error: Any) -> str:
    """One line for the first thing that is wrong."""
    found = error.errors()[0]
    name = "--" + str(found["loc"][0]).replace("_", "-") if found["loc"] else "options"
    if found["type"] == "missing":
        return f"{name} is required"
    text = str(found["msg"]).removeprefix("Value error, ")
    return f"{name}: got {found['input']!r}: {text}" if found["loc"] else text


def _fail(error: BaseException) -> NoReturn:
    from pydantic import ValidationError

    text = _first(error) if isinstance(error, ValidationError) else str(error) or type(error).__name__
    err.print(f"[red]error:[/] {_escape(' '.join(text.split()))}", highlight=False, soft_wrap=True)
    raise SystemExit(2)


def _escape(text: str) -> str:
    from rich.markup import escape

    return escape(text)


# --- the program ------------------------------------------------------------------------------------------------------


def _version(wanted: bool) -> None:
    if wanted:
        out.print(f"gnomon {__version__}", highlight=False)
        raise typer.Exit


def _top(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Methods of NeurIPS 2026, importable, fast, and put to the test."""


def build(arguments: list[str]) -> typer.Typer:
    """The program; only the system that the arguments name has its study imported, for its options."""
    app = typer.Typer(no_args_is_help=True, add_completion=True, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.callback()(_top)
    app.command("list")(list_)
    app.command("show")(show)
    for name, function, text in (("run", run, "Use a method on your own input."),
                                 ("check", check, "Check what the papers claim: one system, an area, or all.")):  # fmt: skip
        group = typer.Typer(no_args_is_help=function is run, rich_markup_mode=None)
        if function is check:
            group.callback(invoke_without_command=True)(check_many)
        named = _named(arguments, name)
        for system in catalog.systems():
            inputs = None
            if named == system:
                study = system.study()
                inputs = (study.Run or study.Inputs) if function is run else study.Inputs
            group.command(system.slug, help=system.summary, short_help=system.summary)(
                _command(function, system, inputs)
            )
        app.add_typer(group, name=name, help=text)
    app.command("report")(report)
    app.command("cache")(cache_)
    return app


def _named(arguments: list[str], command: str) -> System | None:
    """The system that follows a command, when there is one; an unknown one is a mistake."""
    words = [a for a in arguments if a != "--debug"]
    if len(words) < 2 or words[0] != command or words[1].startswith("-"):
        return None
    return catalog.find(words[1])


def main() -> None:
    """Entry point: a mistake gives one line and exit code 2; ``--debug`` gives the traceback."""
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)
    arguments = sys.argv[1:]
    debug = "--debug" in arguments
    try:
        words = [a.replace("_", "-") if i == 1 and arguments[0] in ("run", "check") and not a.startswith("-") else a
                 for i, a in enumerate(arguments)]  # fmt: skip
        build(words)(args=[a for a in words if a != "--debug"])
    except KeyboardInterrupt:
        err.print("interrupted; what was finished is kept, and the same command goes on from there")
        raise SystemExit(130) from None
    except (Mistake, ValueError, TypeError, OSError, ImportError, FloatingPointError) as error:
        if debug:
            raise
        _fail(error)


if __name__ == "__main__":
    main()
