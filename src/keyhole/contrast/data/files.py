"""How is a contrast written down? JSON Lines: one sample a line, read strictly.

    {"contrast": "plurals", "bos": null}                                          an optional first line
    {"prompt": "...", "query": "last", "positive": [{"find": "cats"}], "negative": [{"find": "dog"}]}
    {"prompts": ["...", "..."], "query": -1, "positive": [5], "negative": [{"token": 5, "prompt": 1}]}

A place is a token position, "last", {"token": n}, {"span": [start, end]} in characters, {"find": text, "nth": 0} or
{"regex": pattern, "nth": 0}; "nth": "all" means every occurrence, and "prompt" which of the line's prompts (default 0).
Optional: "label", "group", "weight", "negative_query". Equal prompts of different lines are run once.
"""

import json
from pathlib import Path
from typing import Any

from keyhole.contrast.data.sites import Contrast, Place, Sample, Site
from keyhole.errors import KeyholeError
from keyhole.files import write_at_once

_KEYS = {"prompt", "prompts", "query", "positive", "negative", "negative_query", "label", "group", "weight"}
_PLACES = {"token", "span", "find", "regex"}


def read_contrast(path: str | Path) -> Contrast:
    """Read a contrast, or say which line is wrong and why."""
    path = Path(path)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise KeyholeError(f"{path} cannot be read as text: {error}.") from error
    name, bos, headed = path.stem, None, False
    prompts: dict[Any, int] = {}
    samples: list[Sample] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = _record(line)
            if "contrast" in record:
                name, bos = _header(record, first=not (samples or headed))
                headed = True
            else:
                samples.append(_sample(record, prompts))
        except KeyholeError as error:
            raise KeyholeError(f"{path}, line {number}: {error}") from error
    if not samples:
        raise KeyholeError(f"{path} has no samples: write one JSON object a line, see `keyhole contrast --help`.")
    return Contrast(name, tuple(prompts), tuple(samples), bos)


def write_contrast(contrast: Contrast, path: str | Path) -> None:
    """Write a contrast so that `read_contrast` gives it back."""
    lines = [json.dumps({"contrast": contrast.name, "bos": contrast.bos})]
    for sample in contrast.samples:
        used = list(dict.fromkeys(site.prompt for site in sample.sites))
        prompts = [_plain(contrast.prompts[i]) for i in used]
        record: dict[str, Any] = {"prompt": prompts[0]} if len(prompts) == 1 else {"prompts": prompts}
        record["query"] = _told(sample.query, used)
        record["positive"] = [_told(site, used) for site in sample.positive]
        record["negative"] = [_told(site, used) for site in sample.negative]
        if sample.negative_query is not None:
            record["negative_query"] = _told(sample.negative_query, used)
        optional = {"label": sample.label, "group": sample.group}
        record |= {key: value for key, value in optional.items() if value is not None}
        if sample.weight != 1.0:
            record["weight"] = sample.weight
        lines.append(json.dumps(record, ensure_ascii=False))
    write_at_once(path, "\n".join(lines) + "\n")


