"""The command line in a real process: answers, JSON, and bad input with one sentence and exit code 2."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import typer.main
from peft import LoraConfig, get_peft_model
from typer.testing import CliRunner

from commands import keyhole
from conftest import SMOLLM2
from keyhole import Model
from keyhole.cli import prompt_text
from keyhole.cli.app import app
from keyhole.tasks import documents
from keyhole.tracing import SvtSettings
from tiny import Sizes, tiny

# All of this file in one worker: the bad requests share one process.
pytestmark = pytest.mark.xdist_group("cli")

YEARS = "The war lasted from the year 1105 to the year 11"
PROMPT = "When Mary and John went to the store, John gave a drink to"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Model folders without tokenizers: good, wrong, damaged, short."""
    root = tmp_path_factory.mktemp("models")
    for variant in ("gpt2", "cohere-qknorm", "mamba", "xglm", "olmo-clip"):
        tiny(variant).save_pretrained(root / variant)
    tiny("gpt2", Sizes(positions=8)).save_pretrained(root / "short")
    tiny("llama").save_pretrained(root / "damaged")
    weights = root / "damaged" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:500])
    broken = tiny("llama")
    broken.model.layers[1].self_attn.k_proj.weight[3, 2] = float("nan")
    broken.save_pretrained(root / "nan")
    (root / "empty").mkdir()
    with torch.random.fork_rng():
        adapter = LoraConfig(r=2, init_lora_weights=False, target_modules=["c_attn"], fan_in_fan_out=True)
        get_peft_model(tiny("gpt2"), adapter).save_pretrained(root / "lora")
    outs = [part for end in ("json", "html", "svg", "neuronpedia.json") for part in ("--out", f"{root}/circuit.{end}")]
    done = keyhole("trace", PROMPT, "--target", "Mary", *outs)
    assert done.returncode == 0, done.stderr
    (root / "broken.gguf").write_bytes(b"GGUF but not really")
    (root / "like.txt").write_text(f"{PROMPT}\n")
    (root / "empty.txt").write_text("\n \n")
    sample = {"prompt": "Mary gave John a drink", "query": "last", "positive": [1], "negative": [{"find": "John"}]}
    (root / "bad.jsonl").write_text(json.dumps(sample) + "\n" + json.dumps(sample | {"positives": []}) + "\n")
    (root / "outside.jsonl").write_text(json.dumps(sample | {"positive": [99]}) + "\n")
    return root


def test_check_works_on_a_folder_without_a_tokenizer(folders: Path) -> None:
    done = keyhole("check", str(folders / "gpt2"), "--verbose")
    assert done.returncode == 0 and "exact" in done.stdout and "layer" in done.stdout and not done.stderr
    assert done.stdout.startswith("How exact: gpt2\n")  # without its folders


def test_check_exits_with_one_when_not_exact(folders: Path) -> None:
    done = keyhole("check", str(folders / "gpt2"), "--tolerance", "1e-12", "--dtype", "bfloat16")
    assert done.returncode == 1 and "NOT exact within 1e-12" in done.stdout
    assert "In bfloat16 all layers together round away 0." in " ".join(done.stdout.split())
    done = keyhole("check", str(folders / "gpt2"), "--tolerance", "1e-12")
    assert done.returncode == 1 and "NOT exact" in done.stdout


def test_check_takes_an_adapter(folders: Path) -> None:
    record = json.loads(keyhole("check", "gpt2", "--adapter", "lora", "--json", folder=folders).stdout)
    assert record["exact"] and record["model"] == "gpt2 with lora"


def test_check_json(folders: Path) -> None:
    record = json.loads(keyhole("check", "--model", str(folders / "cohere-qknorm"), "--json").stdout)
    assert record["exact"] and record["scores"] < 1e-4 and len(record["layers"]) == 3


def test_heads_on_the_organism() -> None:
    done = keyhole("heads", PROMPT, "--dest", "-1")
    assert done.returncode == 0 and "2:Mary   " in done.stdout and "firings shown" in done.stdout and not done.stderr


def test_heads_json_on_token_ids(folders: Path) -> None:
    done = keyhole(
        "heads", "--model", str(folders / "gpt2"), "--token-ids", "5,6,7,5,6", "--json", "--first-token", "keep"
    )
    record = json.loads(done.stdout)
    assert record["token_ids"] == [5, 6, 7, 5, 6] and record["firings"] and record["split"]
    first = record["split"][0]
    assert sum(first["terms"]) + first["rest"] == pytest.approx(first["score"], abs=1e-3)


def test_channels_json_and_text(folders: Path) -> None:
    where = ("--model", str(folders / "gpt2"), "--token-ids", "5,6,7,5,6", "--head", "1.2", "--src", "1")
    record = json.loads(keyhole("channels", *where, "--json", "--basis", "homogeneous").stdout)
    assert record["basis"] == "homogeneous" and len(record["relative_terms"]) == len(record["sigma"]) == 8
    assert set(record["controls"]) == {"refactor", "ambient"}
    text = keyhole("channels", *where)
    assert "S(v)" in text.stdout and "N_recon" in text.stdout and "█" in text.stdout


def test_controls_are_of_the_same_basis() -> None:
    where = (PROMPT, "--head", "1.6", "--src", "Mary", "--json")
    linear = json.loads(keyhole("channels", *where).stdout)
    homogeneous = json.loads(keyhole("channels", *where, "--basis", "homogeneous").stdout)
    assert linear["controls"]["refactor"]["mean"] != homogeneous["controls"]["refactor"]["mean"]


def test_explain_on_the_organism() -> None:
    text = keyhole("explain", PROMPT, "--head", "3.6", "--src", "gave")
    assert text.returncode == 0 and "dest side" in text.stdout and "src side" in text.stdout
    record = json.loads(keyhole("explain", PROMPT, "--head", "3.6", "--src", "gave", "--json").stdout)
    assert [side["side"] for side in record["sides"]] == ["dest", "src"]
    assert record["sides"][1]["removed"][-1]["after"] < record["tau"]


