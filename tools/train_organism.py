"""Train the organism from scratch: `python tools/train_organism.py --out build/organism`.

Text comes from keyhole.tasks. Packed documents never see each other (a mask) and each counts its positions
from its own <bos>, so that training looks exactly like a prompt given to the finished model.
The folder written is what ships as src/keyhole/models/organism, plus `snapshots/` and `report.json`.
"""

import argparse
import importlib
import json
import multiprocessing
import sys
import time
import types
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import GPT2Config, GPT2LMHeadModel

# keyhole.tasks needs only the standard library, keyhole.lab.stored torch, and Keyhole itself much more. Bare parent
# packages let the ones be imported without the other, so training runs on machines where Keyhole is not installed.
_SRC = Path(__file__).resolve().parents[1] / "src"
for _name in ("keyhole", "keyhole.lab"):
    _bare = types.ModuleType(_name)
    _bare.__path__ = [str(_SRC.joinpath(*_name.split(".")))]
    sys.modules.setdefault(_name, _bare)
tasks = importlib.import_module("keyhole.tasks")
PIECES = importlib.import_module("keyhole.tasks.example")
training = importlib.import_module("keyhole.lab.stored")

BOS_ID, PAD_ID = training.BOS, training.PAD


@dataclass(frozen=True)
class Settings:
    """Everything that decides the numbers of the trained model."""

    width: int = 128
    layers: int = 4
    heads: int = 8
    positions: int = 128
    sequences: int = 1_000_000
    steps: int = 10_000
    batch: int = 512
    peak_rate: float = 1e-3
    warm_up: int = 200
    hold: float = 0.6  # of the steps before the rate begins to fall
    weight_decay: float = 0.1
    seed: int = 0


# --- text -------------------------------------------------------------------------------------------------


def pack(job: tuple[int, int, int]) -> np.ndarray:
    """`count` rows of `length` token ids: documents one after another, each behind a <bos>, the last cut."""
    seed, count, length = job
    ids = {token: i for i, token in enumerate(tasks.vocabulary())}
    rows, row, block = [], [], 0
    while True:
        for document in tasks.documents(256, seed * 1_000_003 + block):
            row += [BOS_ID, *(ids[piece] for piece in PIECES.pieces(document))]
            if len(row) >= length:
                rows.append(row[:length])
                row = []
                if len(rows) == count:
                    return np.array(rows, dtype=np.int16)
        block += 1


def token_rows(settings: Settings, workers: int) -> torch.Tensor:
    """All training rows; the same for any number of workers."""
    share = -(-settings.sequences // 256)
    jobs = [(settings.seed * 4096 + i, share, settings.positions) for i in range(256)]
    with multiprocessing.Pool(workers) as pool:
        rows = np.concatenate(pool.map(pack, jobs, chunksize=1))
    return torch.from_numpy(rows[: settings.sequences])


# --- tokenizer and model ----------------------------------------------------------------------------------


def write_tokenizer(folder: Path) -> Tokenizer:
    """A word-level tokenizer that puts <bos> before text, as in training, and spaces back when it decodes."""
    ids = {token: i for i, token in enumerate(tasks.vocabulary())}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(PIECES.PIECE), behavior="removed", invert=True)
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace(Regex("^"), " "),
            decoders.Fuse(),
            decoders.Replace(Regex(" (?=[,.:?])"), ""),
            decoders.Replace(Regex("(?<=[0-9]{2}) (?=[0-9]{2})"), ""),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens(["<bos>", "<unk>", "<pad>"])
    tokenizer.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", BOS_ID)])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<bos>",
        "unk_token": "<unk>",
        "pad_token": "<pad>",
        "clean_up_tokenization_spaces": False,
        # Without this, token_type_ids would be passed on, and GPT-2 would add them to its embeddings.
        "model_input_names": ["input_ids", "attention_mask"],
        "model_max_length": 128,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    return tokenizer


def new_model(settings: Settings) -> GPT2LMHeadModel:
    """A GPT-2 without dropout, at its random start."""
    torch.manual_seed(settings.seed)
    shape = training.gpt2_shape(settings, len(tasks.vocabulary()))
    return GPT2LMHeadModel(GPT2Config(**shape, pad_token_id=PAD_ID))


def write_model(model: GPT2LMHeadModel, folder: Path) -> None:
    """float16 on disk; config.json says float32, so that it is computed with in float32."""
    half = GPT2LMHeadModel(model.config).half()
    half.load_state_dict(model.state_dict())
    half.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    config = json.loads((folder / "config.json").read_text())
    config["dtype"] = "float32"
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def write_snapshot(model: GPT2LMHeadModel, file: Path) -> None:
    """The weights alone, in float16; the finished model's config.json fits them."""
    state = {name: value.detach().half().cpu().contiguous() for name, value in model.state_dict().items()}
    state.pop("lm_head.weight")  # tied to the embedding
    save_file(state, file, metadata={"format": "pt"})


# --- training ---------------------------------------------------------------------------------------------


def packed_logits(model: GPT2LMHeadModel, rows: torch.Tensor) -> torch.Tensor:
    """Logits for packed rows: attention stays inside a document, positions count from its <bos>."""
    here = torch.arange(rows.shape[1], device=rows.device)
    document = (rows == BOS_ID).cumsum(1)
    start = torch.where(rows == BOS_ID, here, 0).cummax(1).values
    same = document[:, :, None] == document[:, None, :]
    mask = (same & (here[:, None] >= here))[:, None]
    return model(input_ids=rows, attention_mask=mask, position_ids=here - start, use_cache=False).logits