def _record(line: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise KeyholeError(f"not JSON ({error}).") from error
    if not isinstance(record, dict):
        raise KeyholeError("a line is one JSON object.")
    return record


def _header(record: dict[str, Any], *, first: bool) -> tuple[str, bool | None]:
    if not first:
        raise KeyholeError('the line with "contrast" must come first.')
    if set(record) - {"contrast", "bos"} or not isinstance(record["contrast"], str):
        raise KeyholeError('the first line has "contrast", a name, and "bos" (true, false or null), nothing else.')
    bos = record.get("bos")
    if bos is not None and not isinstance(bos, bool):
        raise KeyholeError(f'"bos" is true, false or null, not {bos!r}.')
    return record["contrast"], bos


def _sample(record: dict[str, Any], prompts: dict[Any, int]) -> Sample:
    if unknown := set(record) - _KEYS:
        raise KeyholeError(f"unknown keys: {', '.join(sorted(unknown))}; known are {', '.join(sorted(_KEYS))}.")
    if ("prompt" in record) == ("prompts" in record):
        raise KeyholeError('give "prompt" or "prompts", and not both.')
    own = [record["prompt"]] if "prompt" in record else record["prompts"]
    if not isinstance(own, list) or not own:
        raise KeyholeError('"prompts" is a list of at least one prompt.')
    numbers = [prompts.setdefault(_prompt(prompt), len(prompts)) for prompt in own]
    for key in ("query", "positive", "negative"):
        if key not in record:
            raise KeyholeError(f'there is no "{key}".')
    for key in ("label", "group"):
        if not isinstance(record.get(key, ""), str):
            raise KeyholeError(f'"{key}" is text, not {record[key]!r}.')
    weight = record.get("weight", 1.0)
    if isinstance(weight, bool) or not isinstance(weight, int | float):
        raise KeyholeError(f'"weight" is a number, not {weight!r}.')
    other = record.get("negative_query")
    return Sample(
        query=_site(record["query"], numbers),
        positive=_sites(record["positive"], numbers, "positive"),
        negative=_sites(record["negative"], numbers, "negative"),
        negative_query=None if other is None else _site(other, numbers),
        label=record.get("label"),
        group=record.get("group"),
        weight=float(weight),
    )


def _prompt(prompt: Any) -> Any:
    if isinstance(prompt, str) or (isinstance(prompt, list) and all(type(i) is int for i in prompt)):
        return prompt if isinstance(prompt, str) else tuple(prompt)
    raise KeyholeError(f"a prompt is text or a list of token ids, not {prompt!r:.60}.")


def _sites(places: Any, numbers: list[int], side: str) -> tuple[Site, ...]:
    if not isinstance(places, list):
        raise KeyholeError(f'"{side}" is a list of places.')
    return tuple(_site(place, numbers) for place in places)


def _site(place: Any, numbers: list[int]) -> Site:
    if place == "last":
        place = -1
    if type(place) is int:
        place = {"token": place}
    kinds = set(place) & _PLACES if isinstance(place, dict) else set()
    if len(kinds) != 1 or set(place) - kinds - {"nth", "prompt"}:
        raise KeyholeError(f'{place!r:.80} is no place: a position, "last", or one of token, span, find, regex.')
    prompt = place.get("prompt", 0)
    if type(prompt) is not int or not 0 <= prompt < len(numbers):
        raise KeyholeError(f"there is no prompt {prompt!r}: the line has {len(numbers)}, numbered from 0.")
    return Site(_place(place, kinds.pop()), numbers[prompt])


def _place(place: dict[str, Any], kind: str) -> Place:
    value, nth = place[kind], place.get("nth", 0)
    if kind == "token" and type(value) is int and "nth" not in place:
        return Place(token=value)
    if kind == "span" and "nth" not in place and isinstance(value, list):
        if len(value) == 2 and all(type(i) is int for i in value):
            return Place(span=(value[0], value[1]))
    elif kind in ("find", "regex") and isinstance(value, str) and (nth == "all" or type(nth) is int):
        nth = None if nth == "all" else nth
        return Place(text=value, nth=nth) if kind == "find" else Place(pattern=value, nth=nth)
    raise KeyholeError(f"{place!r:.80} is no place.")


def _plain(prompt: Any) -> Any:
    return prompt if isinstance(prompt, str) else [int(i) for i in prompt]


def _told(site: Site, used: list[int]) -> Any:
    place = site.place
    told: dict[str, Any] = {}
    if place.token is not None:
        told["token"] = place.token
    elif place.span is not None:
        told["span"] = list(place.span)
    else:
        told["find" if place.text is not None else "regex"] = place.text if place.text is not None else place.pattern
        if place.nth != 0:
            told["nth"] = "all" if place.nth is None else place.nth
    if used.index(site.prompt):
        told["prompt"] = used.index(site.prompt)
    return told["token"] if set(told) == {"token"} else told