def test_trace_and_verify_files(tmp_path: Path) -> None:
    files = [tmp_path / f"c.{ending}" for ending in ("json", "graphml", "html", "mib", "svg")]
    outs = [part for file in files for part in ("--out", str(file))]
    done = keyhole("trace", PROMPT, "--target", "Mary", "--against", "John", *outs)
    assert done.returncode == 0 and "answer at" in done.stdout and all(file.stat().st_size for file in files)
    checked = keyhole("verify", str(files[0]), "--draws", "2")
    assert checked.returncode == 0 and "measured values equal" in checked.stdout
    text = " ".join(checked.stdout.split())
    assert "effect: what the answer's logit difference to the other answer loses without it" in text
    assert (
        text.index("Arithmetic: do measured values") < text.index("Causes: does the answer need") < text.index("mlp 3")
    )
    assert "note: about" in checked.stderr and "removals; Ctrl-C shows those that are finished" in checked.stderr
    record = json.loads(keyhole("verify", str(files[0]), "--sides-only", "--json", "--mode", "local").stdout)
    assert record["agrees"] and all(row["edge"] is None for row in record["rows"])


def test_old_names_of_options_work_with_a_note() -> None:
    """They are hidden from help."""
    asked = ("trace", PROMPT, "--target", "Mary", "--through", "heads", "--no-faithfulness", "--json")
    old = keyhole(*asked, "--seeds", "linear", "--sinks", "mark")
    assert "note: --seeds is called --metric now" in old.stderr and "--sinks is called --first-token now" in old.stderr
    assert old.stdout == keyhole(*asked, "--metric", "linear", "--first-token", "mark").stdout
    heads = ("heads", PROMPT, "--dest", "-1")
    assert keyhole(*heads, "--sinks", "keep").stdout == keyhole(*heads, "--first-token", "keep").stdout
    for command in ("trace", "bulk", "heads"):
        shown = keyhole(command, "--help").stdout
        assert "--first-token" in shown and "--sinks" not in shown and "--seeds" not in shown


def test_an_answer_that_is_hardly_given_is_noted() -> None:
    weak = keyhole("trace", PROMPT, "--target", "John", "--metric", "linear", "--json")
    assert "note: the model hardly believes this answer (probability 9.9e-08)" in weak.stderr
    assert json.loads(weak.stdout)["parameters"]["target_text"] == ["John"]
    assert not keyhole("trace", PROMPT, "--target", "Mary").stderr


def test_a_last_space_is_noted_where_it_is_a_token() -> None:
    asked = ("--model", str(SMOLLM2), "--dest", "-1", "--top", "1")
    told = "note: the prompt ends in a space"
    assert told in keyhole("heads", "Mary gave ", *asked).stderr
    assert not keyhole("heads", PROMPT + " ").stderr  # the organism's tokenizer knows no spaces