def check_packing(model: GPT2LMHeadModel, rows: torch.Tensor) -> float:
    """How far are packed logits from those of the second document alone? Guards the mask on any version."""
    row = next(row for row in rows if (row == BOS_ID).sum() >= 3)
    first, second = (row == BOS_ID).nonzero().flatten()[1:3].tolist()
    with torch.no_grad():
        packed = packed_logits(model, row[None])[0, first:second]
        alone = model(input_ids=row[None, first:second], use_cache=False).logits[0]
    error = (packed - alone).abs().max().item()
    if error > 1e-3:
        raise RuntimeError(f"packed documents see each other: logits differ by {error:.3g}")
    return error


def batches(rows: torch.Tensor, settings: Settings):
    """Endless batches, every row once per epoch."""
    generator = torch.Generator().manual_seed(settings.seed)
    while True:
        order = torch.randperm(len(rows), generator=generator).to(rows.device)
        for i in range(0, len(rows) - settings.batch + 1, settings.batch):
            yield rows[order[i : i + settings.batch]].long()


def train(
    model: GPT2LMHeadModel, rows: torch.Tensor, settings: Settings, snapshots: int, folder: Path
) -> dict[str, object]:
    """The training loop; snapshots, with their accuracies, at log-spaced steps."""
    optimizer = training.optimizer_of(model, settings, fused=rows.is_cuda)
    began, curve = time.monotonic(), []
    stops = set(np.geomspace(100, settings.steps, snapshots + 1).round().astype(int).tolist()[:-1])
    stream = batches(rows, settings)
    for step in range(settings.steps):
        if step in stops:
            write_snapshot(model, folder / f"step-{step:05d}.safetensors")
            curve.append({"step": step, "held_out": evaluate(model, 400)})
        for group in optimizer.param_groups:
            group["lr"] = training.learning_rate(step, settings)
        batch = next(stream)
        with torch.autocast(rows.device.type, torch.bfloat16, enabled=rows.is_cuda):
            logits = packed_logits(model, batch)
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), batch[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 250 == 0 or step == settings.steps - 1:
            print(f"step {step} loss {loss.item():.4f} {time.monotonic() - began:.0f} s", flush=True)
    return {"minutes": round((time.monotonic() - began) / 60, 2), "snapshots": curve}


# --- measuring --------------------------------------------------------------------------------------------


def held_out(n: int) -> dict[str, list]:
    """The examples each bar is measured on."""
    sets = {f"ioi {order}": tasks.ioi(n, 7, order=order, held_out=True) for order in ("ABBA", "BABA")}
    return sets | {name: make(n, 7, held_out=True) for name, make in tasks.TASKS.items() if name != "ioi"}


@torch.no_grad()
def evaluate(model: GPT2LMHeadModel, n: int) -> dict[str, dict[str, float]]:
    """Per task: how often the top token is right, and the probability of the answer (for years, of all)."""
    ids = {token: i for i, token in enumerate(tasks.vocabulary())}
    device, result = next(model.parameters()).device, {}
    for name, examples in held_out(n).items():
        prompts = [[BOS_ID, *(ids[piece] for piece in PIECES.pieces(example.text))] for example in examples]
        longest = max(map(len, prompts))
        rows = torch.tensor([p + [PAD_ID] * (longest - len(p)) for p in prompts], device=device)
        ends = torch.tensor([len(p) - 1 for p in prompts], device=device)
        logits = model(input_ids=rows, attention_mask=rows != PAD_ID, use_cache=False).logits
        chances = logits[torch.arange(len(rows)), ends].float().softmax(-1)
        many = name == "greater_than"
        right = [[ids[a] for a in (e.answers if many else (e.answer,))] for e in examples]
        mass = [row[good].sum().item() for row, good in zip(chances, right, strict=True)]
        top = [best in good for best, good in zip(chances.argmax(-1).tolist(), right, strict=True)]
        result[name] = {
            "accuracy": round(float(np.mean(top)), 4),
            "probability": round(float(np.mean(mass)), 4),
        }
    return result


def main() -> None:
    """Read the settings, train, write the folder, measure what was written."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in asdict(Settings()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--snapshots", type=int, default=8, help="how many, log-spaced over the steps")
    parser.add_argument("--workers", type=int, default=multiprocessing.cpu_count())
    parser.add_argument("--examples", type=int, default=3000, help="held-out examples per task at the end")
    arguments = vars(parser.parse_args())
    settings = Settings(**{name: arguments[name] for name in asdict(Settings())})
    out = arguments["out"]
    (out / "snapshots").mkdir(parents=True, exist_ok=True)

    device = "cuda" if torch.cuda.is_available() else "cpu"
    began = time.monotonic()
    rows = token_rows(settings, arguments["workers"]).to(device)
    print(f"{len(rows)} rows in {time.monotonic() - began:.0f} s", flush=True)
    model = new_model(settings).to(device)
    error = check_packing(model, rows[:64].long())
    story = train(model, rows, settings, arguments["snapshots"], out / "snapshots")

    write_tokenizer(out)
    write_model(model, out)
    loaded = GPT2LMHeadModel.from_pretrained(out, dtype=torch.float32).to(device)
    numbers = evaluate(loaded, arguments["examples"])
    report = {"settings": asdict(settings), "packing_error": error, "held_out": numbers} | story
    (out / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(numbers, indent=1))


if __name__ == "__main__":
    main()