def test_a_tree_fits_some_screens_unless_a_depth_is_asked_for(
    organism: Model, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    circuit = organism.run(PROMPT).trace("Mary", against="John")
    monkeypatch.setattr(prompt_text, "_LINES", 30)
    told = []
    for depth in (None, 4):
        prompt_text.circuit(circuit, json=False, depth=depth)
        told.append(capsys.readouterr().out)
    assert told[0].count("\n") <= 33 < told[1].count("\n")
    assert all("A branch: the share of the answer that it hands on" in " ".join(text.split()) for text in told)
    heads = " ".join(keyhole("trace", PROMPT, "--through", "heads").stdout.split())
    assert "A branch: the drop of attention without it" in heads and "--story" not in heads
    assert "likeliest next tokens: 'Mary' 1, " in heads
    svt = " ".join(keyhole("trace", PROMPT, "--method", "svt", "--threshold", "0.3").stdout.split())
    assert "A branch: the contribution (equation 8) to the firing above it, at the answer its push" in svt
    given = " ".join(keyhole("trace", PROMPT, "--method", "svt", "--start", "3.1:-1:gave").stdout.split())
    assert "answer at 14:to: begun with head 3.1 (14:to <- 11:gave)" in given
    assert "at the answer the weight of a firing to begin with" in given
    assert "drop of attention" not in svt + given


def test_what_makes_a_circuit_doubtful_is_noted() -> None:
    short = keyhole("trace", "Mary and John")
    assert "fires only from 0.62 on (tau: 2.5 times even attention)" in short.stderr and short.returncode == 0
    assert "fires only" not in keyhole("trace", "Mary and John", "--tau", "0.2").stderr
    places = "Mary and John went to the"  # of which the organism finds one as likely as the other
    even = keyhole("trace", places, "--target", "park", "--against", "market")
    assert even.returncode == 0 and "hardly prefers this answer (0.085) to the other (0.085)" in even.stderr
    assert "hardly prefers" not in keyhole("trace", PROMPT, "--target", "Mary", "--against", "John").stderr


def test_trace_tells_a_story(organism: Model) -> None:
    story = organism.run(PROMPT).trace("Mary", against="John", through="mlps").story()
    asked = ("trace", PROMPT, "--target", "Mary", "--against", "John", "--through", "mlps", "--story")
    done = keyhole(*asked)
    told, _, likeliest = done.stdout.rpartition("likeliest next tokens: ")
    told, _, faithfulness = told.rpartition("faithfulness (baseline: the mean of ")
    assert done.returncode == 0 and told.split() == str(story).split() and likeliest.startswith("'Mary' 1, ")
    assert "edges alone" in faithfulness and "faithfulness" not in keyhole(*asked, "--no-faithfulness").stdout
    assert ",+1 (14:to" in done.stdout and "heads 2.5,3.1 with head 3.6 (14:to" in keyhole(*asked, "--long").stdout
    record = json.loads(keyhole(*asked, "--json").stdout)
    assert [path["share"] for path in record["paths"]] == pytest.approx([path.share for path in story.paths])
    assert record["paths"][0]["steps"][2]["writers"][0]["head"] == 6 and record["metric"] == "logit difference"


def test_trace_on_token_ids(folders: Path) -> None:
    model = ("--model", str(folders / "gpt2"), "--token-ids", "5,6,7,5,6,9")
    whole = json.loads(keyhole("trace", *model, "--json").stdout)
    answer = f"id:{whole['parameters']['target_ids'][0]}"
    named = json.loads(keyhole("trace", *model, "--target", answer, "--json").stdout)
    assert whole["edges"] == named["edges"]
    svt = json.loads(keyhole("trace", *model, "--method", "svt", "--json").stdout)
    assert svt["parameters"]["basis"] == "homogeneous"


def test_trace_by_svt_takes_its_settings(organism: Model) -> None:
    settings = SvtSettings(0.3, 0.6, "all", [(3, 1, -1, "gave"), (2, 5)])
    asked = ("trace", PROMPT, "--target", "Mary", "--method", "svt", "--start", "3.1:-1:gave", "--start", "2.5")
    done = keyhole(*asked, "--threshold", "0.3", "--share", "0.6", "--channels", "all", "--json")
    assert json.loads(done.stdout) == json.loads(organism.run(PROMPT).trace("Mary", method=settings).to_json())
    years = ("trace", YEARS, "--method", "svt", "--json", "--start")
    by_place, by_text = (json.loads(keyhole(*years, f"2.2:-1:{where}").stdout) for where in ("pos:8", "token:05"))
    assert by_place == by_text and by_place["parameters"]["start"] == [[2, 2, 12, 8]]


def test_help_has_a_section_for_every_method() -> None:
    for command in ("trace", "bulk"):
        told = keyhole(command, "--help").stdout
        general, _, methods = told.partition("\nOptions:\n")[2].partition("Options of --method accpp:")
        accpp, _, svt = methods.partition("Options of --method svt:")
        assert "--method <accpp|svt>" in general and "--tau" in accpp and "--json" in general
        assert all(option in svt and option not in general + accpp for option in ("--start", "--threshold", "--share"))


@pytest.mark.parametrize("columns", [80, 100])
def test_the_list_of_commands_has_sections_and_whole_sentences(columns: int) -> None:
    for args, least in ((("--help",), 5), (("lab", "--help"), 1)):
        told = keyhole(*args, columns=columns).stdout
        commands: Any = typer.main.get_command(app)
        for part in args[:-1]:
            commands = commands.commands[part]
        told = told.partition("Options:\n")[2]
        listed, sections = " ".join(told.split()), re.findall(r"^([A-Z][^\n]*):$", told, re.MULTILINE)
        assert len(sections) >= least and max(map(len, told.splitlines())) <= columns
        for name, command in commands.commands.items():
            sentence = re.match(r".+?[.?](?=\s|$)", " ".join(command.help.split()))
            assert sentence is not None and f" {name} {sentence[0]}" in listed, name


def test_plot_draws_where_a_head_attends(tmp_path: Path) -> None:
    for name in ("head.png", "head.svg"):
        done = keyhole("plot", PROMPT, "--head", "3.6", "--out", name, folder=tmp_path)
        assert done.returncode == 0 and done.stdout == f"wrote {name}\n" and not done.stderr
    assert (tmp_path / "head.png").read_bytes().startswith(b"\x89PNG")
    drawn = (tmp_path / "head.svg").read_text()
    assert "3.6" in drawn and "11:gave" in drawn
    refused = keyhole("plot", PROMPT, "--head", "3.6", "--out", "head.txt", folder=tmp_path)
    assert refused.returncode == 2 and "should end in .png, .svg or .pdf" in refused.stderr


def test_help_has_examples() -> None:
    for command in ("check", "plot", "heads", "channels", "explain", "trace", "verify", "tasks"):
        assert f"keyhole {command}" in keyhole(command, "--help").stdout


BAD = {
    "unknown hub name": (("heads", "a b", "-m", "no-such-model"), "cannot load no-such-model"),
    "unreachable hub": (("check", "nobody/nothing"), "hub is unreachable"),
    "no such folder": (("check", "./nowhere/at/all"), "neither a model folder nor a .gguf file"),
    "folder without a model": (("check", "{root}/empty"), "no config.json"),
    "damaged weights": (("check", "{root}/damaged"), "cannot load"),
    "damaged gguf": (("check", "{root}/broken.gguf"), "is damaged"),
    "heads of a model with NaN": (("heads", "-m", "{root}/nan", "--token-ids", "1 2 3"), "layers.1.self_attn.k_proj"),
    "trace of a model with NaN": (("trace", "-m", "{root}/nan", "--token-ids", "1 2 3"), "NaN or infinite: model.l"),
    "contrast of a model with NaN": (("contrast", "boxes", "-m", "{root}/nan"), "NaN or infinite: model.layers.1"),
    "missing gguf": (("check", "{root}/none.gguf"), "there is no file"),
    "no adapter": (("check", "{root}/gpt2", "--adapter", "{root}/empty"), "it is no folder with an adapter_config"),
    "agents of no folder": (("mcp", "{root}/none"), "there is no folder"),
    "agents with a model named twice": (("mcp", "{root}", "--model", "a=b", "--model", "a=c"), "names 'a' twice"),
    "unsupported architecture": (("check", "{root}/xglm"), "'xglm' are not supported"),
    "no attention": (("check", "{root}/mamba"), "'mamba' are not supported"),
    "unsupported setting": (("check", "{root}/olmo-clip"), "clip_qkv"),
    "text without a tokenizer": (("heads", "hello there", "-m", "{root}/gpt2"), "has no tokenizer"),
    "unknown word": (("heads", "When Mary met Zaphod and Ford"), "does not know 'Zaphod', 'Ford'"),
    "one token": (("heads", "-m", "{root}/gpt2", "--token-ids", "5"), "at least two"),
    "empty prompt": (("heads", "", "--no-bos"), "at least two"),
    "too long": (("heads", "-m", "{root}/short", "--token-ids", "1 1 1 1 1 1 1 1 1"), "only 8 positions"),
    "id outside the vocabulary": (("heads", "-m", "{root}/gpt2", "--token-ids", "5,999"), "outside the vocabulary"),
    "ids that are not numbers": (("heads", "-m", "{root}/gpt2", "--token-ids", "a,b"), "whole numbers"),
    "neither prompt nor ids": (("heads",), "give a prompt"),
    "dest out of range": (("heads", PROMPT, "--dest", "99"), "outside the prompt"),
    "head that is no head": (("channels", PROMPT, "--head", "three", "--src", "Mary"), "such as 3.1"),
    "layer out of range": (("channels", PROMPT, "--head", "77.0", "--src", "Mary"), "no layer 77"),
    "head out of range": (("channels", PROMPT, "--head", "0.77", "--src", "Mary"), "no head 0.77"),
    "src after dest": (("channels", PROMPT, "--head", "1.1", "--dest", "2", "--src", "5"), "comes after dest"),
    "ambiguous text": (("channels", PROMPT, "--head", "1.1", "--src", "John"), "ambiguous"),
    "absent text": (("channels", PROMPT, "--head", "1.1", "--src", "Paris"), "not a token of the prompt"),
    "no such device": (("check", "{root}/gpt2", "--device", "banana"), "cannot put the model"),
    "model named twice": (("check", "{root}/gpt2", "--model", "{root}/gpt2"), "once"),
    "revision of a folder": (("check", "{root}/gpt2", "--revision", "x"), "from the hub"),
    "tau out of range": (("heads", PROMPT, "--tau", "7"), "between 0 and 1"),
    "number that is also a token": (("channels", YEARS, "--head", "1.1", "--src", "11"), "pos:11 or token:11"),
    "superscript head": (("channels", PROMPT, "--head", "1.²", "--src", "Mary"), "such as 3.1"),
    "long without a story": (("trace", PROMPT, "--long"), "add --story"),
    "a story of heads alone": (("trace", PROMPT, "--story", "--through", "heads"), "--story needs --through mlps"),
    "two baselines": (
        ("trace", PROMPT, "--like", "{root}/like.txt", "--counterfactual", PROMPT),
        "two baselines: give one",
    ),
    "a text and prompts like it": (
        ("trace", PROMPT, "--text", "{root}/like.txt", "--like", "{root}/like.txt"),
        "--like and --text are two baselines: give one",
    ),
    "a text and a counterfactual": (
        ("trace", PROMPT, "--text", "{root}/like.txt", "--counterfactual", PROMPT),
        "--counterfactual and --text are two baselines: give one",
    ),
    "a text for nothing": (
        ("trace", PROMPT, "--text", "{root}/like.txt", "--no-faithfulness"),
        "nothing is measured against a baseline: add --effects",
    ),
    "a text for a story": (("trace", PROMPT, "--text", "{root}/like.txt", "--story"), "and not of --story"),
    "a text for a search": (("trace", PROMPT, "--text", "{root}/like.txt", "--sufficient"), "and not of --sufficient"),
    "no text, before any model": (
        ("trace", PROMPT, "-m", "no-such-model", "--text", "{root}/none.txt"),
        "there is no file",
    ),
    "an empty text, before any model": (
        ("trace", PROMPT, "-m", "no-such-model", "--text", "{root}/empty.txt"),
        "there is no text in",
    ),
    "a folder of texts": (("trace", PROMPT, "--text", "{root}"), "as text: Is a directory"),
    "too short a text": (("trace", PROMPT, "--text", "{root}/like.txt"), "has 1 lines of at least 6 tokens"),
    "a level without a search": (("trace", PROMPT, "--level", "0.5"), "add --sufficient"),
    "signs without a search": (("trace", PROMPT, "--both-signs"), "add --sufficient"),
    "a baseline for nothing": (
        ("trace", PROMPT, "--counterfactual", "a", "--no-faithfulness"),
        "nothing is measured against a baseline: add --effects",
    ),
    "a story of what suffices": (("trace", PROMPT, "--sufficient", "--story"), "leave out --story"),
    "a search that measures nothing": (("trace", PROMPT, "--sufficient", "--no-faithfulness"), "leave out --no-faith"),
    "a search by svt": (("trace", PROMPT, "--sufficient", "--method", "svt"), "searches and does not trace"),
    "a search with a tau": (("trace", PROMPT, "--sufficient", "--tau", "0.3"), "searches and does not trace"),
    "a level above 1": (("trace", PROMPT, "--sufficient", "--level", "2"), "level is 2.0"),
    "too few prompts like it": (("trace", PROMPT, "--like", "{root}/like.txt"), "at least 8 different prompts"),
    "no file of prompts like it": (("trace", PROMPT, "--like", "{root}/nowhere.txt"), "there is no file"),
    "a counterfactual of another length": (("trace", PROMPT, "--counterfactual", "Mary ran"), "of equal length"),
    "a counterfactual that is none": (("trace", PROMPT, "--counterfactual", PROMPT), "this prompt itself"),
    "no target": (("trace", PROMPT, "--target", "Mary", "--top-k", "2"), "exactly one"),
    "answer of several tokens": (("trace", PROMPT, "--target", "Mary and John", "--method", "svt"), "one token"),
    "answer it cannot explain": (("trace", PROMPT, "--target", "to"), "nothing to trace"),
    "an MLP with a head's option": (
        ("explain", PROMPT, "--mlp", "3", "--for", "Mary", "--why-not"),
        "belong to --head",
    ),
    "a head with an MLP's option": (("explain", PROMPT, "--head", "3.6", "--for", "Mary"), "belong to --head"),
    "neither head nor MLP": (("explain", PROMPT), "name one head"),
    "an MLP for nothing": (("explain", PROMPT, "--mlp", "3"), "for which answer"),
    "tau of nothing": (("trace", PROMPT, "--tau", "0"), "no weight is below 0"),
    "tau of nothing, for one firing": (("explain", PROMPT, "--head", "3.6", "--tau", "0"), "no weight is below 0"),
    "a token id of no token": (("trace", PROMPT, "--target", "id:99999"), "token id 99999 is outside the vocabulary"),
    "the other answer is the preferred one": (
        ("trace", PROMPT, "--target", "John", "--against", "Mary"),
        "the model prefers 'Mary' to 'John' (logit difference -",
    ),
    "an answer against itself": (("trace", PROMPT, "--target", "Mary", "--against", "Mary"), "are the same, 'Mary'"),
    "half a character": (("heads", "Mary \udce9 John"), r"character 5 is '\udce9'"),
    "tau that is no number": (("trace", PROMPT, "--tau", "soon"), "dynamic or a number"),
    "svt's settings with accpp": (("trace", PROMPT, "--start", "3.1"), "are of --method svt: add it or leave them out"),
    "svt's share with accpp": (("bulk", "ioi", "--estimate", "--share", "0.6"), "are of --method svt"),
    "accpp's settings with svt": (("trace", PROMPT, "--method", "svt", "--tau", "0.3"), "settings of the method accpp"),
    "accpp's settings in bulk": (("bulk", "ioi", "--estimate", "--method", "svt", "--keys", "source"), "method accpp"),
    "a threshold above 1": (("trace", PROMPT, "--method", "svt", "--threshold", "1.5"), "threshold is 1.5"),
    "a share of nothing": (("trace", PROMPT, "--method", "svt", "--share", "0"), "share is 0.0"),
    "a share of all": (("bulk", "ioi", "--estimate", "--method", "svt", "--share", "1"), "share is 1.0"),
    "a start that is no head": (("trace", PROMPT, "--method", "svt", "--start", "three"), "such as 3.1, not 'three'"),
    "a start with one token": (("trace", PROMPT, "--method", "svt", "--start", "3.1:to"), "such as 9.6:-1:Mary"),
    "a start of no head": (("trace", PROMPT, "--method", "svt", "--start", "3.77"), "no head 3.77"),
    "a start of no head in bulk": (("bulk", "ioi", "--estimate", "--method", "svt", "--start", "9.6"), "head 9.6"),
    "a start whose src is later": (("trace", PROMPT, "--method", "svt", "--start", "3.1:2:14"), "not visible from"),
    "a start that is also a token": (("trace", YEARS, "--method", "svt", "--start", "2.3:-1:11"), "pos:11 or token:11"),
    "a start that does not fire": (
        ("trace", PROMPT, "--method", "svt", "--start", "3.1:-1:Mary"),
        "no start is a firing",
    ),
    "a start and seeds": (
        ("bulk", "ioi", "--estimate", "--method", "svt", "--start", "3.1", "--metric", "linear"),
        "leave one of them out",
    ),
    "no such contrast": (("contrast", "cups"), "neither boxes, lists, nor a file"),
    "unknown rank": (("contrast", "boxes", "--rank", "high"), "energy, halves or a number"),
    "no chat template": (("contrast", "lists", "--chat"), "no chat template"),
    "too many boxes": (("contrast", "boxes", "--boxes", "10"), "ask for fewer boxes"),
    "too few samples": (("contrast", "boxes", "--prompts", "12", "--tests", "9"), "too few for a rank claim"),
    "no such head to study": (("contrast", "boxes", "--prompts", "20", "--tests", "9", "--head", "7.0"), "no head 7.0"),
    "sweep of lists": (("contrast", "lists", "--sweep", "2,3"), "--sweep is for boxes"),
    "sweep of words": (("contrast", "boxes", "--prompts", "20", "--tests", "9", "--sweep", "few"), "numbers of boxes"),
    "bad line": (("contrast", "{root}/bad.jsonl"), "bad.jsonl, line 2: unknown keys: positives"),
    "site outside its prompt": (("contrast", "{root}/outside.jsonl"), "token 99 is outside prompt 0"),
    "no such task": (("tasks", "iot"), "neither a file nor a task, such as ioi"),
    "a choice of no task": (("tasks", "ioi", "--with", "boxes=3"), "ioi has no choice 'boxes'"),
    "a choice without a value": (("tasks", "ioi", "--with", "mixed"), "such as design=mixed, not 'mixed'"),
    "a choice that is an option": (("tasks", "ioi", "--with", "n=3"), "give --n 3"),
    "wrong answers that nobody gave": (("tasks", "ioi", "--skip-wrong"), "--skip-wrong needs --run"),
    "prompts of a contrast": (("tasks", "{root}/bad.jsonl"), "bad.jsonl, line 1: unknown keys: negative, positive"),
    "prompts written to a folder": (("tasks", "ioi", "--out", "{root}"), "is a folder"),
    "a task without a tokenizer": (("tasks", "ioi", "-m", "{root}/gpt2"), "has no tokenizer"),
    "no such text": (("discover", "{root}/none.txt"), "there is no file"),
    "too little text": (("discover", "--prompts", "2"), "give more or longer prompts"),
    "no such head to discover": (("discover", "--prompts", "20", "--head", "9.1"), "no layer 9"),
    "one box": (("contrast", "boxes", "--sweep", "1,2"), "two or more"),
    "out is a file": (("contrast", "boxes", "--out", "{root}/bad.jsonl"), "where a folder is needed"),
    "umap without a folder": (("contrast", "boxes", "--umap"), "--umap needs --out"),
    "test file of boxes": (("contrast", "boxes", "--test-file", "{root}/bad.jsonl"), "makes its own tests"),
    "unequal sides by prompts": (
        ("contrast", "lists", "--prompts", "40", "--tests", "20", "--balance", "prompts"),
        "no null rank",
    ),
    "head larger than a token": (("lab", "svf", "-H", "12"), "H 12 > D 10"),
    "pairs beyond the features": (("lab", "svf", "--pairs", "15"), "beyond the 20 features"),
    "bases without a task": (("lab", "basis", "nosuch"), "neither a file nor a task"),
    "no probability": (("lab", "svf", "--p", "1.5"), "(0, 1]"),
    "revisions of nothing": (("lab", "emergence", "--revisions", "a,b", "--out", "{root}/e"), "those of a --model"),
    "quick revisions": (("lab", "emergence", "-m", "a/b", "--revisions", "a,b", "--quick"), "--quick shortens"),
    "one revision": (("lab", "emergence", "-m", "a/b", "--revisions", "step1"), "at least two --revisions"),
    "revisions backwards": (("lab", "emergence", "-m", "a/b", "--revisions", "step9,step2"), "first to last"),
    "nothing to reproduce": (("reproduce",), "name the items"),
    "unknown item": (("reproduce", "svf-fig99"), "svf-fig9"),
    "unknown ending": (("trace", PROMPT, "--out", "{root}/x.xlsx"), "should end in"),
    "a folder to write to": (("trace", PROMPT, "--out", "{root}"), "is a folder"),
    "nowhere to write to": (("trace", PROMPT, "--out", "/proc/x.json"), "cannot write into /proc"),
    "no place for a study": (("contrast", "lists", "--out", "/proc/x"), "cannot make the folder /proc/x"),
    "nowhere to write, before any model": (
        ("trace", PROMPT, "-m", "no-such-model", "--out", "{root}/x.xlsx"),
        "should end in",
    ),
    "no folder to write to": (("trace", PROMPT, "--out", "{root}/no/x.json"), "no folder"),
    "missing circuit": (("verify", "{root}/none.json"), "there is no file"),
    "a circuit's page": (("verify", "{root}/circuit.html"), "read from their .json. Write that, too: `keyhole trace"),
    "a circuit's picture": (("verify", "{root}/circuit.svg"), "--out circuit.json`"),
    "a circuit for other tools": (("verify", "{root}/circuit.neuronpedia.json"), "--out circuit.json`"),
    "a page that is not there": (("verify", "{root}/none.html"), "there is no file"),
    "why not, where it is": (("explain", PROMPT, "--head", "1.6", "--src", "Mary", "--why-not"), "(--why-not) out"),
    "foreign circuit": (("verify", "{root}/gpt2/config.json"), "not a circuit"),
    "circuit of another model": (("verify", "{root}/circuit.json", "-m", "{root}/gpt2"), "other weights"),
}


CHOICES = {
    "--method": ("trace", PROMPT, "--method", "magic"),
    "--metric": ("trace", PROMPT, "--metric", "magic"),
    "--keys": ("explain", PROMPT, "--head", "3.6", "--keys", "some"),
    "--first-token": ("trace", PROMPT, "--first-token", "hide"),
    "--feature": ("contrast", "boxes", "--feature", "size"),
    "--frame": ("contrast", "boxes", "--frame", "mine"),
    "--centre": ("contrast", "boxes", "--centre", "x"),
    "--balance": ("contrast", "boxes", "--balance", "x"),
    "--wording": ("contrast", "lists", "--wording", "rude"),
    "--nonlinearity": ("discover", "--nonlinearity", "x"),
    "--preset": ("lab", "svf", "--preset", "slow"),
    "--latents": ("lab", "payload", "--latents", "odd"),
    "--mode": ("verify", "{root}/circuit.json", "--mode", "sideways"),
    "--dtype": ("check", "--dtype", "int3"),
    "--basis": ("channels", PROMPT, "--head", "1.1", "--basis", "x"),
    "--paper": ("reproduce", "--list", "--paper", "x"),
}

DRIVER = """
import contextlib, io, json, sys, traceback
from keyhole.cli.app import main

done = []
for args in json.load(sys.stdin):
    out, err, code = io.StringIO(), io.StringIO(), 0
    sys.argv = ["keyhole", *args]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as stop:
            code = stop.code or 0
        except BaseException:
            traceback.print_exc()
            code = 1
    done.append((code, out.getvalue(), err.getvalue()))
print(json.dumps(done))
"""


@pytest.fixture(scope="module")
def bad_answers(folders: Path) -> dict[str, tuple[int, str, str]]:
    """What every bad request answers; one process for all, since starting one takes seconds."""
    given = [args for args, _ in BAD.values()] + list(CHOICES.values())
    requests = [[part.format(root=folders) for part in args] for args in given]
    done = subprocess.run(
        [sys.executable, "-c", DRIVER], input=json.dumps(requests), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return dict(zip([*BAD, *CHOICES], json.loads(done.stdout), strict=True))


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_sentence_and_exit_code_two(case: str, bad_answers: dict[str, tuple[int, str, str]]) -> None:
    code, out, err = bad_answers[case]
    assert code == 2, err
    assert BAD[case][1] in err and err.startswith("error: ") and err.count("\n") == 1
    assert "Traceback" not in err and not out


@pytest.mark.parametrize("option", CHOICES)
def test_an_unknown_choice_is_answered_with_those_there_are(
    option: str, bad_answers: dict[str, tuple[int, str, str]]
) -> None:
    code, out, err = bad_answers[option]
    assert code == 2 and not out and "Traceback" not in err
    said = " ".join(err.split())
    assert f"Invalid value for '{option}'" in said and f"{CHOICES[option][-1]!r} is not one of '" in said


def test_bad_input_in_a_process_of_its_own() -> None:
    done = keyhole("heads", "When Mary met Zaphod")
    assert (done.returncode, done.stdout) == (2, "")
    said = "use other words (`keyhole words` lists them), or another model (--model)"
    assert done.stderr == f"error: organism does not know 'Zaphod': {said}.\n"


SMALL = ("--prompts", "60", "--tests", "40", "--permutations", "20", "--answers", "2")


def test_contrast_of_boxes_writes_a_study_and_pictures(tmp_path: Path) -> None:
    done = keyhole("contrast", "boxes", *SMALL, "--boxes", "4", "--sweep", "2,3", "--out", str(tmp_path / "out"))
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert "1.6" in done.stdout and "lexical" in done.stdout and "normalised" in done.stdout
    record = json.loads((tmp_path / "out" / "study.json").read_text())
    assert "1.6" in record["selected"] and record["selection_passed"] and len(record["heads"]) == 32
    assert {row["entities"] for row in record["sweep"]["order"]} == {2, 3}
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"interventions.png", "pca-lexical-1.6.png", "ranks-order.png", "attribution-1.6.png"} <= names


def test_contrast_of_lists_as_json() -> None:
    record = json.loads(keyhole("contrast", "lists", *SMALL, "--json").stdout)
    best = next(row for row in record["heads"] if row["head"] == "3.3")
    assert (
        record["selected"][0] == "3.3" and best["features"]["category"]["share"] > 0.5
    )  # 0.96 with the default 400 prompts
    assert best["swaps"][1]["normalised"] > 0.3 and record["answers"]["largest_miss"] < 1e-5


def test_contrast_of_a_file(tmp_path: Path) -> None:
    from contrasts import box_contrast
    from keyhole.features.contrast.sites import write_contrast

    write_contrast(box_contrast(80, 3), tmp_path / "samples.jsonl")
    done = keyhole("contrast", str(tmp_path / "samples.jsonl"), "--head", "1.6", "--rank", "3", "--answers", "2")
    assert done.returncode == 0 and "\n1.7 " not in done.stdout, done.stderr
    assert "80 samples of boxes, of which one half makes the feature (40)" in " ".join(done.stdout.split())
    rows = [line for line in done.stdout.splitlines() if line.startswith(("head ", "1.6 "))]
    assert len(rows) > 6 and max(map(len, rows)) <= 80 and not any("…" in line for line in rows)


def test_discover_surveys_heads_and_names_features(tmp_path: Path) -> None:
    survey = json.loads(keyhole("discover", "--prompts", "60", "--json").stdout)
    assert len(survey["heads"]) == 32 and survey["view"]["frame"] == "relative"
    short = [text for text in documents(120, seed=3) if len(text) < 350]
    (tmp_path / "text.txt").write_text("\n".join(short))
    asked = ("--head", "3.0", "--prompts", "60", "--top", "3")
    done = keyhole("discover", str(tmp_path / "text.txt"), *asked)
    assert done.returncode == 0 and "→" in done.stdout and "shares of the gap" in done.stdout, done.stderr
    lines = [json.dumps({"prompt": text, "target": "Mary"}) for text in short]
    (tmp_path / "own.jsonl").write_text("\n".join(lines))
    assert keyhole("discover", str(tmp_path / "own.jsonl"), *asked).stdout == done.stdout
    (tmp_path / "own.jsonl").write_text("{")
    refused = keyhole("discover", str(tmp_path / "own.jsonl"), *asked)
    assert refused.returncode == 2 and "own.jsonl, line 1" in refused.stderr
    record = json.loads(keyhole("discover", "--head", "3.0", "--prompts", "60", "--json").stdout)
    shares = [feature["share"] for feature in record["features"]]
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) + record["cross"] + record["mean"] + record["outside"] == pytest.approx(1, abs=1e-6)


def test_the_laboratory_at_the_command_line(tmp_path: Path) -> None:
    record = json.loads(keyhole("lab", "svf", "--steps", "300", "--seeds", "2", "--json").stdout)
    assert record["T"] == [24, 21, 18, 15] and len(record["seeds"]) == 2
    assert all(0 <= one["by_assignment"] <= 1 for one in record["seeds"])
    checks = json.loads(keyhole("lab", "theorems", "--seeds", "1", "--json").stdout)["checks"]
    assert len(checks) == 5 and all(check["holds"] and check["margin"] > 0 for check in checks)
    done = keyhole("lab", "emergence", "--quick", "--out", str(tmp_path / "e"), "--json")
    found = json.loads(done.stdout)
    assert found["steps"][0] == 0 and len(found["sparsity"]) == len(found["steps"])
    assert (tmp_path / "e" / "emergence.png").is_file()
    bases = json.loads(keyhole("lab", "basis", "--n", "1", "--draws", "1", "--json").stdout)
    assert set(bases["bases"]) == {"singular", "refactored", "raw", "rotated"} and len(bases["prompts"]) == 1
    sparse = json.loads(keyhole("lab", "sparse", "--json").stdout)  # the default has text enough
    assert sparse["pooled"]["unrelated, firing"]["pairs"] > 1000 and len(sparse["heads"]) > 25


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (("svf", "--steps", "3", "--seeds", "1", "-H", "2"), "a pair has no channel (the head has 2 dimensions for 4"),
        (("svf", "--steps", "3", "--seeds", "1", "-D", "4", "-H", "4"), "features span all 4 dimensions"),
        (
            ("payload", "3", "4", "--steps", "20", "--seeds", "1", "--latents", "gaussian"),
            "gaussian latents never repeat",
        ),
    ],
)
def test_what_the_laboratory_cannot_measure_is_a_dash_with_a_reason(args: tuple[str, ...], reason: str) -> None:
    done = keyhole("lab", *args)
    assert done.returncode == 0 and "nan" not in done.stdout and reason in " ".join(done.stdout.split())
    assert re.search(r"^0 .* - ", done.stdout, re.MULTILINE)


def test_published_items_are_listed() -> None:
    done = keyhole("reproduce", "--list", "--paper", "cc")
    assert done.returncode == 0 and "cc-fig4" in done.stdout and "run here" in done.stdout


def test_a_result_survives_a_disk_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The place was good when it was asked for: what was found is told, and then what went wrong."""
    import keyhole.circuits.files as files
    from contrasts import box_contrast
    from keyhole.cli.app import app
    from keyhole.errors import UnwritableError
    from keyhole.features.contrast.sites import write_contrast

    def full(path: Path, content: str | bytes) -> None:
        raise UnwritableError(f"cannot write {path} (No space left on device): choose another place.")

    monkeypatch.setattr(files, "write_at_once", full)
    monkeypatch.setattr(sys.modules["keyhole.cli.contrast"], "write_at_once", full)
    told = CliRunner().invoke(app, ["trace", PROMPT, "--out", str(tmp_path / "C.JSON")])
    assert isinstance(told.exception, UnwritableError) and "answer at 14:to: 'Mary'" in told.stdout
    write_contrast(box_contrast(40, 3), tmp_path / "samples.jsonl")
    options = ("--head", "1.6", "--rank", "3", "--answers", "0", "--permutations", "19", "--out", str(tmp_path / "s"))
    told = CliRunner().invoke(app, ["contrast", str(tmp_path / "samples.jsonl"), *options])
    assert isinstance(told.exception, UnwritableError) and "1.6" in told.stdout


def test_capitals_in_a_suffix_are_its_own(tmp_path: Path) -> None:
    plain = ("--target", "Mary", "--through", "heads", "--no-faithfulness")
    done = keyhole("trace", PROMPT, *plain, "--out", str(tmp_path / "C.JSON"))
    assert done.returncode == 0 and json.loads((tmp_path / "C.JSON").read_text())["schema"] == 4


def test_sinks_mean_the_same_everywhere() -> None:
    """Kept and marked firings are listed, collapsed ones only counted."""
    run = ("heads", PROMPT, "--dest", "-1", "--top", "99", "--first-token")
    kept, marked, collapsed = (keyhole(*run, how).stdout for how in ("keep", "mark", "collapse"))
    assert kept.count("0:<bos>") == marked.count("0:<bos>") > 1 == collapsed.count("0:<bos>")  # once as a token
    assert marked.count("0:<bos> sink") == marked.count("0:<bos>") - 1
    assert f"{kept.count('0:<bos>') - 1} on the first token are only counted" in collapsed


def test_tasks_are_listed_shown_written_and_asked(tmp_path: Path) -> None:
    listed = json.loads(keyhole("tasks", "--json").stdout)["tasks"]
    assert [row["task"] for row in listed][:2] == ["ioi", "greater_than"] and "held_out" in listed[0]["choices"]
    told = keyhole("tasks").stdout
    assert all(row["example"]["target"] and row["asks"] and row["task"] in told for row in listed)
    shown = keyhole("tasks", "ioi", "--n", "2", "--seed", "3", "--with", "order=BABA")
    assert shown.stdout.count("order=BABA") == 2 and "2 prompts" in shown.stdout
    written = keyhole(
        "tasks", "greater-than", "--n", "12", "--with", "held_out=true", "--out", "years.jsonl", folder=tmp_path
    )
    assert "12 prompts; 12 written to years.jsonl" in written.stdout
    asked = json.loads(keyhole("tasks", "years.jsonl", "--run", "--json", folder=tmp_path).stdout)
    right = [row["answered"]["correct"] for row in asked["examples"]]
    assert asked["n"] == len(right) == 12 and asked["right"] == sum(right) > 6
    lines = [json.loads(line) for line in (tmp_path / "years.jsonl").read_text().splitlines()]
    assert [{k: v for k, v in row.items() if k != "answered"} for row in asked["examples"]] == lines
    wrong = lines[0] | {"target": lines[0]["against"], "against": lines[0]["target"]}
    wrong["answer"] = wrong["target"][0] if isinstance(wrong["target"], list) else wrong["target"]
    (tmp_path / "more.jsonl").write_text("".join(json.dumps(row) + "\n" for row in (wrong, *lines)))
    done = keyhole("tasks", "more.jsonl", "--run", "--skip-wrong", "--out", "right.jsonl", folder=tmp_path)
    assert f"13 prompts, {sum(right)} of them answered right; {sum(right)} written" in done.stdout
    kept = [json.loads(line) for line in (tmp_path / "right.jsonl").read_text().splitlines()]
    assert kept == [row for row, ok in zip(lines, right, strict=True) if ok]


def test_words() -> None:
    assert 60 < max(map(len, keyhole("words").stdout.splitlines())) <= 80
    listed = json.loads(keyhole("words", "--json").stdout)["words"]
    assert "Mary" in listed["women's names"] and "store" in listed["places"] and "gave" in listed["other"]
    found = keyhole("words", "mar*")
    assert "'Mary'" in found.stdout and "'market'" in found.stdout and "5 of 5 tokens" in found.stdout
    assert keyhole("heads", "When Jhon met Mary").stderr == (
        "error: organism does not know 'Jhon': use other words such as John, phone, Jason "
        "(`keyhole words` lists them), or another model (--model).\n"
    )
